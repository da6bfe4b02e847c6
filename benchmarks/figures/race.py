"""Sheets on the race: its acceptance against the optimum, the rank of the accepted child, and tokens per tree."""

from collections.abc import Iterator, Sequence

from benchmarks.figures.estimates import mean_of, proportion
from benchmarks.figures.sheet import About, Curve, Panel, Sheet, exactly, sampled
from benchmarks.figures.simulate import race_ranks, tree_tokens
from spectr.draft.plan import Plan
from spectr.theory.estimate import Estimate
from spectr.theory.families import Family, zipf
from spectr.theory.race import best_static_tokens, entropy, entropy_bound, rank_bound, rank_law
from spectr.transport import optimal_acceptance
from spectr.trees import best_shape

__all__ = ["race_sheets"]

_KS = (1, 2, 3, 4, 6, 8, 12, 16)
_RACES = 20_000
_NODES = (1, 2, 4, 8, 16, 32, 64)
_CALLS = 1200  # calls with small trees; fewer with large ones, so that all take about the same time
_BEAMS = {1: (1, 1), 2: (2, 2), 4: (2, 4), 8: (4, 5), 16: (6, 6), 32: (8, 8), 64: (16, 10)}
"""Drafts of a pruned tree → nodes expanded at each depth, and depths."""

_LAWS = (zipf(48, exponent=2.5, noise=1.5, seed=1), zipf(48, noise=0.5, seed=4))

_CHILDREN = About(
    "race",
    "The race: children and their ranks",
    "The children are the first to arrive in the drafter's race, which shares its noise with the target's race. The "
    "acceptance has a closed form for one child and is an integral for more. Because the drafts depend on the noise, "
    "the race exceeds the optimum of independent drafts on peaked laws with many children.",
    "lines",
    f"dots, {_RACES:,} races; the dots of a panel share them",
    ("daliri2024", "kobus2025", "spectr"),
)
_BOUND = About(
    "race_bound",
    "Tokens per call of a tree with k drafts",
    "A verdict on k drafts has k + 1 possible outcomes, so it carries at most log(k + 1) nats of information, and "
    "every accepted draft uses some of them, as the rank law determines. No tree of the race that is chosen without "
    "knowledge of the noise can exceed the dashed line. A tree pruned by the noise is not subject to this bound. It "
    "exceeds the bound with a poor drafter (left); with a good drafter the best static tree gives more (right). "
    "Independent drafts with the optimal coupling are shown for comparison.",
    "lines; the pair of laws is the same after every text, so that ranks are independent, as the bound requires",
    f"dots, {_CALLS:,} calls each, fewer from 16 drafts on; only the static tree is compared with theory",
    ("kobus2025", "spectr"),
)


def _children(family: Family, seed: int) -> Panel:
    ranks = rank_law(family.target, family.draft)
    meant, places = [float(ranks[:k].sum()) for k in _KS], race_ranks(family, _RACES, seed)
    found = [proportion(places < k, a) for k, a in zip(_KS, meant, strict=True)]
    curves = (
        Curve("race", _KS, tuple(meant), hue=3),
        sampled("race, simulated", _KS, found, meant, hue=3),
        exactly("optimum of iid drafts", _KS, lambda k: optimal_acceptance(family.target, family.draft, k), hue=2),
    )
    return Panel(family.note, "children K", "acceptance", curves, log_x=True, floor=0.0)


def _ranked(family: Family, hue: int) -> list[Curve]:
    """Return the rank law, for the ranks that are frequent enough for a standard error."""
    ranks, places = rank_law(family.target, family.draft), race_ranks(family, _RACES, 9)
    shown = [r for r in range(10) if float(ranks[r]) * _RACES > 20]
    meant, at = tuple(float(ranks[r]) for r in shown), tuple(r + 1 for r in shown)
    found = [proportion(places == r, a) for r, a in zip(shown, meant, strict=True)]
    line = Curve(f"{family.name}, H = {entropy(ranks):.2f} nats", at, meant, hue=hue)
    return [line, sampled(f"{family.name}, simulated", at, found, meant, hue)]


def _race() -> Sheet:
    families = [zipf(48, seed=3), zipf(64, temperature=0.5, seed=2)]
    curves = tuple(curve for hue, family in enumerate(families) for curve in _ranked(family, hue))
    ranks = Panel("which child is accepted", "place among the children", "chance", curves, log_y=True)
    return Sheet(_CHILDREN, (*(_children(family, 5 + n) for n, family in enumerate(families)), ranks))


def _calls(nodes: int) -> int:
    return min(_CALLS, 16_000 // nodes)


def _grown(family: Family, ranks: Sequence[float], nodes: int) -> Estimate:
    """Simulate the best static tree: draw it and verify it."""
    shape = best_shape([ranks], nodes + 1).shape
    return mean_of(tree_tokens(family, Plan("race", tree=shape), "race", _calls(nodes), 60 + nodes))


def _pruned(family: Family, nodes: int) -> Estimate:
    beam, depth = _BEAMS[nodes]
    return mean_of(tree_tokens(family, Plan("race", beam, depth, nodes + 1), "race", _calls(nodes), 160 + nodes))


def _iid(family: Family, nodes: int) -> Estimate:
    """Simulate the optimal coupling on chains of the best length, which is chosen in a separate run."""
    shapes = [(max(1, nodes // length), length) for length in (1, 2, 3, 4, 6) if length <= nodes]

    def run(shape: tuple[int, int], seed: int) -> Estimate:
        return mean_of(tree_tokens(family, Plan("iid", *shape), "optimal", _calls(nodes) // 2, seed))

    return run(max(shapes, key=lambda shape: run(shape, 260 + nodes).value), 360 + nodes)


def _trees(family: Family) -> Panel:
    law = rank_law(family.target, family.draft)
    ranks = sorted((value for value in law.tolist() if value > 0), reverse=True)
    best = exactly("best static tree", _NODES, lambda k: best_static_tokens(law, k))
    curves = (
        exactly("(log V + log(k + 1)) / H", _NODES, lambda k: entropy_bound(law, k, len(law)), "dotted", hue=7),
        exactly("bound 1 + κ log(k + 1)", _NODES, lambda k: rank_bound(law, k), "dashes", hue=7),
        best,
        sampled("best static tree, simulated", _NODES, [_grown(family, ranks, k) for k in _NODES], best.ys),
        sampled("pruned by the noise, simulated", _NODES, [_pruned(family, k) for k in _NODES], hue=3),
        sampled("optimal coupling, iid chains, simulated", _NODES, [_iid(family, k) for k in _NODES], hue=2),
    )
    return Panel(family.note, "drafts k in the tree", "tokens per call", curves, log_x=True, floor=0.0)


def race_sheets() -> Iterator[Sheet]:
    """Make the sheets on the results of Daliri et al., Kobus and Gündüz, and our own."""
    yield _race()
    yield Sheet(_BOUND, tuple(_trees(family) for family in _LAWS))
