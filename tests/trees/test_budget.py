"""The best static tree, compared with all trees."""

import itertools

import pytest

from spectr.errors import ArgumentError
from spectr.trees.budget import best_shape
from spectr.trees.shape import Shape

CHANCES = [[0.55, 0.2, 0.1], [0.7, 0.1], [0.4, 0.3, 0.2]]


def worth(parents: tuple[int, ...]) -> float:
    """Return the expected tokens of any shape, by definition."""
    shape, values = Shape(parents), [1.0]
    seen: dict[int, int] = {}
    for node in range(1, len(parents)):
        parent = parents[node]
        rank = seen[parent] = seen.get(parent, -1) + 1
        row = CHANCES[min(shape.depths[node] - 1, len(CHANCES) - 1)]
        values.append(values[parent] * (row[rank] if rank < len(row) else 0.0))
    return sum(values)


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5, 6, 7])
def test_no_tree_is_better(nodes: int) -> None:
    every = itertools.product(*(range(max(1, n)) for n in range(nodes)))
    best = max(worth(parents) for parents in every)
    found = best_shape(CHANCES, nodes)
    assert found.expected == pytest.approx(best)
    assert worth(found.shape.parents) == pytest.approx(best)


def test_impossible_nodes_are_not_drawn() -> None:
    assert best_shape([[0.5, 0.0]], 50).values[1:3] == (0.5, 0.25)
    assert len(best_shape([[0.5], [0.0]], 50).values) == 2


@pytest.mark.parametrize("chances", [[], [[]], [[0.2, 0.5]], [[0.8, 0.4]], [[-0.1]]])
def test_bad_chances(chances: list[list[float]]) -> None:
    with pytest.raises(ArgumentError, match="chances"):
        best_shape(chances, 4)
