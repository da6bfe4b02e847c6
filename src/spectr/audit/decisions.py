"""Enumerates every execution of a random program with its exact probability. It depends on decisions only, not on
rules.

A coin is an interval. A decision confines it to the part that stands for the choice, and a coin that is used again
under the same key is still confined. An execution is therefore a set of intervals, one per coin; to follow a branch,
the program is run again with the coins that lead to it. The enumerated code is the code that generates text, and a
program that reuses a coin, within a step or across steps, is enumerated with exactly the resulting dependence.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from spectr.coins import likeliest
from spectr.errors import MismatchError

__all__ = ["ExactCoins", "KnownCoins"]

_NEGLIGIBLE = 1e-14  # a part of a coin this small is rounding


@dataclass(frozen=True, slots=True)
class KnownCoins:
    """The coins that each row has used, and the intervals they are confined to."""

    time: Tensor  # (R, H) int64: the key is not used again once this many tokens are committed; -1: no coin
    slot: Tensor  # (R, H) int64
    low: Tensor  # (R, H) float64
    high: Tensor  # (R, H) float64

    @classmethod
    def none(cls, rows: int) -> "KnownCoins":
        """Return a table without coins."""
        none = torch.zeros(rows, 0, dtype=torch.int64)
        return cls(none, none, none.double(), none.double())

    @classmethod
    def joined(cls, parts: Sequence["KnownCoins"]) -> "KnownCoins":
        """Concatenate the coins of several batches."""
        width = max(part.time.shape[1] for part in parts)
        times = [pad(part.time, (0, width - part.time.shape[1]), value=-1) for part in parts]
        rest = (
            [pad(x, (0, width - x.shape[1])) for x in column] for column in zip(*map(cls._rest, parts), strict=True)
        )
        slot, low, high = (torch.cat(column) for column in rest)
        return cls(torch.cat(times), slot, low, high)

    def _rest(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.slot, self.low, self.high

    def rows(self, index: Tensor) -> "KnownCoins":
        """Return the coins of some rows."""
        return KnownCoins(self.time[index], self.slot[index], self.low[index], self.high[index])

    def _known(self, time: Tensor, slot: Tensor) -> Tensor:
        return (self.time == time[:, None]) & (self.slot == slot[:, None])

    def interval(self, time: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
        """Return the interval of the coin (time, slot) (R,) of each row; [0, 1) if it was never used."""
        known = self._known(time, slot)
        low = torch.where(known, self.low, 0.0).sum(1)
        return low, torch.where(known.any(1), torch.where(known, self.high, 0.0).sum(1), 1.0)

    def confine(self, time: Tensor, slot: Tensor, low: Tensor, high: Tensor) -> "KnownCoins":
        """Confine the coin (time, slot) (R,) of each row to [low, high)."""
        known = self._known(time, slot)
        kept = KnownCoins(
            self.time,
            self.slot,
            torch.where(known, low[:, None], self.low),
            torch.where(known, high[:, None], self.high),
        )
        is_new = ~known.any(1)
        if not bool(is_new.any()):
            return kept
        columns = (torch.where(is_new, time, -1), slot, low, high)
        old = (kept.time, *kept._rest())
        return KnownCoins(*(torch.cat([a, b[:, None]], 1) for a, b in zip(old, columns, strict=True)))

    def forget_before(self, committed: Tensor) -> "KnownCoins":
        """Remove the coins that cannot be used again; the table shrinks to the columns that some row needs."""
        needed = self.time >= committed[:, None]
        columns = needed.any(0)
        time = torch.where(needed, self.time, -1)[:, columns]
        return KnownCoins(time, self.slot[:, columns], self.low[:, columns], self.high[:, columns])


class ExactCoins:
    """Coins for rows that have `committed` (R,) tokens and used the coins in `known`.

    If several choices are possible, the first is taken and the others are recorded in `branches` as (rows, coins that
    lead there, probability)."""

    def __init__(self, committed: Tensor, known: KnownCoins) -> None:
        self.committed = committed
        self.known = known
        self.weight = torch.ones(len(committed), dtype=torch.float64)
        self.branches: list[tuple[Tensor, KnownCoins, Tensor]] = []

    def key(self, node: Tensor, purpose: int) -> tuple[Tensor, Tensor]:
        """Return (time, slot) of the coin that decides `purpose` at `node` (R,), keyed as in generation."""
        return self.committed, node * 16 + purpose

    def flip(self, chance: Tensor, node: Tensor, purpose: int) -> Tensor:
        """Return True with probability `chance`."""
        return self.pick(torch.stack([chance, 1 - chance], -1), node, purpose) == 0

    def pick(self, weights: Tensor, node: Tensor, purpose: int) -> Tensor:
        """Decide one after the other for nodes (R, M) with weights (R, M, V)."""
        columns = [self._decide(weights[:, m], *self.key(node[:, m], purpose)) for m in range(node.shape[1])]
        return torch.stack(columns, -1)

    def race(self, logits: Tensor, depth: Tensor) -> Tensor:
        """Draw the winner from the softmax of the logits; its coin is keyed by the absolute position."""
        law, slot = logits.double().softmax(-1), torch.full_like(self.committed, -1)
        columns = [self._decide(law[:, m], self.committed + depth[:, m], slot) for m in range(depth.shape[1])]
        return torch.stack(columns, -1)

    def top_racers(self, logits: Tensor, depth: Tensor, count: int) -> Tensor:
        """Raise, as `noisy_logits` does."""
        return self.noisy_logits(logits, depth)

    def noisy_logits(self, logits: Tensor, depth: Tensor) -> Tensor:
        """Raise: the order of a race has no finite distribution to enumerate."""
        raise MismatchError(
            "siblings 'race' cannot be enumerated; the race is valid for any tree, so enumerate it with iid siblings"
        )

    def noisy_approx(self, logits: Tensor, depth: Tensor) -> Tensor:
        """Raise, as `noisy_logits` does."""
        return self.noisy_logits(logits, depth)

    def likeliest(self, logits: Tensor, depth: Tensor | None, score_scale: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Return the likeliest tokens, which is possible only without noise."""
        return likeliest(
            (logits if depth is None else self.noisy_logits(logits, depth)) * score_scale[:, None, None], count
        )

    def _decide(self, weights: Tensor, time: Tensor, slot: Tensor) -> Tensor:
        lower, upper = self._parts(weights, *self.known.interval(time, slot))
        share = torch.where(upper - lower > _NEGLIGIBLE, upper - lower, 0.0)
        chance = share / share.sum(-1, keepdim=True)
        choice = (chance > 0).int().argmax(-1)
        others = (chance > 0).scatter(-1, choice[:, None], False)
        rows, options = others.nonzero(as_tuple=True)
        if len(rows):
            confined = self.known.rows(rows).confine(time[rows], slot[rows], lower[rows, options], upper[rows, options])
            self.branches.append((rows, confined, self.weight[rows] * chance[rows, options]))
        low, high, taken = (x.gather(-1, choice[:, None]).squeeze(-1) for x in (lower, upper, chance))
        self.known = self.known.confine(time, slot, low, high)
        self.weight = self.weight * taken
        return choice

    def _parts(self, weights: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        """Return the part of the interval [low, high) that stands for each choice, by inverse CDF; (R, V) each."""
        total = weights.double().sum(-1, keepdim=True)
        law = torch.where(total > 0, weights.double() / torch.where(total > 0, total, 1.0), 0.0)
        law[:, 0] = torch.where(total[:, 0] > 0, law[:, 0], 1.0)  # as `coins.draw`: no weight at all gives index 0
        ends = law.cumsum(-1)
        upper = torch.minimum(ends, high[:, None])
        lower = torch.maximum(pad(ends, (1, 0))[:, :-1], low[:, None])
        return lower, torch.maximum(upper, lower)
