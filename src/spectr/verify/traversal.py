"""Traversal verification (Weng et al. 2025) tests leaves first and returns the mass of a rejected node to its parent.

On a chain it equals block verification, at depth 1 recursive rejection. Nodes are entered and tested in depth-first
order, which does not depend on the coins, so the loop over 2N events has a fixed length.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.coins import Purpose
from spectr.rows import pick_rows
from spectr.transport.laws import normalise, without
from spectr.trees.shape import Topology
from spectr.types import Coins, Draft, LogitsAt, Verdict
from spectr.verify.descent import conclude
from spectr.verify.rule import Card, Descent, Rule, law_of, laws_in

__all__ = ["Traversal"]


def _events(tree: Topology, alive: Tensor) -> tuple[Tensor, Tensor]:
    """Return the times at which alive nodes are entered and tested in depth-first order, (B, N) each; 2N if dead."""
    earlier, deeper = tree.path[:, :, None], tree.path[:, None]
    differ = earlier != deeper  # (B, N, N, D + 1)
    first = differ.int().argmax(-1, keepdim=True)
    before = (earlier.expand_as(differ).gather(-1, first) < deeper.expand_as(differ).gather(-1, first)).squeeze(-1)
    rank = (before & alive[:, :, None]).sum(1)  # alive nodes ahead in preorder
    inside = tree.path[:, :, :, None] == torch.arange(alive.shape[1], device=alive.device)
    size = (inside.any(2) & alive[:, :, None]).sum(1)  # alive nodes in the subtree
    entered = 2 * rank - tree.depth
    never = 2 * alive.shape[1]
    return torch.where(alive, entered, never), torch.where(alive, entered + 2 * size - 1, never)


def _timetable(times: Tensor, length: int) -> Tensor:
    """Invert `times` (B, N): return the node of each moment, (B, length), -1 if there is none."""
    ids = torch.arange(times.shape[1], device=times.device).expand_as(times)
    return torch.full((times.shape[0], length + 1), -1, device=times.device).scatter_(-1, times, ids)[:, :length]


@dataclass(slots=True)
class _State:
    """The remaining laws and acceptance probabilities at each node. Mutable; it is local to one verdict."""

    target: Tensor  # (B, N, V)
    draft: Tensor  # (B, N, V)
    chance: Tensor  # (B, N) float64: current acceptance probability of the node
    end: Tensor  # (B,) the accepted node, -1 until there is one

    def enter(self, node: Tensor, parent: Tensor, token: Tensor) -> None:
        """Set the acceptance probability of the nodes (B,) that are entered."""
        rows = torch.arange(len(node), device=node.device)
        target_mass, draft_mass = (law[rows, parent, token].double() for law in (self.target, self.draft))
        chance = torch.where(
            draft_mass > 0, self.chance[rows, parent] * target_mass / torch.where(draft_mass > 0, draft_mass, 1.0), 0.0
        )
        fresh = (node > 0) & (self.end < 0)
        at = node.clamp_min(0)
        self.chance[rows, at] = torch.where(fresh, chance.clamp_max(1.0), self.chance[rows, at])

    def reject(self, rejected: Tensor, parent: Tensor, token: Tensor, *, replace: bool) -> None:
        """Replace the laws and acceptance probabilities at the parents (B,) of rejected nodes by what remains."""
        rows = torch.arange(len(parent), device=parent.device)
        target, draft, chance = self.target[rows, parent], self.draft[rows, parent], self.chance[rows, parent]
        left = (target * chance[:, None].to(target.dtype) - draft).clamp_min_(0)
        mass = left.sum(-1, dtype=torch.float64)
        scale = mass + 1 - chance
        passed = torch.where(scale > 0, mass / torch.where(scale > 0, scale, 1.0), 1.0)
        self.chance[rows, parent] = torch.where(rejected, passed, chance)
        self.target[rows, parent] = torch.where(rejected[:, None], normalise(left, target), target)
        if not replace:
            shorter = without(draft, token[:, None], rejected[:, None])
            self.draft[rows, parent] = torch.where(rejected[:, None], shorter, draft)


class Traversal(Rule):
    """Tests leaves first; valid for iid siblings, and for siblings drawn without replacement in the order drawn."""

    card = Card(
        "traversal",
        "starts at the leaves and returns the mass of rejected nodes to their parents",
        ("iid", "without_replacement"),
        ("weng2025traversal",),
    )

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, descent: Descent) -> Verdict:
        """Process the events in order; on a CPU, stop as soon as every row has accepted a node."""
        tree, length = descent.tree, 2 * draft.tokens.shape[1]
        entered, tested = (_timetable(times, length) for times in _events(tree, draft.alive))
        chance = torch.ones_like(draft.tokens, dtype=torch.float64)
        target = law_of(logits(None))
        state = _State(
            target, laws_in(draft).to(target.dtype, copy=True), chance, torch.full_like(draft.tokens[:, 0], -1)
        )
        for moment in range(length):
            self._enter(state, draft, entered[:, moment])
            self._test(state, draft, tested[:, moment], coins)
            if draft.tokens.device.type == "cpu" and bool((state.end >= 0).all()):
                break
        weights = pick_rows(state.target, state.end[:, None])
        bonus = coins.pick(weights, state.end[:, None], Purpose.BONUS).squeeze(1)
        return conclude(tree, state.end, bonus)

    def _enter(self, state: _State, draft: Draft, node: Tensor) -> None:
        at = node.clamp_min(0)[:, None]
        state.enter(node, draft.parents.gather(-1, at).squeeze(1), draft.tokens.gather(-1, at).squeeze(1))

    def _test(self, state: _State, draft: Draft, node: Tensor, coins: Coins) -> None:
        at = node.clamp_min(0)[:, None]
        due = (node >= 0) & (state.end < 0)
        chance = torch.where(due[:, None], state.chance.gather(-1, at), 0.0)
        passed = due & ((node == 0) | coins.flip(chance, at, Purpose.BLOCK).squeeze(1))  # the root is always kept
        state.end = torch.where(passed, node, state.end)
        parent, token = draft.parents.gather(-1, at).squeeze(1), draft.tokens.gather(-1, at).squeeze(1)
        state.reject(due & ~passed, parent, token, replace=draft.siblings != "without_replacement")
