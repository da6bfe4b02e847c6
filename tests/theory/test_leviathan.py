"""Tokens per call and their cost: closed forms against the enumerated law of a step, and the best length against all
lengths."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import spectr
from spectr.audit.toys import toy_pair
from spectr.errors import ArgumentError
from spectr.theory import (
    bernoulli,
    expected_tokens,
    expected_tokens_by_depth,
    operations,
    pays,
    predict,
    predict_by_depth,
    speedup,
    token_law,
)
from spectr.transport.laws import overlap

ALPHAS = [0.0, 1e-9, 0.05, 0.3, 0.5, 0.8, 0.95, 1 - 1e-9, 1.0]


def coin_flips(acceptance: list[float]) -> dict[int, float]:
    """Yield every sequence of acceptances and its number of tokens: those before the first rejection, plus one."""
    found = dict.fromkeys(range(1, len(acceptance) + 2), 0.0)
    for flips in itertools.product((True, False), repeat=len(acceptance)):
        chance = math.prod(a if flip else 1 - a for a, flip in zip(acceptance, flips, strict=True))
        found[1 + len(list(itertools.takewhile(bool, flips)))] += chance
    return found


@pytest.mark.parametrize("acceptance", [[], [0.3], [0.8, 0.5, 0.9], [0.0, 1.0], [1.0, 1.0, 0.25, 0.7, 0.7]])
def test_the_law_of_a_call(acceptance: list[float]) -> None:
    flipped = coin_flips(acceptance)
    assert token_law(acceptance) == pytest.approx(list(flipped.values()), abs=1e-12)
    mean = sum(n * chance for n, chance in flipped.items())
    assert expected_tokens_by_depth(acceptance) == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize("alpha", ALPHAS)
@pytest.mark.parametrize("gamma", [0, 1, 2, 7])
def test_the_capped_geometric(alpha: float, gamma: int) -> None:
    flipped = sum(n * chance for n, chance in coin_flips([alpha] * gamma).items())
    assert expected_tokens(alpha, gamma) == pytest.approx(flipped, abs=1e-10)
    assert speedup(alpha, 0.1, gamma) == pytest.approx(flipped / (1 + 0.1 * gamma), abs=1e-10)
    assert operations(alpha, 0.1, gamma) == pytest.approx((1.1 * gamma + 1) / flipped, abs=1e-10)


@pytest.mark.parametrize("gamma", [1, 2, 4])
def test_a_real_step_of_a_context_free_pair(gamma: int) -> None:
    """Enumerate all drafts and coins of the actual rule."""
    family = bernoulli(0.3, 0.6)
    law = spectr.exact_step_law("speculative", lambda _: family.target, lambda _: family.draft, (1,) * gamma)
    alpha = float(overlap(family.target, family.draft))
    assert law.expected_tokens == pytest.approx(expected_tokens(alpha, gamma), abs=1e-10)


@pytest.mark.parametrize(("rule", "tree"), [("speculative", (1, 1, 1)), ("kseq", (2, 1)), ("optimal", (2, 2))])
@pytest.mark.parametrize("seed", range(3))
def test_acceptance_by_depth_of_any_rule(rule: str, tree: tuple[int, ...], seed: int) -> None:
    """With correlated depths and several drafts tokens per call are still 1 + Σ Π a_j."""
    law = spectr.exact_step_law(rule, *toy_pair("plain", 3, seed), tree)
    kept = [sum(p for text, p in law.items() if len(text) > depth) for depth in range(len(tree) + 1)]
    acceptance = [below / above for above, below in itertools.pairwise(kept)]
    assert law.expected_tokens == pytest.approx(expected_tokens_by_depth(acceptance), abs=1e-10)


@given(st.floats(0, 1), st.floats(0, 2))
def test_some_length_pays_exactly_if_acceptance_exceeds_the_cost(alpha: float, cost: float) -> None:
    best = max(speedup(alpha, cost, gamma) for gamma in range(1, 60))
    if abs(alpha - cost) > 1e-9:
        assert pays(alpha, cost) == (best > 1 + 1e-15)
    if pays(alpha, cost):
        assert best >= (1 + alpha) / (1 + cost) - 1e-12


@given(st.floats(0, 0.97), st.floats(1e-3, 1))
def test_the_best_length_is_the_best_of_all(alpha: float, cost: float) -> None:
    found = predict(alpha, cost)
    every = [speedup(alpha, cost, gamma) for gamma in range(400)]
    assert found.speedup == pytest.approx(max(every), rel=1e-12)
    assert found.speedup == speedup(alpha, cost, found.gamma)
    assert found.expected_tokens == expected_tokens(alpha, found.gamma)


def test_the_table_of_best_lengths() -> None:
    """γ and speed-up for the acceptances and costs that the paper plots."""
    table = {(0.5, 0.02): (4, 1.79), (0.8, 0.05): (8, 3.09), (0.9, 0.1): (10, 3.43), (0.95, 0.2): (10, 2.87)}
    for (alpha, cost), (gamma, factor) in table.items():
        found = predict(alpha, cost)
        assert (found.gamma, round(found.speedup, 2)) == (gamma, factor)


def test_where_no_length_is_the_best_the_longest_is() -> None:
    assert predict(1.0, 0.1, longest=50).gamma == 50
    assert predict(0.5, 0.0, longest=20).gamma == 20
    assert predict(1.0, 1.0).gamma == 0
    assert predict(0.0, 0.0).gamma == 0


@given(st.lists(st.floats(0, 1), max_size=6), st.floats(0, 1))
def test_the_best_length_by_depth(acceptance: list[float], cost: float) -> None:
    found = predict_by_depth(acceptance, cost)
    every = [expected_tokens_by_depth(acceptance[:n]) / (1 + n * cost) for n in range(len(acceptance) + 1)]
    assert found.speedup == pytest.approx(max(every), rel=1e-12)
    assert found.expected_tokens == pytest.approx(expected_tokens_by_depth(acceptance[: found.gamma]), rel=1e-12)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"alpha must be a probability in \[0, 1\], got 1\.5"):
        predict(1.5, 0.1)
    with pytest.raises(ArgumentError, match="cost must be a finite number of at least 0"):
        predict(0.5, -1)
    with pytest.raises(ArgumentError, match="gamma must be at least 0"):
        expected_tokens(0.5, -1)
    with pytest.raises(ArgumentError, match="acceptance at each depth must be a probability"):
        token_law([0.5, math.nan])
