"""Sheets on acceptance: against total variation, and against the number of drafts."""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch

from benchmarks.figures.estimates import proportion
from benchmarks.figures.sheet import About, Curve, Panel, Sheet, exactly, sampled
from benchmarks.figures.simulate import coupling_hits, race_ranks
from spectr.theory.drafts import acceptance_bounds
from spectr.theory.excess import acceptance_curves
from spectr.theory.families import Family, bernoulli, uniform, zipf
from spectr.theory.race import one_child
from spectr.transport import coupling, kseq_share, optimal_acceptance
from spectr.transport.laws import overlap, total_variation

__all__ = ["acceptance_sheets"]

_KS = (1, 2, 3, 4, 6, 8, 12, 16)
_SOME = (1, 2, 4, 8, 16)
_DRAWS, _TUPLES = 10_000, 4000
_COUPLINGS = {"optimal_sorted": "optimum α_K", "kseq": "K-SEQ", "recursive": "recursive rejection"}
_GAPS = tuple(np.linspace(0, 1, 51).round(4).tolist())

_AGAINST_TV = About(
    "acceptance_tv",
    "Acceptance against total variation",
    "With one draft the best lossless test accepts with probability 1 − TV, and no lossless rule that accepts or "
    "resamples does better; each grey point is a rule that does worse. The race with one child lies between "
    "(1 − TV)/(1 + TV) and 1 − TV. With four drafts acceptance is no longer a function of TV.",
    "lines and clouds; the clouds are 60 pairs of laws over 30 tokens",
    f"dots, {_DRAWS:,} draws each",
    ("leviathan2023", "yin2024", "daliri2024", "sun2023spectr"),
)
_AGAINST_K = About(
    "acceptance_k",
    "Acceptance against the number of drafts",
    "The probability that the next token is one of K iid drafts. The optimum is computed exactly. It lies between "
    "SpecTr's bound by token and K-SEQ, which reaches at least the share 1 − (1 − 1/K)^K of it, and so more than "
    "1 − 1/e.",
    "lines",
    f"dots, {_TUPLES:,} tuples of drafts each, decided by the couplings themselves",
    ("sun2023spectr", "miao2024specinfer", "spectr"),
)


def _gap(family: Family) -> float:
    return float(total_variation(family.target, family.draft))


def _pairs(count: int) -> list[Family]:
    """Return pairs of laws similar to a model's, with drafters from excellent to useless, sorted by total variation."""
    made = [zipf(30, noise=4 * (n + 0.5) / count, temperature=0.5 + n % 3 / 2, seed=n) for n in range(count)]
    return sorted(made, key=_gap)


def _cloud(label: str, points: Sequence[tuple[float, float]], hue: int) -> Curve:
    xs, ys = zip(*sorted(points), strict=True)
    return Curve(label, xs, ys, "cloud", hue)


def _lossless_rules(pairs: Sequence[Family]) -> Curve:
    """Return random lossless rules, which accept a share of min(target, draft) and resample the rest."""
    rng, found = np.random.default_rng(5), []
    for family in pairs:
        least = torch.minimum(family.target, family.draft)
        for power in (0.1, 0.5):
            share = torch.from_numpy(rng.random(len(least)) ** power)
            found.append((_gap(family), float((share * least).sum())))
    return _cloud("other lossless rules", found, hue=7)


def _one_draft(pairs: Sequence[Family], some: Sequence[Family]) -> Panel:
    meant = [float(overlap(f.target, f.draft)) for f in some]
    hits = [proportion(coupling_hits("maximal", f, 1, _DRAWS, 3), a) for f, a in zip(some, meant, strict=True)]
    curves = (
        exactly("1 − TV", _GAPS, lambda gap: 1 - gap),
        sampled("best test, simulated", [_gap(f) for f in some], hits, meant),
        _lossless_rules(pairs),
    )
    return Panel("one draft", "total variation", "acceptance", curves, floor=0.0)


def _raced(pairs: Sequence[Family], some: Sequence[Family]) -> Panel:
    meant = [float(one_child(f.target, f.draft)) for f in some]
    wins = [proportion(race_ranks(f, _DRAWS, 4) == 0, a) for f, a in zip(some, meant, strict=True)]
    race = [(_gap(f), float(one_child(f.target, f.draft))) for f in pairs]
    four = [(_gap(f), float(optimal_acceptance(f.target, f.draft, 4))) for f in pairs]
    curves = (
        exactly("1 − TV", _GAPS, lambda gap: 1 - gap),
        exactly("(1 − TV)/(1 + TV)", _GAPS, lambda gap: (1 - gap) / (1 + gap), "dashes", hue=3),
        _cloud("race, one child", race, hue=3),
        sampled("race, simulated", [_gap(f) for f in some], wins, meant, hue=3),
        _cloud("optimum of four iid drafts", four, hue=2),
    )
    return Panel("the race, and four drafts", "total variation", "acceptance", curves, floor=0.0)


def _settled(name: str, family: Family, hue: int) -> list[Curve]:
    """Return the acceptance of a coupling, by its closed form and by simulation."""
    made, label = coupling(name), _COUPLINGS[name]
    line = exactly(label, _KS, lambda k: made.acceptance(family.target, family.draft, k), hue=hue)
    meant = [line.ys[_KS.index(k)] for k in _SOME]
    hits = [coupling_hits(name, family, k, _TUPLES, 100 * hue + k) for k in _SOME]
    found = [proportion(hit, a) for hit, a in zip(hits, meant, strict=True)]
    return [line, sampled(f"{label}, simulated", _SOME, found, meant, hue)]


def _against_k(family: Family) -> Panel:
    bounds = {k: acceptance_bounds(family.target, family.draft, k) for k in _KS}
    curves = [
        exactly("SpecTr's bound by token", _KS, lambda k: float(bounds[k].by_token), "dotted", hue=7),
        exactly("1 − TV, or K-SEQ's share of Σ min(p, Kq)", _KS, lambda k: float(bounds[k].below), "dashes", hue=7),
    ]
    for hue, name in enumerate(_COUPLINGS):
        curves += _settled(name, family, hue)
    return Panel(family.note, "drafts K", "acceptance", tuple(curves), log_x=True, floor=0.0)


def _stacked(laws: Sequence[torch.Tensor]) -> torch.Tensor:
    """Stack laws over vocabularies of different sizes, padded with tokens of probability 0."""
    return torch.nn.utils.rnn.pad_sequence(list(laws), batch_first=True)


def _shares() -> Panel:
    """Draw K-SEQ's share of the optimum, the worst over many pairs."""
    pairs = _pairs(90) + [uniform(4, 4 * k, offset=n) for k in (2, 4, 8) for n in range(3)]
    target, draft = (_stacked([getattr(family, name) for family in pairs]) for name in ("target", "draft"))
    found = acceptance_curves(target, draft, max(_KS))
    worst = (found["kseq"] / found["optimal"]).amin(0)
    curves = (
        exactly("worst of 99 pairs", _KS, lambda k: worst[k - 1], hue=1),
        exactly("1 − (1 − 1/K)^K", _KS, kseq_share, "dashes", hue=7),
        exactly("1 − 1/e", _KS, lambda _: 1 - math.exp(-1), "dotted", hue=7),
    )
    return Panel("K-SEQ's share of the optimum", "drafts K", "share", curves, log_x=True, floor=0.0)


def acceptance_sheets() -> Iterator[Sheet]:
    """Make the sheets on the results of Leviathan et al., Daliri et al. and SpecTr."""
    pairs, some = _pairs(60), _pairs(12)
    yield Sheet(_AGAINST_TV, (_one_draft(pairs, some), _raced(pairs, some)))
    families = (bernoulli(), uniform(), zipf(60, seed=2))
    yield Sheet(_AGAINST_K, (*map(_against_k, families), _shares()))
