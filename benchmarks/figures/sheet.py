"""What a figure says, as numbers: curves and surfaces, each exact or with a standard error. Draws nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from spectr.theory.estimate import Estimate

__all__ = ["About", "Curve", "Look", "Panel", "Sheet", "Surface", "exactly", "sampled"]

Look = Literal["line", "dashes", "dotted", "dots", "cloud", "path"]
"""Lines; dots with two standard errors; a cloud of faint points; a path with a band of two standard errors."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over x. Sampled ones have errors, and know what they should be where a theorem says it."""

    label: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    look: Look = "line"
    hue: int = 0  # curves of one hue belong together
    errors: tuple[float, ...] | None = None  # standard errors; None: exact
    exact: tuple[float, ...] | None = None  # what sampled values should be

    def deviations(self) -> list[float]:
        """How many standard errors each sampled value is off."""
        if self.errors is None or self.exact is None:
            return []
        rows = zip(self.ys, self.errors, self.exact, strict=True)
        return [Estimate(y, error).off(meant) for y, error, meant in rows]


@dataclass(frozen=True, slots=True)
class Panel:
    """Curves over one pair of axes."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = False
    floor: float | None = None  # where the y axis begins


@dataclass(frozen=True, slots=True)
class Surface:
    """A value over two variables, rows over `ys`, with the heights at which lines are drawn and what they are
    called."""

    title: str
    x: str
    y: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    values: tuple[tuple[float, ...], ...]
    heights: Mapping[float, str]
    edge: Curve | None = None  # drawn over it
    log_y: bool = False


@dataclass(frozen=True, slots=True)
class About:
    """What a figure shows and where it comes from."""

    name: str  # of its files
    title: str
    says: str
    exact: str  # what in it is exact
    simulated: str  # what is simulated, and how much of it
    papers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sheet:
    """One figure."""

    about: About
    panels: tuple[Panel | Surface, ...]

    @property
    def name(self) -> str:
        """The name of its files."""
        return self.about.name

    def deviations(self) -> list[float]:
        """How far every sampled value is from its theorem, in standard errors."""
        curves = (curve for panel in self.panels if isinstance(panel, Panel) for curve in panel.curves)
        return [value for curve in curves for value in curve.deviations()]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        panels = [asdict(panel) for panel in self.panels]
        return {**asdict(self.about), "panels": panels, "deviations": [round(off, 4) for off in self.deviations()]}


def exactly(label: str, xs: Sequence[float], of: Callable[[Any], Any], look: Look = "line", hue: int = 0) -> Curve:
    """A curve of exact values, each a number or a tensor with one."""
    return Curve(label, tuple(xs), tuple(float(of(x)) for x in xs), look, hue)


def sampled(
    label: str, xs: Sequence[float], found: Sequence[Estimate], exact: Sequence[float] | None = None, hue: int = 0
) -> Curve:
    """A curve of estimates."""
    errors = tuple(0.0 if math.isnan(one.error) else one.error for one in found)
    meant = None if exact is None else tuple(exact)
    return Curve(label, tuple(xs), tuple(one.value for one in found), "dots", hue, errors, meant)
