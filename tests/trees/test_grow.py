"""Drawn trees have the declared kind of siblings, and only tokens that the draft law allows."""

import pytest
import torch
from torch import Tensor

from spectr import Growth, SeededCoins, Shape, grow
from spectr.errors import ArgumentError
from spectr.transport.hybrid import fixed_count

ROWS = 400
LAW = torch.tensor([0.5, 0.0, 0.3, 0.15, 0.05])


def grown(growth: Growth, law: Tensor = LAW) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens, alive and fixed flags of the root's children."""
    seeds = torch.arange(ROWS)
    coins = SeededCoins(seeds, torch.zeros_like(seeds))
    draft = grow(torch.zeros_like(seeds), lambda _, n: law.expand(ROWS, len(n), -1), growth, coins)
    kids = slice(1, 1 + growth.shape.parents.count(0) - 1)
    return draft.tokens[:, kids], draft.alive[:, kids], draft.fixed[:, kids]


def test_iid_siblings_may_be_copies() -> None:
    tokens, alive, fixed = grown(Growth(Shape.branching((4,))))
    assert bool(alive.all())
    assert not bool(fixed.any())
    assert 1 not in tokens
    assert any(len(set(row)) < 4 for row in tokens.tolist())  # copies happen


def test_without_replacement() -> None:
    tokens, alive, _ = grown(Growth(Shape.branching((5,)), "without_replacement"))
    assert alive.sum(-1).unique().tolist() == [4]  # at most as many as the law has tokens
    assert all(len(set(row[:4])) == 4 for row in tokens.tolist())
    assert 1 not in tokens[alive]


def test_fixed() -> None:
    tokens, alive, fixed = grown(Growth(Shape.branching((3,)), "fixed"))
    assert tokens.unique(dim=0).tolist() == [[0, 2, 3]]
    assert bool(fixed.all() & alive.all())


def test_hybrid() -> None:
    tokens, alive, fixed = grown(Growth(Shape.branching((4,)), "hybrid"))
    count = int(fixed_count(LAW, 4))
    assert 0 < count < 4
    assert fixed.sum(-1).unique().tolist() == [count]
    assert tokens[:, :count].unique(dim=0).tolist() == [[0, 2, 3][:count]]
    assert not set(tokens[:, count:].flatten().tolist()) & {0, 1, 2}
    assert bool(alive.all())


def test_hybrid_with_nothing_left_to_draw() -> None:
    _, alive, fixed = grown(Growth(Shape.branching((3,)), "hybrid"), torch.tensor([1.0, 0.0, 0.0]))
    assert alive.unique(dim=0).tolist() == [[True, False, False]]
    assert fixed.unique(dim=0).tolist() == [[True, False, False]]


def test_race_children_are_distinct_and_best_first() -> None:
    tokens, alive, _ = grown(Growth(Shape.branching((3,)), "race"))
    assert bool(alive.all())
    assert all(len(set(row)) == 3 for row in tokens.tolist())
    share = (tokens[:, 0] == 0).double().mean()
    assert abs(float(share) - 0.5) < 6 * (0.25 / ROWS) ** 0.5  # the first is a draw from the law


def test_child_counts_are_respected() -> None:
    growth = Growth(Shape.branching((3, 2)), child_counts=lambda law: torch.full(law.shape[:-1], 2))
    tokens, alive, _ = grown(growth)
    assert alive.unique(dim=0).tolist() == [[True, True, False]]
    assert tokens.shape == (ROWS, 3)


def test_a_tree_needs_a_child() -> None:
    with pytest.raises(ArgumentError, match="below its root"):
        grown(Growth(Shape((0,))))
