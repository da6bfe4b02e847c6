"""Draws sheets as figures. Computes nothing. Needs matplotlib, which is imported when a sheet is drawn."""

from collections.abc import Callable, Mapping
from io import BytesIO
from typing import TYPE_CHECKING, Any

from benchmarks.figures.sheet import Curve, Look, Panel, Sheet, Surface

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_sheet", "rendered"]

_HUES = ("#0072b2", "#d1343f", "#e0a100", "#8a5cc7", "#12a5a0", "#c06a2b", "#3a7d34", "#8c8c8c")


def _line(axes: "Axes", curve: Curve, colour: str, dashes: str) -> None:
    axes.plot(curve.xs, curve.ys, dashes, color=colour, linewidth=1.7, label=curve.label, zorder=3)


def _dots(axes: "Axes", curve: Curve, colour: str) -> None:
    bars = None if curve.errors is None else [2 * error for error in curve.errors]
    axes.errorbar(
        curve.xs, curve.ys, yerr=bars, fmt="o", color=colour, markerfacecolor="white", markersize=4.5,
        elinewidth=1.2, capsize=2, label=curve.label, zorder=5,
    )  # fmt: skip


def _cloud(axes: "Axes", curve: Curve, colour: str) -> None:
    axes.scatter(curve.xs, curve.ys, s=11, color=colour, alpha=0.45, linewidths=0, label=curve.label, zorder=2)


def _path(axes: "Axes", curve: Curve, colour: str) -> None:
    errors = curve.errors or (0.0,) * len(curve.ys)
    low, high = ([y + side * e for y, e in zip(curve.ys, errors, strict=True)] for side in (-2, 2))
    axes.plot(curve.xs, curve.ys, color=colour, linewidth=1.5, label=curve.label, zorder=3)
    axes.fill_between(curve.xs, low, high, color=colour, alpha=0.15, linewidth=0, zorder=1)


_DRAW: Mapping[Look, Callable[["Axes", Curve, str], None]] = {
    "line": lambda axes, curve, colour: _line(axes, curve, colour, "-"),
    "dashes": lambda axes, curve, colour: _line(axes, curve, colour, "--"),
    "dotted": lambda axes, curve, colour: _line(axes, curve, colour, ":"),
    "dots": _dots,
    "cloud": _cloud,
    "path": _path,
}


def _panel(axes: "Axes", panel: Panel) -> None:
    for curve in panel.curves:
        _DRAW[curve.look](axes, curve, _HUES[curve.hue])
    if panel.log_x:
        _log_ticks(axes, panel)
    if panel.log_y:
        axes.set_yscale("log")
    if panel.floor is not None:
        axes.set_ylim(bottom=panel.floor)
    axes.grid(color="#ececec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    _legend(axes)


def _legend(axes: "Axes") -> None:
    """Put the legend below the panel, where it covers no curve."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.15), ncols=2, frameon=False, fontsize=7.5, handlelength=1.8)


def _log_ticks(axes: "Axes", panel: Panel) -> None:
    """Label powers of two with plain numbers, or powers of ten where the axis is long."""
    most = max(max(curve.xs) for curve in panel.curves)
    base = 2 if most <= 128 else 10
    axes.set_xscale("log", base=base)
    ticks = [base**n for n in range(20) if min(min(curve.xs) for curve in panel.curves) <= base**n <= most]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()


def _surface(axes: "Axes", surface: Surface) -> None:
    from matplotlib.colors import BoundaryNorm

    heights = list(surface.heights)
    shades = [min(map(min, surface.values)) - 1, *heights, max(map(max, surface.values)) + 1]
    grid = (surface.xs, surface.ys, surface.values)
    axes.contourf(*grid, levels=shades, cmap="YlGnBu", norm=BoundaryNorm(shades, 256), alpha=0.75)
    lines = axes.contour(*grid, levels=heights, colors="#222222", linewidths=0.8)
    axes.clabel(lines, [height for height in heights if surface.heights[height]], fmt=surface.heights, fontsize=8)
    if surface.log_y:
        axes.set_yscale("log")
    if surface.edge is not None:
        _DRAW[surface.edge.look](axes, surface.edge, _HUES[surface.edge.hue])
        _legend(axes)
    axes.spines[["top", "right"]].set_visible(False)


def _across(count: int) -> int:
    """Return the number of panels in a row."""
    return count if count <= 3 else 2


def draw_sheet(sheet: Sheet) -> "Figure":
    """Draw all panels of a sheet."""
    from matplotlib.figure import Figure

    across = _across(len(sheet.panels))
    down = -(-len(sheet.panels) // across)
    figure = Figure(figsize=(5.2 * across, 0.5 + 4.6 * down), dpi=130, layout="constrained")
    figure.suptitle(sheet.about.title, fontsize=13, fontweight="bold")
    places = figure.subplots(down, across, squeeze=False).flatten()
    for axes, panel in zip(places, sheet.panels, strict=False):
        axes.set_title(panel.title, loc="left", fontsize=10)
        axes.set_xlabel(panel.x, fontsize=9)
        axes.set_ylabel(panel.y, fontsize=9)
        axes.tick_params(labelsize=8)
        _panel(axes, panel) if isinstance(panel, Panel) else _surface(axes, panel)
    for axes in places[len(sheet.panels) :]:
        axes.set_visible(False)
    return figure


def rendered(figure: "Figure", kind: str) -> bytes:
    """Return a figure as the bytes of a PNG or SVG file; equal figures give equal bytes."""
    import matplotlib

    quiet: dict[str, Any] = {"Date": None} if kind == "svg" else {"Software": None}
    sink = BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "spectr"}):
        figure.savefig(sink, format=kind, facecolor="white", metadata=quiet)
    return sink.getvalue()
