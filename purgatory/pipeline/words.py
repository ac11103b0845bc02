"""Numbers and names in words, for tables, plots and reasons."""

import math


def figure(value: float) -> str:
    """`value` with three significant digits, without an exponent."""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or abs(value) >= 999.5:
        return f"{value:,.0f}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:.{decimals}f}".rstrip("0").rstrip(".") if decimals else f"{value:.0f}"


def seconds(value: float) -> str:
    """A time in the unit that fits, with up to three digits."""
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns")):
        if value >= size:
            return f"{figure(value / size)} {unit}"
    return "0 s"


def percent(share: float) -> str:
    """A share of 1."""
    return f"{figure(100 * share)} %"


def count(value: float) -> str:
    """A whole number."""
    return f"{value:,.0f}"


def name(text: str, longest: int = 48) -> str:
    """`text` as one line of at most so many visible characters. A longer one lacks its middle."""
    if len(text) > 2 * longest:
        text = text[:longest] + text[-longest:]
    shown = "".join(each if each.isprintable() else f"\\x{ord(each):02x}" for each in text)
    if len(shown) <= longest:
        return shown
    head = longest * 2 // 3
    return f"{shown[:head]}…{shown[head - longest + 1 :]}"


def kind_name(kind: tuple[str, str]) -> str:
    """A purgatory and an operation."""
    return f"{name(kind[0])} / {name(kind[1])}"
