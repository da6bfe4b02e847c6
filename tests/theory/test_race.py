"""Ranks in the race and what a tree can give: closed forms against inclusion and exclusion, bounds against every
tree."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import spectr
from spectr.errors import LawError
from spectr.theory import (
    bernoulli,
    best_static_tokens,
    entropy,
    entropy_bound,
    one_child,
    rank_bound,
    rank_law,
    uniform,
    worth_of_a_nat,
    zipf,
)
from spectr.theory.families import Family

FAMILIES = [bernoulli(0.25, 0.75), bernoulli(0.5, 0.5), uniform(2, 3, offset=1), zipf(5, seed=1), zipf(6, noise=0.3)]
IDS = [family.name for family in FAMILIES]


def counted_ranks(target: Tensor, draft: Tensor) -> list[float]:
    """The rank law by inclusion and exclusion over the sets of rivals that may be ahead: given that v wins at time τ,
    rival w is ahead with chance 1 − exp(−τ·c_w), independently, and τ is Exp(1)."""
    size = len(target)
    found = [0.0] * size
    for v in range(size):
        if target[v] == 0 or draft[v] == 0:
            continue
        rivals = [w for w in range(size) if w != v]
        rate = {w: max(0.0, float(target[v] * draft[w] / draft[v] - target[w])) for w in rivals}
        for count in range(size):
            for ahead in itertools.combinations(rivals, count):
                behind = sum(rate[w] for w in rivals if w not in ahead)
                for gone in itertools.chain.from_iterable(itertools.combinations(ahead, n) for n in range(count + 1)):
                    sign = (-1) ** len(gone)
                    found[count] += float(target[v]) * sign / (1 + behind + sum(rate[w] for w in gone))
    return found


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_the_rank_law(family: Family) -> None:
    law = rank_law(family.target, family.draft)
    assert law.tolist() == pytest.approx(counted_ranks(family.target, family.draft), abs=1e-10)
    for k in (1, 2, 3):
        accepted = spectr.race_acceptance(family.target, family.draft, min(k, len(law)))
        assert float(law[:k].sum()) == pytest.approx(float(accepted), abs=1e-10)


@pytest.mark.parametrize("family", FAMILIES, ids=IDS)
def test_one_child(family: Family) -> None:
    found = float(one_child(family.target, family.draft))
    assert found == pytest.approx(counted_ranks(family.target, family.draft)[0], abs=1e-10)


def test_one_child_of_a_large_vocabulary_and_of_batches() -> None:
    families = [zipf(2000, seed=seed) for seed in range(2)]
    target, draft = (torch.stack([getattr(f, name) for f in families]) for name in ("target", "draft"))
    for p, q, found in zip(target, draft, one_child(target, draft).tolist(), strict=True):
        rivals = torch.maximum(p[:, None] * q / p, q[:, None])  # (w, v): q(v)·max(p(w)/p(v), q(w)/q(v))
        assert found == pytest.approx(float((q / rivals.sum(0)).sum()), abs=1e-10)


def trees(nodes: int, ranks: int) -> set[frozenset[tuple[int, ...]]]:
    """Yield every tree of words of ranks with this number of nodes below the root."""
    grown: set[frozenset[tuple[int, ...]]] = {frozenset()}
    for _ in range(nodes):
        grown = {
            tree | {(*word, rank)} for tree in grown for word in (*tree, ()) for rank in range(ranks)
            if (*word, rank) not in tree
        }  # fmt: skip
    return grown


def tokens_of(tree: frozenset[tuple[int, ...]], law: list[float]) -> float:
    return 1 + sum(math.prod(law[rank] for rank in word) for word in tree)


LAWS = [
    [0.5, 0.25, 0.25],
    [0.6, 0.3, 0.05],
    [1 / 3, 1 / 3, 1 / 3],
    [0.2, 0.5, 0.3],
    [0.97, 0.02, 0.01],
    [0.1, 0.05, 0.0],
]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("nodes", [1, 2, 3, 4])
def test_no_tree_passes_the_bounds_and_the_best_is_what_it_is_said_to_be(law: list[float], nodes: int) -> None:
    """Check every tree."""
    ranks = torch.tensor(law, dtype=torch.float64)
    found = [tokens_of(tree, law) for tree in trees(nodes, len(law))]
    assert best_static_tokens(ranks, nodes) == pytest.approx(max(found), abs=1e-10)
    assert max(found) <= rank_bound(ranks, nodes) + 1e-12
    assert max(found) <= entropy_bound(ranks, nodes, 1 + len(law)) + 1e-12


def ends(tree: frozenset[tuple[int, ...]], law: list[float]) -> dict[tuple[int, ...], float]:
    """Return where a verdict on the tree ends, with the probability."""
    inside = {(), *tree}
    miss = {w: 1 - sum(p for r, p in enumerate(law) if (*w, r) in tree) for w in inside}
    return {w: math.prod(law[r] for r in w) * miss[w] for w in inside}


@pytest.mark.parametrize("law", LAWS)
def test_a_verdict_tells_what_its_nodes_tell(law: list[float]) -> None:
    """Check the two steps of the proof on every tree of three nodes: entropy by the chain rule, and κ at each node."""
    worth = worth_of_a_nat(torch.tensor(law, dtype=torch.float64))
    for tree in trees(3, len(law)):
        nats = -sum(p * math.log(p) for p in ends(tree, law).values() if p > 1e-300)
        by_node = accepted = 0.0
        for word in ((), *tree):
            below = [p for r, p in enumerate(law) if (*word, r) in tree]
            parts = [*below, 1 - sum(below)]
            here = -sum(p * math.log(p) for p in parts if p > 1e-15)
            reach = math.prod(law[r] for r in word)
            by_node += reach * here
            accepted += reach * sum(below)
            assert sum(below) <= worth * here + 1e-12
        assert nats == pytest.approx(by_node, abs=1e-10)
        assert nats <= math.log(4) + 1e-12
        assert accepted == pytest.approx(tokens_of(tree, law) - 1, abs=1e-12)


@settings(max_examples=150)
@given(st.lists(st.floats(1e-3, 1), min_size=1, max_size=6), st.floats(0.0, 0.5))
def test_no_set_of_ranks_is_worth_more_than_the_likeliest(weights: list[float], lost: float) -> None:
    """κ considers only the c likeliest ranks; this test considers every set."""
    law = [w / sum(weights) * (1 - lost) for w in weights]
    worth = worth_of_a_nat(torch.tensor(law, dtype=torch.float64))
    for count in range(1, len(law) + 1):
        for some in itertools.combinations(law, count):
            parts = [*some, max(0.0, 1 - sum(some))]
            nats = -sum(p * math.log(p) for p in parts if p > 0)
            assert sum(some) <= worth * nats + 1e-9 or worth == math.inf


@pytest.mark.parametrize("nodes", [1, 2, 3])
def test_ranks_that_remember(nodes: int) -> None:
    """If the law of a rank depends on the previous rank, the bound holds with the largest κ."""
    laws = {None: [0.5, 0.3, 0.2], 0: [0.8, 0.1, 0.1], 1: [0.3, 0.4, 0.2], 2: [0.34, 0.33, 0.33]}
    bound = max(rank_bound(torch.tensor(law, dtype=torch.float64), nodes) for law in laws.values())

    def chance(word: tuple[int, ...]) -> float:
        return math.prod(laws[before][rank] for before, rank in zip((None, *word), word, strict=False))

    found = [1 + sum(chance(word) for word in tree) for tree in trees(nodes, 3)]
    assert max(found) <= bound + 1e-12


def test_a_stopped_word_holds_its_entropy() -> None:
    """H(word) = E[tokens]·H(rank), on which the entropy bound is based."""
    law, tree = [0.5, 0.3, 0.2], frozenset({(0,), (1,), (0, 0), (0, 1), (0, 0, 0)})
    words = {(*w, r): p / (1 - sum(law[x] for x in range(3) if (*w, x) in tree)) * law[r]
             for w, p in ends(tree, law).items() for r in range(3) if (*w, r) not in tree}  # fmt: skip
    assert sum(words.values()) == pytest.approx(1, abs=1e-12)
    held = -sum(p * math.log(p) for p in words.values())
    assert held == pytest.approx(tokens_of(tree, law) * entropy(torch.tensor(law, dtype=torch.float64)), abs=1e-10)


def test_bounds_hold_in_corner_cases() -> None:
    assert worth_of_a_nat(torch.tensor([1.0])) == math.inf
    assert rank_bound(torch.tensor([1.0]), 7) == entropy_bound(torch.tensor([1.0]), 7, 10) == 8
    assert best_static_tokens(torch.tensor([1.0]), 7) == 8
    nothing = torch.zeros(3)
    assert (best_static_tokens(nothing, 4), rank_bound(nothing, 4), entropy(nothing)) == (1.0, 1.0, 0.0)
    with pytest.raises(LawError, match="ranks"):
        entropy(torch.tensor([0.9, 0.9]))
    with pytest.raises(LawError, match="one pair of laws"):
        rank_law(*torch.full((2, 2, 2), 0.5, dtype=torch.float64))
