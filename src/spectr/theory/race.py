"""The race on paper: one child in closed form, the rank of the accepted child, and what a tree of k nodes can give.

Exact, but for a quadrature that is good to 1e-12. A node's children are ordered by the drafter's race, and the rank of
the accepted child is its place in that order. The proofs are in docs/theory.md.
"""

import math

import torch
from torch import Tensor

from spectr.checks import whole
from spectr.errors import LawError
from spectr.transport.laws import check_law, check_pair, ratio
from spectr.transport.race import rank_chances
from spectr.trees.budget import best_shape

__all__ = ["best_static_tokens", "entropy", "entropy_bound", "one_child", "rank_bound", "rank_law", "worth_of_a_nat"]


def one_child(target: Tensor, draft: Tensor) -> Tensor:
    """Acceptance of the race with one child, Σ_v 1 / Σ_w max(target(w)/target(v), draft(w)/draft(v)), float64 (…).

    [daliri2024], whose bounds are (1 − TV)/(1 + TV) and 1 − TV. In the order of target / draft the larger of the two
    ratios is the draft's for what stands before v and the target's for the rest, so one sort and two running sums do,
    and a vocabulary of any size is no matter.

    >>> laws = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> round(float(one_child(*laws)), 6)
    0.6
    """
    check_pair(target, draft)
    target, draft = torch.broadcast_tensors(target.double(), draft.double())
    order = ratio(target, draft).sort(dim=-1).indices  # of equal ratios any order will do
    owed, given = (law.gather(-1, order) for law in (target, draft))
    before = given.cumsum(-1) - given
    rest = owed.flip(-1).cumsum(-1).flip(-1)
    rivals = given * rest + owed * before
    return torch.where(rivals > 0, owed * given / torch.where(rivals > 0, rivals, 1.0), 0.0).sum(-1)


def rank_law(target: Tensor, draft: Tensor) -> Tensor:
    """P(the target's winner is r-th in the drafter's race), r = 0 … V − 1, for laws (V,); float64.

    What it lacks to one is the target's mass on tokens that the drafter never draws: they have no rank. Shared noise is
    [daliri2024]'s, ranks are [kobus2025]'s; the law is the integral behind `spectr.race_acceptance`, all ranks at once.

    >>> laws = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> [round(value, 6) for value in rank_law(*laws).tolist()]
    [0.6, 0.4]
    """
    check_pair(target, draft)
    if target.dim() != 1 or draft.dim() != 1:
        raise LawError(f"rank_law takes one pair of laws (V,), got {tuple(target.shape)} and {tuple(draft.shape)}")
    return rank_chances(target.double(), draft.double(), len(target))


def _ranks(ranks: Tensor) -> list[float]:
    """Chances of the ranks, highest first; they may sum to less than one."""
    rest = (1 - ranks.double().sum(-1, keepdim=True)).clamp_min(0)
    check_law("ranks", torch.cat([ranks.double(), rest]))
    return sorted((float(value) for value in ranks.double() if value > 0), reverse=True)


def _information(chances: list[float]) -> float:
    return -math.fsum(chance * math.log(chance) for chance in chances if chance > 0)


def entropy(ranks: Tensor) -> float:
    """H of the accepted child's rank in nats, "no rank" counted as one more ([kobus2025]).

    >>> round(entropy(torch.tensor([0.5, 0.25, 0.25])) / math.log(2), 6)
    1.5
    """
    chances = _ranks(ranks)
    return _information([*chances, max(0.0, 1 - math.fsum(chances))])


def worth_of_a_nat(ranks: Tensor) -> float:
    """κ = max_c a_c / h_c: drafts accepted for each nat that a verdict tells ([spectr], the bound on trees).

    a_c is the chance of the c likeliest ranks and h_c the entropy of which of them it is, or none. Infinite if one rank
    is certain: then a verdict tells nothing, and all drafts are accepted.
    """
    chances, best = _ranks(ranks), 0.0
    for count in range(1, len(chances) + 1):
        accepted = math.fsum(chances[:count])
        told = _information([*chances[:count], max(0.0, 1 - accepted)])
        best = max(best, accepted / told if told > 1e-15 else math.inf)
    return best


def rank_bound(ranks: Tensor, nodes: int) -> float:
    """No tree of `nodes` drafts, its root not counted, gives more tokens per call than 1 + κ·log(nodes + 1), if ranks
    are independent of each other with this law and the tree does not look at the noise ([spectr]; sharper than what
    follows from the entropy alone, [kobus2025]).

    Where a verdict ends is one of nodes + 1 places, so it tells at most log(nodes + 1) nats; by the chain rule it tells
    h at each node it comes to, and a node accepts at most κ·h.

    >>> uniform = torch.full((4,), 0.25)
    >>> round(rank_bound(uniform, 15), 6), rank_bound(torch.tensor([1.0]), 15)
    (3.0, 16.0)
    """
    count = whole("nodes", nodes, 1)
    return min(1 + worth_of_a_nat(ranks) * math.log(count + 1), 1.0 + count)


def entropy_bound(ranks: Tensor, nodes: int, vocabulary: int) -> float:
    """(log(nodes + 1) + log V) / H: tokens per call by the entropy of the rank alone ([kobus2025]), under the same
    terms.

    What a call emits is one of nodes + 1 places and one of V tokens after it, and it holds H nats a token.
    """
    held, count = entropy(ranks), whole("nodes", nodes, 1)
    if held <= 1e-15:
        return 1.0 + count
    return min((math.log(count + 1) + math.log(whole("vocabulary", vocabulary, 1))) / held, 1.0 + count)


def best_static_tokens(ranks: Tensor, nodes: int) -> float:
    """Tokens per call of the best tree of `nodes` drafts that does not look at the noise, for independent ranks: one
    plus the `nodes` likeliest words of ranks, which are a tree already (Tunstall's code, [kobus2025]).

    >>> best_static_tokens(torch.tensor([0.5, 0.25]), 3)  # words 0, 1 and 00
    2.0
    """
    chances = _ranks(ranks)
    return best_shape([chances], whole("nodes", nodes, 1) + 1).expected if chances else 1.0
