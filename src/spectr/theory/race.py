"""The theory of the race: one child in closed form, the rank of the accepted child, and bounds on trees of k nodes.

Exact, except for a quadrature with an error of 1e-12. A node's children are ordered by the drafter's race, and the rank
of the accepted child is its index in that order. The proofs are in docs/theory.md.
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
    """Return the acceptance of the race with one child, Σ_v 1 / Σ_w max(target(w)/target(v), draft(w)/draft(v)),
    float64.

    It is due to [daliri2024], whose bounds are (1 − TV)/(1 + TV) and 1 − TV. In the order of target / draft the larger
    of the two ratios is the draft's before v and the target's from v on, so one sort and two running sums suffice for
    vocabularies of any size.

    >>> laws = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> round(float(one_child(*laws)), 6)
    0.6
    """
    check_pair(target, draft)
    target, draft = torch.broadcast_tensors(target.double(), draft.double())
    order = ratio(target, draft).sort(dim=-1).indices  # the order of equal ratios does not matter
    target_mass, draft_mass = (law.gather(-1, order) for law in (target, draft))
    before = draft_mass.cumsum(-1) - draft_mass
    rest = target_mass.flip(-1).cumsum(-1).flip(-1)
    rivals = draft_mass * rest + target_mass * before
    return torch.where(rivals > 0, target_mass * draft_mass / torch.where(rivals > 0, rivals, 1.0), 0.0).sum(-1)


def rank_law(target: Tensor, draft: Tensor) -> Tensor:
    """Return P(the target's winner is r-th in the drafter's race), r = 0 … V − 1, for laws (V,); float64.

    It sums to one minus the target's mass on tokens that the drafter never draws, which have no rank. Shared noise is
    due to [daliri2024], ranks to [kobus2025]; the law is the integral behind `spectr.race_acceptance` for all ranks.

    >>> laws = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> [round(value, 6) for value in rank_law(*laws).tolist()]
    [0.6, 0.4]
    """
    check_pair(target, draft)
    if target.dim() != 1 or draft.dim() != 1:
        raise LawError(f"rank_law takes one pair of laws (V,), got {tuple(target.shape)} and {tuple(draft.shape)}")
    return rank_chances(target.double(), draft.double(), len(target))


def _ranks(ranks: Tensor) -> list[float]:
    """Return the probabilities of the ranks, highest first; they may sum to less than one."""
    rest = (1 - ranks.double().sum(-1, keepdim=True)).clamp_min(0)
    check_law("ranks", torch.cat([ranks.double(), rest]))
    return sorted((float(value) for value in ranks.double() if value > 0), reverse=True)


def _information(chances: list[float]) -> float:
    return -math.fsum(chance * math.log(chance) for chance in chances if chance > 0)


def entropy(ranks: Tensor) -> float:
    """Return the entropy of the accepted child's rank in nats, with "no rank" as one more outcome ([kobus2025]).

    >>> round(entropy(torch.tensor([0.5, 0.25, 0.25])) / math.log(2), 6)
    1.5
    """
    chances = _ranks(ranks)
    return _information([*chances, max(0.0, 1 - math.fsum(chances))])


def worth_of_a_nat(ranks: Tensor) -> float:
    """Return κ = max_c a_c / h_c, the accepted drafts per nat of information in a verdict ([spectr], the bound on
    trees).

    a_c is the probability of the c likeliest ranks, and h_c the entropy of which of them it is, or none. κ is infinite
    if one rank is certain: then a verdict has no information, and all drafts are accepted.
    """
    chances, best = _ranks(ranks), 0.0
    for count in range(1, len(chances) + 1):
        accepted = math.fsum(chances[:count])
        nats = _information([*chances[:count], max(0.0, 1 - accepted)])
        best = max(best, accepted / nats if nats > 1e-15 else math.inf)
    return best


def rank_bound(ranks: Tensor, nodes: int) -> float:
    """Return an upper bound 1 + κ·log(nodes + 1) on the tokens per call of a tree of `nodes` drafts, root not counted.

    It holds if ranks are independent with this law and the tree does not depend on the noise ([spectr]; it is sharper
    than the bound by the entropy alone, [kobus2025]).

    A verdict ends at one of nodes + 1 places, so it has at most log(nodes + 1) nats of information; by the chain rule
    it has h at each visited node, and a node accepts at most κ·h.

    >>> uniform = torch.full((4,), 0.25)
    >>> round(rank_bound(uniform, 15), 6), rank_bound(torch.tensor([1.0]), 15)
    (3.0, 16.0)
    """
    count = whole("nodes", nodes, 1)
    return min(1 + worth_of_a_nat(ranks) * math.log(count + 1), 1.0 + count)


def entropy_bound(ranks: Tensor, nodes: int, vocabulary: int) -> float:
    """Return (log(nodes + 1) + log V) / H, a bound on tokens per call by the entropy of the rank alone ([kobus2025]),
    under the same conditions.

    The output of a call is one of nodes + 1 places and one of V tokens after it, and has H nats per token.
    """
    nats, count = entropy(ranks), whole("nodes", nodes, 1)
    if nats <= 1e-15:
        return 1.0 + count
    return min((math.log(count + 1) + math.log(whole("vocabulary", vocabulary, 1))) / nats, 1.0 + count)


def best_static_tokens(ranks: Tensor, nodes: int) -> float:
    """Return the tokens per call of the best tree of `nodes` drafts that does not depend on the noise, for independent
    ranks: one plus the `nodes` likeliest words of ranks, which form a tree (Tunstall's code, [kobus2025]).

    >>> best_static_tokens(torch.tensor([0.5, 0.25]), 3)  # words 0, 1 and 00
    2.0
    """
    chances = _ranks(ranks)
    return best_shape([chances], whole("nodes", nodes, 1) + 1).expected if chances else 1.0
