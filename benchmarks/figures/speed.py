"""Sheets on speed: the speed-up over acceptance and cost, and the time of a text."""

from collections.abc import Iterator

import numpy as np

from benchmarks.figures.estimates import deviation_of, mean_of
from benchmarks.figures.sheet import About, Curve, Panel, Sheet, Surface, exactly, sampled
from benchmarks.figures.simulate import call_counts
from spectr.theory.chen import TextTime, trade_off
from spectr.theory.estimate import Estimate
from spectr.theory.leviathan import Prediction, operations, predict, speedup

__all__ = ["speed_sheets"]

_ALPHAS = (0.6, 0.8, 0.9)
_LENGTHS = (1, 2, 3, 4, 6, 8, 12, 16)
_FINE = tuple(range(1, 17))
_COST = 0.05
_CALLS = 20_000
_TOKENS, _TEXTS = 128, 2000
_GAMMA = "length of a draft γ"

_SPEEDUP = About(
    "speedup",
    "Speed-up over acceptance and cost",
    "The time of plain decoding over that of speculative decoding with the best draft length. Speculation pays off "
    "exactly where α > c. The third panel is a section through the surface at c = 0.05.",
    "surfaces and lines",
    f"dots, {_CALLS:,} calls each",
    ("leviathan2023",),
)
_TIME = About(
    "time",
    "Longer drafts against more scoring calls",
    f"The time of a text of {_TOKENS} tokens, in target calls, at c = {_COST:g}. Longer drafts need fewer scoring "
    "calls, but each call costs more, so the mean has a minimum. The standard deviation has no minimum there: longer "
    "drafts make the time less predictable. A drafter that saves time may still multiply the arithmetic.",
    "lines; mean and standard deviation by recursion over the remaining tokens, and operations",
    f"dots, {_TEXTS:,} texts each",
    ("chen2023", "leviathan2023"),
)


def _rows(best: list[list[Prediction]], part: str) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(float(getattr(one, part)) for one in row) for row in best)


def _surfaces() -> tuple[Surface, Surface]:
    """Return the surfaces of the best speed-up and the best γ, with the line α = c beyond which nothing is gained."""
    alphas = tuple(np.linspace(0.01, 0.97, 97).round(4).tolist())
    costs = tuple(np.geomspace(0.01, 1.0, 81).round(6).tolist())
    best = [[predict(alpha, cost) for alpha in alphas] for cost in costs]
    edge = exactly("α = c: nothing to gain above", alphas, float, "dashes", hue=1)
    axes = ("acceptance α", "cost of a draft c, in target calls", alphas, costs)
    factors = {height: f"{height:g}" for height in (1.1, 1.25, 1.5, 2, 3, 4, 6)}
    lengths = {0.5: "", 1.5: "2", 3.5: "4", 7.5: "8", 15.5: "16"}
    return (
        Surface("factor with the best γ", *axes, _rows(best, "speedup"), factors, edge, log_y=True),
        Surface("the best γ", *axes, _rows(best, "gamma"), lengths, edge, log_y=True),
    )


def _factor(alpha: float, gamma: int) -> Estimate:
    """Estimate the speed-up from simulated calls."""
    rng = np.random.default_rng([int(100 * alpha), gamma])
    tokens = 1 + np.cumprod(rng.random((_CALLS, gamma)) < alpha, -1).sum(-1)
    return mean_of(tokens / (1 + gamma * _COST))


def _factors(alpha: float, hue: int) -> list[Curve]:
    """Return the theoretical and the simulated speed-up over γ."""
    meant = [speedup(alpha, _COST, gamma) for gamma in _LENGTHS]
    line = exactly(f"α = {alpha:g}", _FINE, lambda gamma: speedup(alpha, _COST, gamma), hue=hue)
    found = [_factor(alpha, gamma) for gamma in _LENGTHS]
    return [line, sampled(f"α = {alpha:g}, simulated", _LENGTHS, found, meant, hue)]


def _speedup() -> Sheet:
    curves = [curve for hue, alpha in enumerate(_ALPHAS) for curve in _factors(alpha, hue)]
    cut = Panel(f"factor over γ, c = {_COST:g}", _GAMMA, "factor", tuple(curves), floor=0.0)
    return Sheet(_SPEEDUP, (*_surfaces(), cut))


def _arithmetic(alpha: float, hue: int) -> Curve:
    return exactly(f"α = {alpha:g}", _FINE, lambda gamma: operations(alpha, _COST, gamma), hue=hue)


class _Timed:
    """The times of texts at one acceptance rate: theory for every draft length, simulation for some."""

    def __init__(self, alpha: float, hue: int) -> None:
        self.name, self.hue = f"α = {alpha:g}", hue
        self.times = {time.gamma: time for time in trade_off(alpha, _COST, _TOKENS, _FINE)}
        self.runs = [self._run(self.times[gamma]) for gamma in _LENGTHS]

    def _run(self, time: TextTime) -> list[float]:
        seed = 100 * self.hue + time.gamma
        counts: list[float] = (time.per_call * call_counts(time.acceptance, _TOKENS, _TEXTS, seed)).tolist()
        return counts

    def means(self) -> list[Curve]:
        line = exactly(self.name, _FINE, lambda gamma: self.times[gamma].mean, hue=self.hue)
        return self._with(line, [mean_of(run) for run in self.runs])

    def deviations(self) -> list[Curve]:
        line = exactly(self.name, _FINE, lambda gamma: self.times[gamma].deviation, hue=self.hue)
        return self._with(line, [deviation_of(run) for run in self.runs])

    def _with(self, line: Curve, found: list[Estimate]) -> list[Curve]:
        meant = [line.ys[gamma - 1] for gamma in _LENGTHS]
        return [line, sampled(f"{self.name}, simulated", _LENGTHS, found, meant, self.hue)]


def _time() -> Sheet:
    timed = [_Timed(alpha, hue) for hue, alpha in enumerate(_ALPHAS)]
    means = tuple(curve for one in timed for curve in one.means())
    deviations = tuple(curve for one in timed for curve in one.deviations())
    counts = tuple(_arithmetic(alpha, hue) for hue, alpha in enumerate(_ALPHAS))
    return Sheet(
        _TIME,
        (
            Panel("mean time of a text", _GAMMA, "target calls", means),
            Panel("standard deviation of it", _GAMMA, "target calls", deviations, floor=0.0),
            Panel(f"operations over plain decoding's, ĉ = {_COST:g}", _GAMMA, "factor", counts, floor=0.0),
        ),
    )


def speed_sheets() -> Iterator[Sheet]:
    """Make the sheets on the results of Leviathan et al. and Chen et al."""
    yield _speedup()
    yield _time()
