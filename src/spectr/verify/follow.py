"""From a chosen token or slot to the node it leads to. Knows children tables, no laws."""

import torch
from torch import Tensor

from spectr.rows import pick_rows
from spectr.transport.coupling import Drafted
from spectr.trees.shape import Topology
from spectr.types import Draft

__all__ = ["child_in_slot", "child_with_token", "drafted_at", "node_ids"]


def node_ids(draft: Draft, nodes: Tensor | None) -> Tensor:
    """The nodes themselves, (B, M): what coins are keyed by."""
    return (
        torch.arange(draft.tokens.shape[1], device=draft.tokens.device).expand_as(draft.tokens)
        if nodes is None
        else nodes
    )


def drafted_at(tree: Topology, draft: Draft, nodes: Tensor | None) -> tuple[Tensor, Drafted]:
    """Children (B, M, W) of the nodes, copies pooled, and the drafted tokens they carry."""
    children = pick_rows(tree.children, nodes)
    flat = children.clamp_min(0).flatten(1)
    tokens, fixed = (values.gather(-1, flat).view_as(children) for values in (draft.tokens, draft.fixed))
    return children, Drafted(tokens, children >= 0, fixed if draft.siblings in ("hybrid", "fixed") else None)


def child_in_slot(tree: Topology, children: Tensor, slot: Tensor) -> Tensor:
    """The first copy of the child in `slot` (B, M); -1 for the slot after the last."""
    padded = torch.nn.functional.pad(children, (0, 1), value=-1).gather(-1, slot[..., None]).squeeze(-1)
    return torch.where(padded < 0, -1, tree.canonical_node.gather(-1, padded.clamp_min(0)))


def child_with_token(tree: Topology, draft: Draft, nodes: Tensor | None, token: Tensor) -> Tensor:
    """The child of each node that carries `token` (B, M), first copy; -1 if none does."""
    children = pick_rows(tree.children, nodes)
    tokens = draft.tokens.gather(-1, children.clamp_min(0).flatten(1)).view_as(children)
    hit = (children >= 0) & (tokens == token[..., None])
    child = torch.where(hit, children, -1).amax(-1)
    return torch.where(child < 0, -1, tree.canonical_node.gather(-1, child.clamp_min(0)))
