"""Finds the child node that carries a chosen token or sits in a chosen slot."""

import torch
from torch import Tensor

from spectr.rows import pick_rows
from spectr.transport.coupling import Drafted
from spectr.trees.shape import Topology
from spectr.types import Draft

__all__ = ["child_in_slot", "child_with_token", "drafted_at", "node_ids"]


def node_ids(draft: Draft, nodes: Tensor | None) -> Tensor:
    """Return the node ids (B, M) that key the coins; `nodes` of None stands for all nodes."""
    return (
        torch.arange(draft.tokens.shape[1], device=draft.tokens.device).expand_as(draft.tokens)
        if nodes is None
        else nodes
    )


def drafted_at(tree: Topology, draft: Draft, nodes: Tensor | None) -> tuple[Tensor, Drafted]:
    """Return the children (B, M, W) of the nodes, those of all copies together, and the drafted tokens they carry."""
    children = pick_rows(tree.children, nodes)
    flat = children.clamp_min(0).flatten(1)
    tokens, fixed = (values.gather(-1, flat).view_as(children) for values in (draft.tokens, draft.fixed))
    return children, Drafted(tokens, children >= 0, fixed if draft.siblings in ("hybrid", "fixed") else None)


def child_in_slot(tree: Topology, children: Tensor, slot: Tensor) -> Tensor:
    """Return the first copy of the child in `slot` (B, M), -1 for the slot after the last."""
    padded = torch.nn.functional.pad(children, (0, 1), value=-1).gather(-1, slot[..., None]).squeeze(-1)
    return torch.where(padded < 0, -1, tree.canonical_node.gather(-1, padded.clamp_min(0)))


def child_with_token(tree: Topology, draft: Draft, nodes: Tensor | None, token: Tensor) -> Tensor:
    """Return the first copy of each node's child that carries `token` (B, M), -1 if there is none."""
    children = pick_rows(tree.children, nodes)
    tokens = draft.tokens.gather(-1, children.clamp_min(0).flatten(1)).view_as(children)
    hit = (children >= 0) & (tokens == token[..., None])
    child = torch.where(hit, children, -1).amax(-1)
    return torch.where(child < 0, -1, tree.canonical_node.gather(-1, child.clamp_min(0)))
