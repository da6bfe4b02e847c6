"""Comparisons as one figure: a panel per family, acceptance against K, every curve named where it ends.

Needs matplotlib, which is imported when a figure is drawn. Draws what it is given and computes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spectr.errors import ArgumentError, MissingExtraError
from spectr.theory.compare import COLUMNS, Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "check_figure", "check_matplotlib", "draw", "save_figure", "spread"]

FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True, slots=True)
class Pen:
    """How a column is drawn. The optimum lies broad under the others, so that curves that reach it stay visible."""

    colour: str
    width: float = 1.6
    dashes: str = "-"
    marker: str = "o"
    size: float = 4.5
    height: int = 3  # higher ones are drawn over lower ones


_PENS = {
    "optimum": Pen("#f2c14e", width=6.0, marker="", height=2),
    "kseq": Pen("#0072b2", marker="s"),
    "kseq_plus": Pen("#12a5a0", marker="D"),
    "recursive": Pen("#8a5cc7", marker="v", size=5.0),
    "race": Pen("#d1343f", width=2.2, size=5.0, height=4),
    "hybrid": Pen("#2b2b2b", dashes="--", marker=""),
    "top_k": Pen("#c06a2b", dashes="-.", marker="^", size=5.0),
    "one_draft": Pen("#8c8c8c", dashes=":", marker=""),
}


def check_figure(path: Path) -> None:
    """Refuse before the work is done what could not be drawn after it."""
    if path.suffix.lower() not in FORMATS:
        raise ArgumentError(f"a figure must be a file named {', '.join(f'*{end}' for end in FORMATS)}, got {path.name}")
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    check_matplotlib()


def check_matplotlib() -> None:
    """Refuse where nothing can be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "a figure") from None


def spread(heights: Sequence[float], gap: float, top: float) -> list[float]:
    """Heights for labels, near the given ones, at least `gap` apart, none above `top`; in the order given.

    >>> spread([0.5, 1.0, 1.0, 0.98], gap=0.25, top=1.0)
    [0.25, 1.0, 0.75, 0.5]
    """
    order = sorted(range(len(heights)), key=lambda i: -heights[i])
    placed, ceiling = [0.0] * len(heights), top
    for i in order:
        placed[i] = min(heights[i], ceiling)
        ceiling = placed[i] - gap
    floor = 0.0
    for i in reversed(order):  # what fell below the axis is lifted, and pushes up what is above it
        placed[i] = max(placed[i], floor)
        floor = placed[i] + gap
    return placed


def _curves(axes: "Axes", found: Comparison) -> None:
    for name, values in found.acceptance.items():
        pen = _PENS[name]
        heights = [float("nan") if value is None else value for value in values]
        axes.plot(
            found.ks,
            heights,
            pen.dashes,
            color=pen.colour,
            linewidth=pen.width,
            marker=pen.marker or ("" if len(found.ks) > 1 else "_"),
            markersize=pen.size,
            solid_capstyle="round",
            label=COLUMNS[name].label,
            clip_on=False,
            zorder=pen.height,
        )


def _names(axes: "Axes", found: Comparison) -> None:
    """Name and last value of every curve, right of the panel, with a line from where the curve ends."""
    ends = {name: values[-1] for name, values in found.acceptance.items() if values[-1] is not None}
    heights = spread(list(ends.values()), gap=0.062, top=1.01)
    for (name, end), height in zip(ends.items(), heights, strict=True):
        colour = _PENS[name].colour if name != "optimum" else "#a87b0c"  # the broad pen is too pale for letters
        axes.plot(
            [1.012, 1.05], [end, height], transform=axes.get_yaxis_transform(), color=colour, lw=0.7, clip_on=False
        )
        text = f"{end:.3f}  {COLUMNS[name].label}"
        axes.text(1.06, height, text, transform=axes.get_yaxis_transform(), color=colour, fontsize=8, va="center")


def _panel(axes: "Axes", found: Comparison) -> None:
    _curves(axes, found)
    _names(axes, found)
    family = found.family
    axes.set_title(family.name, loc="left", fontsize=11, fontweight="bold", pad=20)
    axes.text(0, 1.035, family.note, transform=axes.transAxes, fontsize=8, color="#555555")
    if len(found.ks) > 1:
        axes.set_xscale("log", base=2)
        axes.set_xlim(min(found.ks), max(found.ks))
    axes.set_xticks(found.ks, [str(k) for k in found.ks])
    axes.minorticks_off()
    axes.set_ylim(0, 1.0)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("drafts K")
    axes.set_ylabel("acceptance")


def draw(comparisons: Sequence[Comparison]) -> "Figure":
    """All comparisons, two panels in a row."""
    from matplotlib.figure import Figure

    across = min(len(comparisons), 2)
    down = -(-len(comparisons) // across)
    wide, head = (8, 0.65) if across == 2 else (4, 0.82)  # entries in a line of the legend, inches above the panels
    tall = head + 0.25 + 3.7 * down
    figure = Figure(figsize=(6.1 * across, tall), dpi=150)
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for axes, found in zip(panels, comparisons, strict=False):
        _panel(axes, found)
    for axes in panels[len(comparisons) :]:
        axes.set_visible(False)
    handles, labels = panels[0].get_legend_handles_labels()
    title = "Chance that the next token is one of K drafts; every rule here is lossless"
    figure.text(0.5, 1 - 0.12 / tall, title, ha="center", va="top", fontsize=11)
    figure.legend(
        handles,
        labels,
        loc="upper center",
        bbox_to_anchor=(0.5, 1 - 0.32 / tall),
        ncols=wide,
        frameon=False,
        fontsize=9,
        handlelength=2.2,
    )
    figure.tight_layout(rect=(0, 0, 0.99, 1 - head / tall), w_pad=2.5, h_pad=2.0)
    return figure


def save_figure(comparisons: Sequence[Comparison], path: Path) -> None:
    """Draw into a file; its ending is the format."""
    check_figure(path)
    try:
        draw(comparisons).savefig(path, facecolor="white")
    except OSError as error:
        raise ArgumentError(f"cannot write {path}: {error.strerror or error}") from None
