"""Expected rejections (Yin et al. 2024) on a pair of Markov chains, for one draft and for a batch of them. Exact.

A text has a fixed number of tokens, a draft is always longer (so there is no bonus), and a rejection is a token that is
drawn from a residual. A batch is M drafts at the beginning of a round, which starts at the beginning of the text and
after each rejection; the round then follows only the accepted draft.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.checks import whole
from spectr.errors import UnknownNameError
from spectr.registry import nearest
from spectr.theory.chains import ChainPair, contexts
from spectr.theory.leviathan import chance, price
from spectr.transport.coupling import Drafted
from spectr.transport.laws import normalise, overlap, residual, total_variation
from spectr.transport.optimal import Optimal

__all__ = [
    "ROOTS",
    "Root",
    "batch_rejections",
    "drafts_worth",
    "expected_rejections",
    "limit_rejections",
    "rejections_by_position",
    "steady_rejections",
]


def rejections_by_position(pair: ChainPair, length: int) -> Tensor:
    """Return the probability of a rejection at each position, E[TV(target, draft)] over the target's texts, (length,).

    It is the theorem on expected rejections of [yin2024]. By its companion on optimality no lossless rule that accepts
    the draft or resamples does better: the mass it accepts of a token is at most the minimum of target and draft.
    """
    return contexts(pair.target, length) @ pair.gap


def expected_rejections(pair: ChainPair, length: int) -> float:
    """Return Σ_n E[TV(target_n, draft_n)], the least expected number of rejections of a lossless rule with one draft
    ([yin2024], expected rejections and their optimality).

    >>> from spectr.theory import bernoulli, repeated
    >>> expected_rejections(repeated(bernoulli(0.25, 0.75)), 10)
    5.0
    """
    return float(rejections_by_position(pair, length).sum())


@dataclass(frozen=True, slots=True)
class Root:
    """The rejection of all drafts at the beginning of a round, for every context."""

    rejected: Tensor  # (V + 1,) probability that all of them are rejected
    after: Tensor  # (V + 1, V) law of the token after that


def _recursive(pair: ChainPair, drafts: int) -> Root:
    """Test each draft against the target's residual after the ones before: Π TV(target_m, draft)."""
    target, rejected = pair.target, torch.ones(pair.size + 1, dtype=torch.float64)
    for _ in range(drafts):
        rejected = rejected * total_variation(target, pair.draft)
        target = normalise(residual(target, pair.draft), target)
    return Root(rejected, target)


def _optimal(pair: ChainPair, drafts: int) -> Root:
    """Use the optimal coupling of the iid drafts: 1 − α_M, and the residual of its selected law."""
    likely = pair.draft.argmax(-1, keepdim=True).expand(-1, drafts)
    drafted = Drafted(likely, torch.ones_like(likely, dtype=torch.bool))
    law = Optimal(bins=0).select(pair.target, pair.draft, drafted).law.all()
    return Root(1 - overlap(pair.target, law), normalise(residual(pair.target, law), pair.target))


ROOTS: Mapping[str, Callable[[ChainPair, int], Root]] = {"recursive": _recursive, "optimal": _optimal}
"""How the drafts at the beginning of a round are tested: as in the paper, or by the optimal coupling."""


def _never_drafted(pair: ChainPair) -> Root:
    """Return the limit of infinitely many drafts, in which only tokens that are never drafted are rejections."""
    undrafted = torch.where(pair.draft > 0, 0.0, pair.target)
    return Root(undrafted.sum(-1), normalise(undrafted, pair.target))


def _rejections(pair: ChainPair, length: int, root: Root) -> Tensor:
    """Return the probability of a rejection at each position.

    `starting` is the probability of each context together with a round that begins there, which follows from a
    rejection at the previous position. Elsewhere one draft continues."""
    one = _recursive(pair, 1)
    everywhere = contexts(pair.target, length)
    starting, found = everywhere[0], []
    for here in everywhere:
        begins, goes_on = starting * root.rejected, (here - starting) * one.rejected
        found.append((begins + goes_on).sum())
        starting = torch.nn.functional.pad(begins @ root.after + goes_on @ one.after, (0, 1))
    return torch.stack(found)


def batch_rejections(pair: ChainPair, length: int, drafts: int, root: str = "recursive") -> float:
    """Return the expected rejections with M `drafts` at the beginning of each round: [yin2024], the theorem on batches.

    With f(context) the probability that a round begins there, it is Σ E[TV] − Σ E_f[TV − Π_m TV(target_m, draft)]. Only
    the beginnings of rounds gain. With `root` "optimal" the product is replaced by 1 − α_M.

    >>> from spectr.theory import bernoulli, repeated
    >>> pair = repeated(bernoulli(0.25, 0.75))
    >>> [round(batch_rejections(pair, 10, m), 4) for m in (1, 2, 4)]
    [5.0, 4.3827, 3.7415]
    """
    if root not in ROOTS:
        raise UnknownNameError(f"no root is called {root!r}; {nearest(root, list(ROOTS))}")
    return float(_rejections(pair, length, ROOTS[root](pair, whole("drafts", drafts, 1))).sum())


def limit_rejections(pair: ChainPair, length: int) -> float:
    """Return the limit of the rejections as M → ∞: [yin2024], the limit of the theorem on batches. It is the same for
    every coupling of iid drafts that is optimal in the limit.

    It is positive unless the draft law is the target's, because only the beginnings of rounds gain.

    >>> from spectr.theory import bernoulli, repeated
    >>> round(limit_rejections(repeated(bernoulli(0.25, 0.75)), 10), 4)
    3.1113
    """
    return float(_rejections(pair, length, _never_drafted(pair)).sum())


def steady_rejections(gap: float, rejected: float) -> float:
    """Return the rejections per token of an endless text with one pair of laws, TV / (1 + TV − rejected).

    `rejected` is the probability that all drafts at the beginning of a round are rejected ([yin2024], the theorem on
    batches; the fixed point of its f).

    One draft has rejected = TV, which gives TV. Infinitely many have rejected = 0, which gives TV / (1 + TV), at least
    half of TV.

    >>> steady_rejections(0.5, 0.5), round(steady_rejections(0.5, 0.0), 4)
    (0.5, 0.3333)
    """
    return chance("gap", gap) / (1 + gap - chance("rejected", rejected))


def drafts_worth(pair: ChainPair, length: int, cost: float, root: str = "recursive") -> int:
    """Return the M with the least time for a text, (1 + rejections) · (1 + M·cost), if every round is one target call
    and each draft adds `cost` to it, by the theorem of [yin2024] on batches.

    The search stops once (1 + limit) · (1 + M·cost) exceeds the best time so far, since no larger M can be better; if
    drafts are free, at the first M that gains less than a millionth.

    >>> from spectr.theory import bernoulli, repeated
    >>> [drafts_worth(repeated(bernoulli(0.25, 0.75)), 50, cost) for cost in (0.5, 0.05, 0.0)]
    [1, 4, 46]
    """
    cost, floor = price("cost", cost), 1 + limit_rejections(pair, length)
    best, least, drafts = 1, float("inf"), 1
    while floor * (1 + drafts * cost) < least * (1 - 1e-6):
        time = (1 + batch_rejections(pair, length, drafts, root)) * (1 + drafts * cost)
        best, least = (drafts, time) if time < least else (best, least)
        drafts += 1
    return best
