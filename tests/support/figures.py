"""Figures that tests measure and do not judge: pytest prints them at its end."""

from collections.abc import Sequence

FIGURES: list[str] = []


def show(line: str) -> None:
    """Print `line` when all tests have run."""
    FIGURES.append(line)


def spread(seconds: Sequence[float]) -> str:
    """The distribution of `seconds`, in milliseconds."""
    ordered = sorted(seconds)
    parts = {"median": 0.5, "90 %": 0.9, "99 %": 0.99, "99.9 %": 0.999, "longest": 1.0}
    return ", ".join(
        f"{name} {1e3 * ordered[min(int(part * len(ordered)), len(ordered) - 1)]:.2f} ms"
        for name, part in parts.items()
    )
