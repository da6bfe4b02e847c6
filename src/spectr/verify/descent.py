"""Descends a tree by local decisions, either node by node or at all nodes at once.

A rule decides at a node which child comes next (or none) and returns a payload: a token, or the weights to draw one
from. Coins are keyed by node, so both orders give the same path.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.rows import LazyRows, pick_rows
from spectr.trees.shape import Topology
from spectr.types import Verdict

__all__ = ["Decide", "Trail", "conclude", "descend"]

Decide = Callable[[Tensor | None], tuple[Tensor, LazyRows]]
"""Maps nodes (B, M), or None for all nodes, to the next child (B, M), -1 to stop, and payload rows (B, M, …)."""


@dataclass(frozen=True, slots=True)
class Trail:
    """The path taken down a tree: its last node, its nodes, and the payloads of the decisions."""

    end: Tensor  # (B,) node
    nodes: Tensor  # (B, D + 1) node at each depth, padded with -1
    payloads: list[LazyRows]  # one entry for all nodes (B, N, …), or one for each depth (B, 1, …)
    rows: Tensor  # (B, D + 1) the column of the payloads that belongs to each depth

    def at(self, depth: Tensor) -> Tensor:
        """Return the payloads at depths (B, M), as (B, M, …); beyond the end they are arbitrary."""
        row = self.rows.gather(-1, depth)
        if len(self.payloads) == 1:
            return self.payloads[0].at(row)
        needed = row.unique().tolist() if row.device.type == "cpu" else list(range(len(self.payloads)))
        computed = torch.cat([self.payloads[d].all() for d in needed], 1)
        return pick_rows(computed, torch.searchsorted(torch.tensor(needed, device=row.device), row))

    def at_end(self) -> Tensor:
        """Return the payload of the last node, (B, …)."""
        return self.at((self.nodes >= 0).sum(-1, keepdim=True) - 1).squeeze(1)


def descend(decide: Decide, tree: Topology, *, lazily: bool) -> Trail:
    """Follow `decide` from the root until it returns no child."""
    return _node_by_node(decide, tree) if lazily else _all_at_once(decide, tree)


def _node_by_node(decide: Decide, tree: Topology) -> Trail:
    node = tree.depth.new_zeros(tree.depth.shape[0], 1)
    payloads = []
    for _ in range(tree.path.shape[-1]):
        child, payload = decide(node)
        payloads.append(payload)
        if node.device.type == "cpu" and bool((child < 0).all()):
            break
        node = torch.where(child < 0, node, child)
    nodes = pick_rows(tree.path, node).squeeze(1)
    rows = torch.arange(nodes.shape[-1], device=nodes.device).clamp_max(len(payloads) - 1).expand_as(nodes)
    return Trail(node.squeeze(1), nodes, payloads, rows)


def _all_at_once(decide: Decide, tree: Topology) -> Trail:
    child, payload = decide(None)
    here = torch.arange(child.shape[1], device=child.device).expand_as(child)
    jump = torch.where(child < 0, here, child)
    for _ in range(tree.path.shape[-1].bit_length()):  # each round doubles the number of levels jumped
        jump = jump.gather(-1, jump)
    nodes = pick_rows(tree.path, jump[:, :1]).squeeze(1)
    decided = tree.canonical_node.gather(-1, nodes.clamp_min(0))  # copies share the decision of the first copy
    return Trail(jump[:, 0], nodes, [payload], decided)


def conclude(tree: Topology, end: Tensor, bonus: Tensor) -> Verdict:
    """Return the verdict that keeps the path to node `end` (B,) and appends the token `bonus` (B,)."""
    at = end[:, None]
    path = pick_rows(tree.path, at).squeeze(1)[:, 1:]
    corrected = (pick_rows(tree.children, pick_rows(tree.canonical_node, at)).squeeze(1) >= 0).any(-1)
    return Verdict(path, (path >= 0).sum(-1), bonus, corrected)
