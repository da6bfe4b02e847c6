"""The optimal coupling of k iid drafts with the target, sampled exactly in near-linear time.

Optimal transport with membership cost is usually written as a linear program over V^k variables. It does not need one:
among all laws a selection can have, the best one is the target clipped to [c_lo, c_hi] times the draft law, and
independent scores reach it. Order the tokens by target / draft, and give the j-th a level of value g_j. An
over-selected token swaps its level with an under-selected one with some probability, such that level masses remain
those of the draft law while token means become the clip. The draft on the highest level is selected. This takes a sort
and prefix sums.

On large vocabularies tokens are first put into classes of nearly equal ratio (one histogram, no sort). Selection
depends on the class alone and r = draft × (mean of the class), so the binned form is exactly lossless too; its
acceptance is Σ min(target, r), at most about 1e-4 below the optimum.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.kernels import usable
from spectr.rows import LazyRows
from spectr.transport.coupling import Drafted
from spectr.transport.laws import check_count, check_pair, ratio, take
from spectr.transport.selection import SelectingCoupling, Selection, first_draft, has_single_draft

__all__ = ["Bins", "Classes", "Levels", "Optimal", "highest", "level_law", "level_swaps", "sorted_classes"]

_TINY = 1e-12  # masses below this carry no usable ratio
_LOWEST = -9.0  # log ratio below which all tokens share a class
_MOST_AT_ONCE = 1 << 25  # entries of the level laws that are in memory at a time


@dataclass(frozen=True, slots=True)
class Classes:
    """The masses of classes of tokens, ordered by rising target / draft. All float64."""

    target: Tensor  # (…, C) target mass on drafted tokens
    draft: Tensor  # (…, C) draft mass
    undrafted: Tensor  # (…, 1) target mass where the draft law is zero


def _undrafted(target: Tensor, draft: Tensor) -> Tensor:
    return torch.where(draft > 0, 0, target).sum(-1, keepdim=True, dtype=torch.float64)


def sorted_classes(target: Tensor, draft: Tensor) -> tuple[Classes, Tensor]:
    """Return the exact form, in which every token is a class of its own, and the class of each token, (…, V)."""
    rise, order = ratio(target.double(), draft.double()).sort(dim=-1, stable=True)
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    member = torch.empty_like(order).scatter_(-1, order, places)
    target_mass, draft_mass = (
        torch.where(rise < torch.inf, law.gather(-1, order), 0).to(torch.float64) for law in (target, draft)
    )
    return Classes(target_mass, draft_mass, _undrafted(target, draft)), member


@dataclass(frozen=True, slots=True)
class Bins:
    """`count` classes with log-spaced edges from e^−9 to `most`, the largest ratio that matters for `most` drafts."""

    count: int
    most: int

    @property
    def width(self) -> float:
        """The width of a class in log ratio."""
        return (math.log(max(self.most, 2)) - _LOWEST) / (self.count - 2)

    def of(self, target: Tensor, draft: Tensor) -> Tensor:
        """Return the class of tokens with these probabilities, int64; computed in float64, so that it is monotone."""
        logs = ratio(target.double(), draft.double()).log_()
        return ((logs - _LOWEST) / self.width + 1).clamp_(0, self.count - 1).long()

    def classes(self, target: Tensor, draft: Tensor) -> Classes:
        """Return the masses of the classes."""
        member = self.of(target, draft)
        zeros = torch.zeros(*target.shape[:-1], self.count, dtype=torch.float64, device=target.device)
        target_mass, draft_mass = (
            zeros.scatter_add(-1, member, torch.where(draft > 0, law, 0).to(torch.float64)) for law in (target, draft)
        )
        return Classes(target_mass, draft_mass, _undrafted(target, draft))

    def law(self, target: Tensor, draft: Tensor, mean: Tensor) -> Tensor:
        """Return draft × mean of the class, (…, V)."""
        if usable(target, draft):
            from spectr.kernels.optimal_coupling import class_law

            return class_law(target, draft, mean, _LOWEST, self.width)
        return _scaled(draft, self.of(target, draft), mean)


def _scaled(draft: Tensor, member: Tensor, mean: Tensor) -> Tensor:
    return torch.where(draft > 0, draft * mean.gather(-1, member), 0).to(draft.dtype)


@dataclass(frozen=True, slots=True)
class Levels:
    """The levels, and the masses that classes swap between them. All (…, C) float64."""

    value: Tensor  # g: how much a draft on this level is over-selected if there are no swaps
    mean: Tensor  # t: the mean that each class must have after the swaps, r / draft
    up: Tensor  # D+: running surplus of the classes that must rise
    down: Tensor  # D−: running surplus of the classes that must fall
    stayed: Tensor | None = None  # (…, 1) bool: because of rounding no swaps were found, and drafts keep their levels


def _level_values(upper: Tensor, lower: Tensor, k: Tensor, most: int) -> Tensor:
    """Return (Q_j^k − Q_{j−1}^k) / (Q_j − Q_{j−1}) as Σ Q_j^i Q_{j−1}^(k−1−i), without cancellation; k is per row."""
    value, power = torch.ones_like(upper), torch.ones_like(upper)
    for count in range(1, most):
        power = power * upper
        value = torch.where(count < k, value * lower + power, value)
    return value


def _clip_ends(classes: Classes, upper: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
    """Return c_lo and c_hi of the optimal selected law, each (…, 1). Suffix masses are summed from the end."""
    under = classes.target.cumsum(-1)
    loss = (upper**k - under).amax(-1, keepdim=True).clamp_min(0)
    tail = classes.draft.flip(-1).cumsum(-1).flip(-1)
    tail_target = classes.target.flip(-1).cumsum(-1).flip(-1) + classes.undrafted
    low = torch.where(upper > _TINY, (loss + under) / upper.clamp_min(_TINY), torch.inf).amin(-1, keepdim=True)
    high = torch.where(tail > _TINY, (tail_target - loss) / tail.clamp_min(_TINY), 0.0).amax(-1, keepdim=True)
    return low, torch.minimum(torch.maximum(high, low), k)


def _normalised(classes: Classes) -> Classes:
    """Divide both laws by their sums: with float32 rounding errors the selection could look infeasible."""
    draft_mass = classes.draft.sum(-1, keepdim=True)
    target_mass = classes.target.sum(-1, keepdim=True) + classes.undrafted
    draft_mass = torch.where(draft_mass > 0, draft_mass, 1.0)
    return Classes(classes.target / target_mass, classes.draft / draft_mass, classes.undrafted / target_mass)


def level_swaps(classes: Classes, k: Tensor, most: int) -> Levels:
    """Return the swaps that make the selected law the optimal clip, for k (…) ≤ most drafts."""
    count = k[..., None].to(torch.float64).clamp_min(1.0)
    classes = _normalised(classes)
    upper = classes.draft.cumsum(-1).clamp_max(1.0)
    lower = torch.cat([torch.zeros_like(upper[..., :1]), upper[..., :-1]], -1)
    value = _level_values(upper, lower, count, most)
    low, high = _clip_ends(classes, upper, count)
    has_mass = classes.draft > 0
    clipped = torch.where(has_mass, classes.target / torch.where(has_mass, classes.draft, 1.0), value)
    mean = torch.where(has_mass, torch.minimum(torch.maximum(clipped, low), high), value)
    off = ((classes.draft * mean).sum(-1, keepdim=True) - 1).abs() > 1e-9
    mean = torch.where(off | ((mean - value).abs() < 1e-13 * value), value, mean)  # no swaps: lossless, but not optimal
    surplus = classes.draft * (mean - value)
    return Levels(value, mean, surplus.clamp_min(0).cumsum(-1), (-surplus).clamp_min(0).cumsum(-1), off)


def _shift_right(running: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(running[..., :1]), running[..., :-1]], -1)


def level_law(levels: Levels, own: Tensor) -> Tensor:
    """Return the law of the level of a draft of class `own` (…, k) after the swaps, float64 (…, k, C)."""
    value, mean, up, down = (x.gather(-1, own)[..., None] for x in (levels.value, levels.mean, levels.up, levels.down))
    start_up, start_down = (_shift_right(x).gather(-1, own)[..., None] for x in (levels.up, levels.down))
    rises = mean > value
    start, end = torch.where(rises, start_up, start_down), torch.where(rises, up, down)
    partner = torch.where(rises, levels.down[..., None, :], levels.up[..., None, :])  # (…, k, C)
    shared = torch.minimum(end, partner) - torch.maximum(start, _shift_right(partner))
    gap = levels.value[..., None, :] - value
    swap = torch.where(gap != 0, (mean - value) / torch.where(gap != 0, gap, 1.0), 0.0).clamp(0, 1)
    law = shared.clamp_min_(0) * swap / torch.where(end > start, end - start, 1.0)
    stay = (1 - law.sum(-1, keepdim=True)).clamp_min(0)
    return law.scatter_add_(-1, own[..., None], stay)


def highest(law: Tensor, live: Tensor) -> Tensor:
    """Return the probability of each draft to be on the highest level, (…, k); the first wins a tie."""
    law = torch.where(live[..., None], law, 0.0)
    at_most = torch.where(live[..., None], law.cumsum(-1), 1.0)
    below = torch.where(live[..., None], _shift_right(at_most), 1.0)
    ones = torch.ones_like(at_most[..., :1, :])
    earlier = torch.cat([ones, below.cumprod(-2)[..., :-1, :]], -2)
    later = torch.cat([at_most.flip(-2).cumprod(-2).flip(-2)[..., 1:, :], ones], -2)
    chance = (law * earlier * later).sum(-1)
    total = chance.sum(-1, keepdim=True)
    return chance / torch.where(total > 0, total, 1.0)


def _chances(levels: Levels, own: Tensor, live: Tensor) -> Tensor:
    """Return the probability of each draft (…, k) to be selected, a few rows at a time if the level laws are large."""
    classes, drafts = levels.value.shape[-1], own.shape[-1]
    tables = [x.reshape(-1, classes) for x in (levels.value, levels.mean, levels.up, levels.down)]
    rows = max(1, _MOST_AT_ONCE // (classes * drafts))
    parts = zip(*(x.split(rows) for x in (*tables, own.reshape(-1, drafts), live.reshape(-1, drafts))), strict=True)
    return torch.cat([highest(level_law(Levels(*part[:4]), part[4]), part[5]) for part in parts]).view(own.shape)


def _fused_selection(target: Tensor, draft: Tensor, drafted: Drafted, bins: Bins) -> Selection:
    """Compute the selection with Triton kernels."""
    from spectr.kernels.optimal_coupling import optimal_selection

    tokens = drafted.tokens
    chance, mean = optimal_selection((target, draft), tokens, drafted.live, bins.count, _LOWEST, bins.width)
    own = bins.of(take(target, tokens), take(draft, tokens))
    return Selection(chance, LazyRows(bins.law, (target, draft, mean)), take(draft, tokens) * mean.gather(-1, own))


class Optimal(SelectingCoupling):
    """Reaches the membership optimum. `bins=0` sorts; by default vocabularies above `sort_below` are binned.

    >>> import torch
    >>> target, draft = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    >>> [round(float(Optimal().acceptance(target, draft, k)), 4) for k in (1, 2, 4)]
    [0.6, 0.69, 0.8439]
    """

    name: ClassVar[str] = "optimal"
    papers: ClassVar[tuple[str, ...]] = ("spectr", "sun2023spectr", "khisti2025", "hu2025")

    def __init__(self, bins: int = 2048, sort_below: int = 8192) -> None:
        if bins and (bins < 4 or bins & (bins - 1)):
            raise ArgumentError(f"bins must be 0 (sort, exact) or a power of two of at least 4, got {bins}")
        self.bins = bins
        self.sort_below = sort_below

    def select(self, target: Tensor, draft: Tensor, drafted: Drafted) -> Selection:
        """Select the draft on the highest level."""
        tokens, live = drafted.tokens, drafted.live
        if has_single_draft(live):
            return first_draft(draft, drafted)
        bins = self._bins(target, tokens.shape[-1])
        if bins.count and usable(target, draft):
            return _fused_selection(target, draft, drafted, bins)
        levels, law, member = self._tables(target, draft, live.sum(-1), bins)
        own = bins.of(take(target, tokens), take(draft, tokens)) if member is None else member.gather(-1, tokens)
        at_drafts = take(draft, tokens) * self._mean(draft, levels, live.sum(-1)).gather(-1, own)
        return Selection(_chances(levels, own, live), law, at_drafts)

    def accepted(self, target: Tensor, draft: Tensor, k: Tensor, most: int) -> Tensor:
        """Return Σ min(target, r), which is the optimum if the classes are single tokens."""
        law = self._tables(target, draft, k, self._bins(target, most))[1].all()
        return torch.minimum(target, law).sum(-1, dtype=torch.float64)

    def stays(self, target: Tensor, draft: Tensor, k: int) -> Tensor:
        """Return the rows (…) where rounding leaves no swaps: they are lossless but not optimal. None is expected."""
        check_pair(target, draft)
        check_count("k", k)
        target, draft = torch.broadcast_tensors(target, draft)
        count = torch.full(target.shape[:-1], k, device=target.device)
        levels = self._tables(target, draft, count, self._bins(target, k))[0]
        return torch.zeros_like(count, dtype=torch.bool) if levels.stayed is None else levels.stayed.squeeze(-1)

    def _bins(self, target: Tensor, most: int) -> Bins:
        """Return the bins for this vocabulary and at most `most` drafts; a count of 0 means that tokens are sorted."""
        return Bins(0 if target.shape[-1] <= self.sort_below else self.bins, most)

    def _tables(self, target: Tensor, draft: Tensor, k: Tensor, bins: Bins) -> tuple[Levels, LazyRows, Tensor | None]:
        """Return the levels, the selected law, and the class of each token if tokens were sorted."""
        if bins.count == 0:
            classes, member = sorted_classes(target, draft)
            levels = level_swaps(classes, k, bins.most)
            return levels, LazyRows(_scaled, (draft, member, self._mean(draft, levels, k))), member
        levels = level_swaps(bins.classes(target, draft), k, bins.most)
        return levels, LazyRows(bins.law, (target, draft, self._mean(draft, levels, k))), None

    def _mean(self, draft: Tensor, levels: Levels, k: Tensor) -> Tensor:
        """Return r / draft of each class, (…, C); zero where there is no draft."""
        total = draft.sum(-1, keepdim=True, dtype=torch.float64)
        return torch.where((total > 0) & (k > 0)[..., None], levels.mean / torch.where(total > 0, total, 1.0), 0.0)
