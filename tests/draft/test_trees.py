"""The trees of drafters: n-gram distributions computed by hand, pruned trees compared with brute force, merged trees,
and vocabularies of other sizes."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from spectr.draft import Plan, drafter
from spectr.draft.mixed import merge
from spectr.draft.model import fit_vocabulary
from spectr.draft.ngram import NGram, _NGramDrafting
from spectr.draft.trie import draft_of_paths
from spectr.errors import ArgumentError
from spectr.trees import Budget, Frontier, Shape, prune
from spectr.types import Opening


def drafting(order: int, text: list[int], own: list[int], size: int) -> _NGramDrafting:
    made = NGram(Plan(), order, text).open(Opening(2, 99, size, None))
    assert isinstance(made, _NGramDrafting)
    made.begin(0, own, 99, None)
    made.rows[0].learn(own)
    return made


def test_witten_bell_by_hand() -> None:
    """Witten-Bell smoothing by hand: the tokens were 1, 2, 1, 2, 1, 3, and the followers of 1 were 2, 2, 3."""
    state = drafting(2, [1, 2, 1, 2], [1, 3], 5)
    base, masses = state.law(0, [1])
    unigram = {1: 3 / 9, 2: 2 / 9, 3: 1 / 9}  # six tokens of three kinds; a third is left for the uniform law
    left = 2 / 5  # three followers of two kinds
    assert base == pytest.approx(left * (3 / 9) / 5)
    assert masses == pytest.approx({1: left * unigram[1], 2: 2 / 5 + left * unigram[2], 3: 1 / 5 + left * unigram[3]})
    assert 5 * base + sum(masses.values()) == pytest.approx(1)


def test_a_law_without_any_count_is_uniform() -> None:
    base, masses = drafting(3, [], [], 8).law(0, [5, 5])
    assert (base, masses) == (1 / 8, {})


def test_copied_rows_learn_apart() -> None:
    """A copied row has the counts of its source, and later tokens of the source do not change it."""
    state = drafting(2, [], [1, 2], 5)
    state.copy_rows([0], [1], 99)
    state.rows[0].learn([1, 3])
    assert state.rows[1].after((1,)) == {2: 1}
    assert state.rows[0].after((1,)) == {2: 1, 3: 1}


def chances(size: int) -> dict[tuple[int, ...], Tensor]:
    """Return random log-probabilities after every path of up to two tokens."""
    generator = torch.Generator().manual_seed(2)
    paths = [path for length in range(3) for path in itertools.product(range(size), repeat=length)]
    return {path: torch.randn(size, generator=generator).mul(1.5).log_softmax(-1) for path in paths}


@pytest.mark.parametrize("nodes", [2, 5, 9, 14])
def test_a_pruned_tree_is_the_best_tree(nodes: int) -> None:
    """With a wide beam the pruned tree has the most probable nodes, compared with brute force."""
    size, laws = 4, chances(4)

    def best_of(frontier: Frontier, count: int) -> tuple[Tensor, Tensor]:
        found = torch.stack([torch.stack([laws[tuple(path)] for path in row]) for row in frontier.paths.tolist()])
        best = found.topk(min(count, size), -1)
        return best.values, best.indices

    drawn = prune(torch.tensor([0]), best_of, Budget(nodes, beam=16, depth=3))
    scores = {
        path: float(sum(laws[path[:d]][path[d]] for d in range(len(path))))
        for length in (1, 2, 3)
        for path in itertools.product(range(size), repeat=length)
    }
    best = set(sorted(scores, key=lambda path: -scores[path])[: nodes - 1])
    draft, found = drawn.draft, set()
    for node in range(1, nodes):
        path, at = [], node
        while at:
            path.append(int(draft.tokens[0, at]))
            assert int(draft.parents[0, at]) < at
            at = int(draft.parents[0, at])
        found.add(tuple(reversed(path)))
    assert found == best


def test_a_pruned_tree_has_no_impossible_nodes() -> None:
    """Nodes of probability 0 are left out of a pruned tree."""
    law = torch.tensor([0.0, -torch.inf, -torch.inf, -torch.inf])
    drawn = prune(
        torch.tensor([0, 0]), lambda f, _: law.expand(*f.tokens.shape, 4).sort(descending=True), Budget(12, 3, 3)
    )
    assert drawn.draft.tokens.tolist() == [[0, 0, 0, 0]] * 2
    assert drawn.draft.parents.tolist() == [[0, 0, 1, 2]] * 2
    assert drawn.scored.tolist() == [[0, 1, 4, -1]] * 2  # a beam of three at each depth, of which one node is possible


def test_merged_trees_share_what_they_share() -> None:
    """Merged trees have each path once, and the origins say which node of which tree it is."""
    root = torch.tensor([9, 9])
    first = draft_of_paths(root, [[(1, 2), (3,)], [(4,)]], 8)
    second = draft_of_paths(root, [[(1, 5), (6,)], [(4, 7), (8,)]], 8)
    merged = merge([first, second], "fixed")
    assert merged.draft.tokens.tolist() == [[9, 1, 2, 3, 5, 6], [9, 4, 7, 8, 0, 0]]
    assert merged.draft.parents[0].tolist() == [0, 0, 1, 0, 1, 0]
    assert merged.draft.parents[1, :4].tolist() == [0, 0, 1, 0]
    assert merged.draft.alive.sum(-1).tolist() == [6, 4]
    assert merged.origins[0][0].tolist() == [0, 1, 2, 3, -1, -1]
    assert merged.origins[1][0].tolist() == [0, 1, -1, -1, 2, 3]
    assert merged.origins[1][1, :4].tolist() == [0, 1, 2, 3]


def test_vocabularies_are_fitted() -> None:
    """Logits are cut to a smaller vocabulary, and padded to a larger one with tokens of negligible probability."""
    logits = torch.tensor([[1.0, 2.0, 3.0]])
    assert fit_vocabulary(logits, 2).tolist() == [[1.0, 2.0]]
    assert fit_vocabulary(logits, 5).tolist() == [[1.0, 2.0, 3.0, -97.0, -97.0]]
    assert fit_vocabulary(logits, 5).softmax(-1)[0, 3:].sum() < 1e-40


def test_bad_plans() -> None:
    """Invalid numbers in plans and budgets are refused with a reason."""
    for options, sentence in (
        ({"nodes": 1}, "at least 2"),
        ({"length": 0}, "length must be"),
        ({"tree": ()}, "branching"),
        ({"tree": (2.0, 2)}, "a branching number of tree must be a whole number, got 2.0"),
        ({"length": "4"}, "length must be a whole number, got '4'"),
        ({"drafts": True}, "drafts must be a whole number, got True"),
    ):
        with pytest.raises(ArgumentError, match=sentence):
            Plan("iid", **options).shape  # type: ignore[arg-type]  # noqa: B018
    with pytest.raises(ArgumentError, match="beam of a pruned tree"):
        Budget(4, beam=0)


@pytest.mark.parametrize(
    "sizes",
    [
        {"nodes": 100_000}, {"siblings": "iid", "drafts": 1000, "length": 1000}, {"tree": (100, 100, 100)},
        {"siblings": "race", "drafts": 70, "length": 70}, {"tree": Shape((0,) * 5000)}, {"tree": (100,) * 3000},
        {"nodes": 64, "drafts": 9000, "length": 2}, {"tree": (1,) * 5000},
    ],
)  # fmt: skip
def test_trees_that_no_memory_holds_are_refused(sizes: dict[str, Any]) -> None:
    with pytest.raises(ArgumentError, match="a tree must have at most 4096 nodes, the root included"):
        Plan(**sizes)


def test_lookup_refuses_such_trees_too() -> None:
    assert drafter("lookup", drafts=9000, nodes=20).nodes == 20
    with pytest.raises(ArgumentError, match="at most 4096 nodes"):
        drafter("lookup", drafts=2, nodes=20_000)
