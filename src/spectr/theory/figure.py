"""Draws comparisons as one figure: a panel per family with acceptance by K, and a key with the values at the largest K.

It requires matplotlib, which is imported when a figure is drawn.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectr.errors import ArgumentError, MissingExtraError
from spectr.theory.compare import COLUMNS, Comparison

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["FORMATS", "check_figure", "check_matplotlib", "draw", "save_figure"]

FORMATS = (".png", ".svg", ".pdf")
_STYLES: dict[str, dict[str, Any]] = {
    # a broad line below the others, so that curves that reach the optimum stay visible
    "optimum": {"color": "#f2c14e", "linewidth": 6.0, "zorder": 2, "marker": ""},
    "kseq": {"color": "#0072b2", "marker": "s"},
    "kseq_plus": {"color": "#12a5a0", "marker": "D"},
    "recursive": {"color": "#8a5cc7", "marker": "v"},
    "race": {"color": "#d1343f", "marker": "o", "linewidth": 2.2, "zorder": 4},
    "hybrid": {"color": "#2b2b2b", "linestyle": "--", "marker": ""},
    "top_k": {"color": "#c06a2b", "linestyle": "-.", "marker": "^"},
    "one_draft": {"color": "#8c8c8c", "linestyle": ":", "marker": ""},
}


def check_figure(path: Path) -> None:
    """Refuse a figure that cannot be written, before any work is done."""
    if path.suffix.lower() not in FORMATS:
        raise ArgumentError(f"a figure must be a file named {', '.join(f'*{end}' for end in FORMATS)}, got {path.name}")
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    check_matplotlib()


def check_matplotlib() -> None:
    """Raise if matplotlib is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise MissingExtraError("matplotlib", "plot", "a figure") from None


def _panel(axes: "Axes", found: Comparison) -> None:
    """Draw the curves of one family, and a key that lists the highest curve first."""
    ends = {name: values[-1] for name, values in found.acceptance.items() if values[-1] is not None}
    for name, end in sorted(ends.items(), key=lambda one: -one[1]):
        heights = [float("nan") if value is None else value for value in found.acceptance[name]]
        style = {"linewidth": 1.6, "markersize": 4.5, "zorder": 3, "clip_on": False, **_STYLES[name]}
        if len(found.ks) == 1:
            style["marker"] = style["marker"] or "_"
        axes.plot(found.ks, heights, label=f"{end:.3f}  {COLUMNS[name].label}", **style)
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False, fontsize=8)
    axes.set_title(found.family.name, loc="left", fontsize=11, fontweight="bold", pad=20)
    axes.text(0, 1.035, found.family.note, transform=axes.transAxes, fontsize=8, color="#555555")
    if len(found.ks) > 1:
        axes.set_xscale("log", base=2)
    axes.set_xticks(found.ks, [str(k) for k in found.ks])
    axes.minorticks_off()
    axes.set_ylim(0, 1.0)
    axes.grid(axis="y", color="#e6e6e6", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_xlabel("drafts K")
    axes.set_ylabel("acceptance")


def draw(comparisons: Sequence[Comparison]) -> "Figure":
    """Draw all comparisons, two panels per row."""
    from matplotlib.figure import Figure

    across = min(len(comparisons), 2)
    down = -(-len(comparisons) // across)
    figure = Figure(figsize=(6.1 * across, 0.6 + 3.7 * down), dpi=150, layout="constrained")
    panels = figure.subplots(down, across, squeeze=False).flatten()
    for axes, found in zip(panels, comparisons, strict=False):
        _panel(axes, found)
    for axes in panels[len(comparisons) :]:
        axes.set_visible(False)
    figure.suptitle("Probability that the next token is one of K drafts; all rules shown are lossless", fontsize=11)
    return figure


def save_figure(comparisons: Sequence[Comparison], path: Path) -> None:
    """Draw into a file; its suffix determines the format."""
    check_figure(path)
    try:
        draw(comparisons).savefig(path, facecolor="white")
    except OSError as error:
        raise ArgumentError(f"cannot write {path}: {error.strerror or error}") from None
