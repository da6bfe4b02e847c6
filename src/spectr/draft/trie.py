"""Makes a draft from a few continuations of each text: shared prefixes become shared nodes."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from spectr.types import Draft

__all__ = ["draft_of_paths"]


def _grow_trie(paths: Iterable[Sequence[int]], nodes: int) -> tuple[list[int], list[int]]:
    """Return tokens and parents of a prefix tree of at most `nodes` nodes, filled in the order of `paths`. The root's
    token is left as 0."""
    tokens, parents, known = [0], [0], dict[tuple[int, int], int]()
    for path in paths:
        node = 0
        for token in path:
            child = known.get((node, token))
            if child is None:
                if len(tokens) == nodes:
                    return tokens, parents
                child = known[node, token] = len(tokens)
                tokens.append(token)
                parents.append(node)
            node = child
    return tokens, parents


def _depth_and_width(parents: list[list[int]]) -> tuple[int, int]:
    deepest = widest = 1
    for row in parents:
        depths = [0]
        for parent in row[1:]:
            depths.append(depths[parent] + 1)
        deepest = max(deepest, *depths)
        widest = max(widest, *(depths.count(level) for level in set(depths)))
    return deepest, widest


def draft_of_paths(root: Tensor, paths: Sequence[Iterable[Sequence[int]]], nodes: int) -> Draft:
    """Return a draft of fixed siblings: row b has the continuations `paths[b]` below `root` (B,), in at most `nodes`
    nodes.

    The draft has as many nodes as its largest row needs.

    >>> draft_of_paths(torch.tensor([7]), [[(1, 2), (1, 3)]], nodes=8).tokens.tolist()
    [[7, 1, 2, 3]]
    """
    tries = [_grow_trie(row, nodes) for row in paths]
    size, device = max(len(tokens) for tokens, _ in tries), root.device
    tokens = torch.tensor([t + [0] * (size - len(t)) for t, _ in tries], device=device)
    tokens[:, 0] = root
    parents = torch.tensor([p + [0] * (size - len(p)) for _, p in tries], device=device)
    alive = torch.tensor([[n < len(t) for n in range(size)] for t, _ in tries], device=device)
    deepest, widest = _depth_and_width([p for _, p in tries])
    fixed = alive.clone()
    fixed[:, 0] = False
    return Draft(tokens, parents, alive, fixed, None, "fixed", deepest, widest)
