"""The topology equals a plain implementation: parents followed one by one, prefixes compared as tuples."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spectr import Draft, Shape
from spectr.errors import ArgumentError
from spectr.trees import as_shape, topology


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    """Return random trees with few tokens, so that copies are common, and some dead subtrees."""
    nodes = draw(st.integers(2, 14))
    parents = [0] + [draw(st.integers(0, n - 1)) for n in range(1, nodes)]
    tokens = [draw(st.integers(0, 2)) for _ in range(nodes)]
    alive = [True] * nodes
    for n in range(1, nodes):
        alive[n] = alive[parents[n]] and draw(st.integers(0, 5)) > 0
    row = [torch.tensor(x)[None] for x in (tokens, parents, alive)]
    return Draft(*row, torch.zeros_like(row[2]), None, "iid", nodes, nodes)


@given(drafts())
def test_topology(draft: Draft) -> None:
    parents, tokens, alive = (x[0].tolist() for x in (draft.parents, draft.tokens, draft.alive))
    tree = topology(draft)
    way = {0: (0,)}
    for n in range(1, len(parents)):
        way[n] = (*way[parents[n]], n)
    words = {n: tuple(tokens[m] for m in path[1:]) for n, path in way.items()}
    for n, path in way.items():
        if not alive[n]:
            continue
        assert int(tree.depth[0, n]) == len(path) - 1
        assert [m for m in tree.path[0, n].tolist() if m >= 0] == list(path)
        first = min(m for m in way if alive[m] and words[m] == words[n])
        assert int(tree.canonical_node[0, n]) == first
        pooled = [m for m in way if m and alive[m] and words[parents[m]] == words[n]]
        listed = [m for m in tree.children[0, n].tolist() if m >= 0]
        assert listed == (pooled if n == first else [])


def test_shapes() -> None:
    assert Shape.chains(2, 3).parents == (0, 0, 0, 1, 2, 3, 4)
    assert (Shape.chains(2, 3).depth, Shape.chains(2, 3).width) == (3, 2)
    assert as_shape((3, 2)).levels == [[0], [1, 2, 3], [4, 5, 6, 7, 8, 9]]
    for bad in ((), (1, 0)):
        with pytest.raises(ArgumentError):
            Shape.branching(bad)
    with pytest.raises(ArgumentError):
        Shape((0, 2, 1))
    with pytest.raises(ArgumentError):
        Shape.chains(0, 3)
