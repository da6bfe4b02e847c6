"""The numbers of a figure: curves and surfaces, exact or with standard errors. Draws nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from spectr.theory.estimate import Estimate

__all__ = ["About", "Curve", "Look", "Panel", "Sheet", "Surface", "exactly", "sampled"]

Look = Literal["line", "dashes", "dotted", "dots", "cloud", "path"]
"""Kinds of lines; dots with bars of two standard errors; a cloud of faint points; a path with a band of two."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over x. A sampled curve has standard errors, and the exact values where theory gives them."""

    label: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    look: Look = "line"
    hue: int = 0  # curves that belong together share a hue
    errors: tuple[float, ...] | None = None  # standard errors; None for exact values
    exact: tuple[float, ...] | None = None  # the theoretical values of sampled points

    def deviations(self) -> list[float]:
        """Return the deviation of each sampled value from theory, in standard errors."""
        if self.errors is None or self.exact is None:
            return []
        rows = zip(self.ys, self.errors, self.exact, strict=True)
        return [Estimate(y, error).off(meant) for y, error, meant in rows]


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves on one pair of axes."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = False
    floor: float | None = None  # where the y axis begins


@dataclass(frozen=True, slots=True)
class Surface:
    """A value over two variables, one row for each of `ys`, with the heights and labels of its contour lines."""

    title: str
    x: str
    y: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    heights: Mapping[float, str]
    edge: Curve | None = None  # a curve drawn on top
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class About:
    """What a figure shows, and its sources."""

    name: str  # the name of its files
    title: str
    says: str
    exact: str  # which parts are exact
    simulated: str  # which parts are simulated, and with how many samples
    papers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """One figure."""

    about: About
    panels: tuple[Panel | Surface, ...]

    @property
    def name(self) -> str:
        """The name of the figure's files."""
        return self.about.name

    def deviations(self) -> list[float]:
        """Return the deviation of every sampled value from theory, in standard errors."""
        curves = (curve for panel in self.panels if isinstance(panel, Panel) for curve in panel.curves)
        return [value for curve in curves for value in curve.deviations()]

    def as_data(self) -> dict[str, Any]:
        """Return the sheet as JSON data."""
        panels = [asdict(panel) for panel in self.panels]
        return {**asdict(self.about), "panels": panels, "deviations": [round(off, 4) for off in self.deviations()]}


def exactly(label: str, xs: Sequence[float], of: Callable[[Any], Any], look: Look = "line", hue: int = 0) -> Curve:
    """Make a curve of exact values; `of` returns a number or a tensor with one element."""
    return Curve(label, tuple(xs), tuple(float(of(x)) for x in xs), look, hue)


def sampled(
    label: str, xs: Sequence[float], found: Sequence[Estimate], exact: Sequence[float] | None = None, hue: int = 0
) -> Curve:
    """Make a curve of estimates."""
    errors = tuple(0.0 if math.isnan(one.error) else one.error for one in found)
    meant = None if exact is None else tuple(exact)
    return Curve(label, tuple(xs), tuple(one.value for one in found), "dots", hue, errors, meant)
