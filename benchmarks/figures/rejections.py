"""Sheets on rejections: their expectation, batches of drafts, and the trade-off between rejections and bias."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from benchmarks.figures.estimates import mean_of, running_means
from benchmarks.figures.sheet import About, Curve, Panel, Sheet, exactly, sampled
from benchmarks.figures.simulate import rejection_counts, relaxed_texts
from spectr.theory.bias_frontier import AFTER, RelaxedText, decoding_opt, least_bias, relaxed_test, relaxed_text
from spectr.theory.chains import ChainPair, repeated, zipf_chain
from spectr.theory.estimate import Estimate
from spectr.theory.families import Family, bernoulli, uniform, zipf
from spectr.theory.yin import batch_rejections, drafts_worth, limit_rejections
from spectr.theory.yin_relaxed import OverAcceptingCoupling
from spectr.transport.laws import total_variation

__all__ = ["rejection_sheets"]

_LENGTH, _TEXTS, _FEWER = 50, 4000, 1000
_AT = tuple(int(n) for n in np.unique(np.geomspace(20, _TEXTS, 40).astype(int)))
_BATCHES = (1, 2, 3, 4, 5, 6, 8)
_EPSILONS = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)

_EXPECTED = About(
    "rejections",
    "Expected rejections",
    "A Markov chain over ten tokens, and a drafter whose errors differ after every token. With one draft the expected "
    "number of rejections is the sum of the expected total variations, which is the minimum for a lossless rule. "
    "With M drafts at the beginning of a round it is smaller, by the theorem on batches.",
    "dashed lines",
    f"paths, up to {_TEXTS:,} texts of {_LENGTH} tokens; the last mean is compared with theory",
    ("yin2024",),
)
_BATCH = About(
    "batches",
    "What a batch of drafts gains",
    "Rejections per token against the number of drafts at the beginning of a round. Only the first token of a round "
    "profits, so rejections do not vanish as M → ∞. The optimal coupling at the root reaches the limit with fewer "
    "drafts. If drafts have a cost, the best M is small.",
    "lines",
    f"dots, {_FEWER:,} texts of {_LENGTH} tokens each",
    ("yin2024", "sun2023spectr"),
)
_FRONT = About(
    "front",
    "Fewer rejections for a stated bias",
    "A test with fewer rejections than a lossless one has a bias at least as large as the rejections it saves. "
    "Over-acceptance with the unchanged residual (Decoding-OPT) attains this bound. Drawing from the target itself "
    "after a rejection (Decoding-UNO) rejects as often after the same text, and is biased even at ε = 0. The score of "
    "a text is the target's log-likelihood per token. A higher score is not better: the target's own texts have the "
    "dashed value.",
    "lines, and the points of the first panel",
    f"dots of the other panels, {_FEWER:,} texts of {_LENGTH} tokens each",
    ("yin2024",),
)


def _converging(pair: ChainPair, drafts: int) -> Panel:
    found = running_means(rejection_counts(pair, _LENGTH, drafts, _TEXTS, seed=40 + drafts), _AT)
    meant = batch_rejections(pair, _LENGTH, drafts)
    means, errors = (tuple(getattr(one, part) for one in found) for part in ("value", "error"))
    curves = (
        Curve("mean so far, ± 2 standard errors", _AT, means, "path", 0, errors),
        exactly("expected", _AT, lambda _: meant, "dashes", hue=1),
        sampled("all texts", _AT[-1:], found[-1:], [meant], hue=3),
    )
    name = "one draft" if drafts == 1 else f"M = {drafts} drafts"
    return Panel(name, "simulated texts", f"rejections in {_LENGTH} tokens", curves, log_x=True)


def _gain(pair: ChainPair, seed: int) -> Panel:
    def per_token(m: int, root: str = "recursive") -> float:
        return batch_rejections(pair, _LENGTH, m, root) / _LENGTH

    runs = [rejection_counts(pair, _LENGTH, m, _FEWER, seed + m) / _LENGTH for m in _BATCHES]
    line = exactly("recursive rejection at the root", _BATCHES, per_token)
    curves = (
        line,
        sampled("recursive, simulated", _BATCHES, [mean_of(run) for run in runs], line.ys),
        exactly("optimal coupling at the root", _BATCHES, lambda m: per_token(m, "optimal"), hue=1),
        exactly("limit M → ∞", _BATCHES, lambda _: limit_rejections(pair, _LENGTH) / _LENGTH, "dashes", hue=7),
    )
    return Panel(pair.name, "drafts M where a round begins", "rejections per token", curves, floor=0.0)


def _paid(pair: ChainPair, cost: float, hue: int) -> Curve:
    """Return the time of a text over M where each draft has a cost; the label names the best M."""

    def time(m: int) -> float:
        return (1 + batch_rejections(pair, _LENGTH, m)) * (1 + m * cost)

    label = f"{cost:g} a draft: best M = {drafts_worth(pair, _LENGTH, cost)}"
    return exactly(label, tuple(range(1, 13)), time, hue=hue)


def _batches() -> Sheet:
    pairs = [repeated(bernoulli()), repeated(uniform(10, 20, offset=2)), zipf_chain(10, seed=1)]
    curves = tuple(_paid(pairs[2], cost, hue) for hue, cost in enumerate((0.02, 0.05, 0.15)))
    worth = Panel(f"the M worth paying for, {pairs[2].name}", "drafts M", f"target calls for {_LENGTH} tokens", curves)
    return Sheet(_BATCH, (*(_gain(pair, 500 * n) for n, pair in enumerate(pairs, start=1)), worth))


def _random_tests(family: Family, most: float) -> Curve:
    """Return random tests that reject at most `most`, each with the best law after a rejection."""
    rng = np.random.default_rng(8)
    tests = rng.random((150, len(family.target))) ** rng.uniform(0.05, 1.0, (150, 1))
    found = decoding_opt(family.target, family.draft, torch.from_numpy(tests))
    points = sorted(zip(found.rejected.tolist(), found.bias.tolist(), strict=True))
    xs, ys = zip(*(point for point in points if point[0] <= most), strict=True)
    return Curve("other tests", xs, ys, "cloud", 7)


def _eased_points(family: Family, after: str, hue: int) -> Curve:
    tests = (relaxed_test(family.target, family.draft, epsilon) for epsilon in _EPSILONS)
    found = [AFTER[after](family.target, family.draft, test) for test in tests]
    xs, ys = (tuple(float(getattr(one, part)) for one in found) for part in ("rejected", "bias"))
    return Curve(f"Decoding-{after.upper()} over ε", xs, ys, "dots", hue)


def _attainable() -> Panel:
    family = zipf(12, noise=1.5, seed=6)
    gap = float(total_variation(family.target, family.draft))
    levels = tuple(np.linspace(0, gap, 30).tolist())
    line = exactly("least bias, TV − rejected", levels, lambda r: float(least_bias(family.target, family.draft, r)))
    eased = (_eased_points(family, after, hue) for hue, after in enumerate(AFTER, start=1))
    curves = (line, *eased, _random_tests(family, 1.5 * gap))
    return Panel("attainable points", "rejected", "bias of a token", curves, floor=0.0)


class _Eased:
    """A law to draw from after a rejection, over ε: theory and simulation."""

    def __init__(self, pair: ChainPair, after: str, hue: int) -> None:
        self.name, self.hue = f"Decoding-{after.upper()}", hue
        self.meant = [relaxed_text(pair, epsilon, after, _LENGTH) for epsilon in _EPSILONS]
        self.runs = [
            relaxed_texts(pair, OverAcceptingCoupling(epsilon, after), _LENGTH, _FEWER, seed=70 + hue + 10 * n)
            for n, epsilon in enumerate(_EPSILONS)
        ]

    def rejected(self) -> list[Curve]:
        return self._with("rejected", [mean_of(rejected) for rejected, _ in self.runs])

    def score(self) -> list[Curve]:
        return self._with("score", [mean_of(score) for _, score in self.runs])

    def _with(self, part: str, found: Sequence[Estimate]) -> list[Curve]:
        exact = tuple(float(getattr(one, part)) for one in self.meant)
        line = Curve(self.name, _EPSILONS, exact, hue=self.hue)
        return [line, sampled(f"{self.name}, simulated", _EPSILONS, found, exact, self.hue)]


def _front() -> Sheet:
    pair, ease = zipf_chain(12, noise=1.5, seed=3), "ease ε of the test"
    both = [_Eased(pair, after, hue) for hue, after in enumerate(AFTER, start=1)]
    plain: RelaxedText = both[0].meant[0]
    own = exactly("the target's own texts", _EPSILONS, lambda _: plain.lossless_score, "dashes", hue=7)
    rates = tuple(curve for one in both for curve in one.rejected())
    scores = (*(curve for one in both for curve in one.score()), own)
    return Sheet(
        _FRONT,
        (
            _attainable(),
            Panel("rejections over ε", ease, "rejections per token", rates, floor=0.0),
            Panel("the target's view of the text", ease, "log-likelihood per token", scores),
        ),
    )


def rejection_sheets() -> Iterator[Sheet]:
    """Make the sheets on the results of Yin et al."""
    pair = zipf_chain(10, seed=1)
    yield Sheet(_EXPECTED, tuple(_converging(pair, drafts) for drafts in (1, 4, 5)))
    yield _batches()
    yield _front()
