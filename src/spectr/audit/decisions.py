"""Every way a random program can go, with its exact probability. Depends on decisions alone: no trees, no rules.

A coin is an interval. A decision confines it to the part that stands for the choice, and a coin that is used again
under the same key is still confined. So a way through the program is the set of the intervals of its coins: to follow
a branch, the program is run again with the coins that lead to it. The code that is enumerated is the code that
generates, and a program that reuses a coin, within a step or across steps, is enumerated with exactly the dependence
it has.
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

    time: Tensor  # (R, H) int64: a key cannot come again once that much text is committed; -1: no coin
    slot: Tensor  # (R, H) int64
    low: Tensor  # (R, H) float64
    high: Tensor  # (R, H) float64

    @classmethod
    def none(cls, rows: int) -> "KnownCoins":
        """No coin was used yet."""
        none = torch.zeros(rows, 0, dtype=torch.int64)
        return cls(none, none, none.double(), none.double())

    @classmethod
    def joined(cls, parts: Sequence["KnownCoins"]) -> "KnownCoins":
        """The coins of several batches, one below the other."""
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
        """The coins of some rows."""
        return KnownCoins(self.time[index], self.slot[index], self.low[index], self.high[index])

    def _known(self, time: Tensor, slot: Tensor) -> Tensor:
        return (self.time == time[:, None]) & (self.slot == slot[:, None])

    def interval(self, time: Tensor, slot: Tensor) -> tuple[Tensor, Tensor]:
        """What the coin (time, slot) (R,) of each row is confined to; [0, 1) if it was never used."""
        known = self._known(time, slot)
        low = torch.where(known, self.low, 0.0).sum(1)
        return low, torch.where(known.any(1), torch.where(known, self.high, 0.0).sum(1), 1.0)

    def confine(self, time: Tensor, slot: Tensor, low: Tensor, high: Tensor) -> "KnownCoins":
        """With the coin (time, slot) (R,) of each row confined to [low, high)."""
        known = self._known(time, slot)
        kept = KnownCoins(
            self.time,
            self.slot,
            torch.where(known, low[:, None], self.low),
            torch.where(known, high[:, None], self.high),
        )
        fresh = ~known.any(1)
        if not bool(fresh.any()):
            return kept
        columns = (torch.where(fresh, time, -1), slot, low, high)
        old = (kept.time, *kept._rest())
        return KnownCoins(*(torch.cat([a, b[:, None]], 1) for a, b in zip(old, columns, strict=True)))

    def forget_before(self, committed: Tensor) -> "KnownCoins":
        """Without the coins that cannot come again; the table shrinks to what some row still needs."""
        needed = self.time >= committed[:, None]
        columns = needed.any(0)
        time = torch.where(needed, self.time, -1)[:, columns]
        return KnownCoins(time, self.slot[:, columns], self.low[:, columns], self.high[:, columns])


class ExactCoins:
    """Coins for rows that have committed so much text and used the coins in `known`. Where several choices are possible
    the first is taken, and the others are noted: `branches` holds (row, coins that lead there, probability)."""

    def __init__(self, committed: Tensor, known: KnownCoins) -> None:
        self.committed = committed
        self.known = known
        self.weight = torch.ones(len(committed), dtype=torch.float64)
        self.branches: list[tuple[Tensor, KnownCoins, Tensor]] = []

    def key(self, node: Tensor, purpose: int) -> tuple[Tensor, Tensor]:
        """(time, slot) of the coin that decides `purpose` at `node` (R,), as the coins of generation are keyed."""
        return self.committed, node * 16 + purpose

    def flip(self, chance: Tensor, node: Tensor, purpose: int) -> Tensor:
        """True with `chance`: the coin falls in its first part."""
        return self.pick(torch.stack([chance, 1 - chance], -1), node, purpose) == 0

    def pick(self, weights: Tensor, node: Tensor, purpose: int) -> Tensor:
        """One decision after the other for nodes (R, M) and weights (R, M, V)."""
        columns = [self._decide(weights[:, m], *self.key(node[:, m], purpose)) for m in range(node.shape[1])]
        return torch.stack(columns, -1)

    def race(self, logits: Tensor, depth: Tensor) -> Tensor:
        """The winner has the law of the logits, and belongs to its absolute position."""
        law, slot = logits.double().softmax(-1), torch.full_like(self.committed, -1)
        columns = [self._decide(law[:, m], self.committed + depth[:, m], slot) for m in range(depth.shape[1])]
        return torch.stack(columns, -1)

    def top_racers(self, logits: Tensor, depth: Tensor, count: int) -> Tensor:
        """As `noisy_logits`."""
        return self.noisy_logits(logits, depth)

    def noisy_logits(self, logits: Tensor, depth: Tensor) -> Tensor:
        """Not enumerable: the order of a race has no finite law in this form."""
        raise MismatchError(
            "siblings 'race' cannot be enumerated; the race holds for any tree, so enumerate with iid ones"
        )

    def noisy_approx(self, logits: Tensor, depth: Tensor) -> Tensor:
        """As `noisy_logits`."""
        return self.noisy_logits(logits, depth)

    def likeliest(self, logits: Tensor, depth: Tensor | None, score_scale: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Without noise as generation does."""
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
        """Which part of the interval [low, high) stands for each choice, by inverse CDF; (R, V) each."""
        total = weights.double().sum(-1, keepdim=True)
        law = torch.where(total > 0, weights.double() / torch.where(total > 0, total, 1.0), 0.0)
        law[:, 0] = torch.where(total[:, 0] > 0, law[:, 0], 1.0)  # as `coins.draw`: no weight at all gives index 0
        ends = law.cumsum(-1)
        upper = torch.minimum(ends, high[:, None])
        lower = torch.maximum(pad(ends, (1, 0))[:, :-1], low[:, None])
        return lower, torch.maximum(upper, lower)
