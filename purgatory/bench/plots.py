"""A picture of the measured figures: the headlines."""

from pathlib import Path
from typing import Any, Final

from matplotlib import pyplot as plt
from matplotlib.ticker import FuncFormatter

from purgatory.bench.summary import Line

COLOURS: Final = ("#d1495b", "#edae49", "#66a182", "#8d6a9f", "#7a7a7a", "#2e4057", "#b0713a", "#5aa9c7")


plt.switch_backend("Agg")  # files, no windows


def draw(lines: list[Line], loop: str, file: Path) -> None:
    """Draw headlines: the ratio of each alternative's cost to ours, with its spread."""
    shown = [line for line in lines if line.ratios]
    if not shown:
        return
    figure, axis = plt.subplots(figsize=(9.2, 1.3 + 0.34 * len(shown)))
    axis.axvline(1, color="black", linewidth=1)
    for position, name in enumerate(dict.fromkeys(name for line in shown for name in line.ratios)):
        places = [place for place, line in enumerate(shown) if name in line.ratios]
        ratios = [shown[place].ratios[name] for place in places]
        errors: Any = [[each.median - each.least for each in ratios], [each.most - each.median for each in ratios]]
        axis.errorbar(
            [each.median for each in ratios],
            places,
            xerr=errors,
            fmt="osD^vPX*"[position % 8],
            color=COLOURS[position % len(COLOURS)],
            label=name,
        )
    axis.set_xscale("log")
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.xaxis.set_minor_formatter(FuncFormatter(lambda value, _: f"{value:g}" if f"{value:g}"[0] in "25" else ""))
    axis.tick_params(axis="x", which="both", labelsize=8)
    axis.set_title("How many times what this library takes, with the spread over the rounds", fontsize=11)
    axis.set_yticks(range(len(shown)), [f"{line.what}  ({line.ours})" for line in shown], fontsize=8)
    axis.invert_yaxis()
    axis.grid(alpha=0.3)
    axis.set_xlabel(f"on {loop}; right of the line, this library takes less", fontsize=8)
    axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    figure.savefig(file, dpi=110, bbox_inches="tight")
    plt.close(figure)
