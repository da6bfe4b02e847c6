"""The bias–rejection frontier and the two laws after a rejection, against linear programs and enumerated texts."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.theory import decoding_opt, decoding_uno, least_bias, relaxed_test, relaxed_text, zipf_chain
from spectr.transport.laws import total_variation

Pair = tuple[Tensor, Tensor]


@st.composite
def law_pairs(draw: st.DrawFn, most: int = 5) -> Pair:
    size = draw(st.integers(2, most))
    entry = st.one_of(st.just(0.0), st.integers(1, 4).map(float), st.floats(-4, 0).map(lambda e: 10.0**e))
    weights = st.lists(entry, min_size=size, max_size=size).filter(lambda w: sum(w) > 1e-2)
    target, draft = (torch.tensor(draw(weights), dtype=torch.float64) for _ in range(2))
    return target / target.sum(), draft / draft.sum()


def least_bias_of(taken: Tensor, target: Tensor) -> float:
    """Solve the linear program over all laws after a rejection, for accepted masses `taken`: Σ (output − target)⁺."""
    size, rejected = len(target), float(1 - taken.sum())
    above = np.hstack([np.eye(size), -np.eye(size)])  # resampled mass, excess
    found = linprog(
        [0.0] * size + [1.0] * size, A_ub=above, b_ub=(target - taken).numpy(),
        A_eq=[[1.0] * size + [0.0] * size], b_eq=[max(rejected, 0.0)], bounds=[(0, None)] * (2 * size), method="highs",
    )  # fmt: skip
    return float(found.fun)


def least_bias_at(target: Tensor, draft: Tensor, rejected: float) -> float:
    """Solve the joint program over tests with this rejection rate and laws after a rejection."""
    size = len(target)
    above = np.hstack([np.eye(size), np.eye(size), -np.eye(size)])  # accepted, resampled, excess
    rows = [[1.0] * size + [0.0] * 2 * size, [0.0] * size + [1.0] * size + [0.0] * size]
    bounds = [*((0, q) for q in draft.tolist()), *((0, None),) * (2 * size)]
    found = linprog(
        [0.0] * 2 * size + [1.0] * size, A_ub=above, b_ub=target.numpy(), A_eq=rows, b_eq=[1 - rejected, rejected],
        bounds=bounds, method="highs",
    )  # fmt: skip
    return float(found.fun)


@settings(max_examples=60)
@given(law_pairs(), st.floats(0, 1))
def test_the_frontier_equals_the_linear_program(pair: Pair, share: float) -> None:
    rejected = share * float(total_variation(*pair))
    assert float(least_bias(*pair, rejected)) == pytest.approx(least_bias_at(*pair, rejected), abs=1e-7)


@settings(max_examples=200)
@given(law_pairs(), st.floats(0, 1), st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_the_frontier_is_attained_and_never_exceeded(pair: Pair, share: float, accept: list[float]) -> None:
    """Shrinking every rejection of the lossless test by one factor attains it; any other test is above."""
    target, draft = pair
    shrunk = decoding_opt(target, draft, 1 - share * (1 - relaxed_test(target, draft, 0.0)))
    assert float(shrunk.bias) == pytest.approx(float(least_bias(target, draft, shrunk.rejected)), abs=1e-10)
    other = decoding_opt(target, draft, torch.tensor(accept[: len(draft)], dtype=torch.float64))
    assert float(other.bias) >= float(least_bias(target, draft, other.rejected)) - 1e-10


@settings(max_examples=80)
@given(law_pairs(), st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_decoding_opt_has_the_least_bias_of_its_test(pair: Pair, accept: list[float]) -> None:
    target, draft = pair
    test = torch.tensor(accept[: len(draft)], dtype=torch.float64)
    found = decoding_opt(target, draft, test)
    assert float(found.bias) == pytest.approx(least_bias_of(test * draft, target), abs=1e-7)
    assert float(found.bias) == pytest.approx(float((test * draft - target).clamp_min(0).sum()), abs=1e-10)
    assert float(found.law.sum()) == pytest.approx(1, abs=1e-12)
    assert float(decoding_uno(target, draft, test).bias) >= float(found.bias) - 1e-12


@settings(max_examples=80)
@given(law_pairs(), st.floats(0, 1))
def test_over_acceptance_lies_on_the_frontier(pair: Pair, epsilon: float) -> None:
    """Its law after a rejection is that of the lossless test."""
    target, draft = pair
    found = decoding_opt(target, draft, relaxed_test(target, draft, epsilon))
    assert float(found.bias) == pytest.approx(float(least_bias(target, draft, found.rejected)), abs=1e-10)
    uno = decoding_uno(target, draft, relaxed_test(target, draft, epsilon))
    assert float(uno.rejected) == pytest.approx(float(found.rejected), abs=1e-12)


def test_without_relaxation_only_decoding_opt_is_lossless() -> None:
    target, draft = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.float64)
    test = relaxed_test(target, draft, 0.0)
    assert float(decoding_opt(target, draft, test).bias) == pytest.approx(0, abs=1e-15)
    assert float(decoding_uno(target, draft, test).bias) == pytest.approx(0.12, abs=1e-12)


@pytest.mark.parametrize("after", ["opt", "uno"])
@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.3])
def test_along_texts(after: str, epsilon: float) -> None:
    """Probability, log-likelihood and rejections of every text of four tokens."""
    pair, length = zipf_chain(3, seed=7), 4
    rejected = score = plain = bias = 0.0
    for text in itertools.product(range(3), repeat=length):
        out = meant = 1.0
        logs, rejections, off = 0.0, 0.0, 0.0
        for at, token in enumerate(text):
            p, q = (laws[pair.context(text[:at])] for laws in (pair.target, pair.draft))
            accept = torch.tensor([min(1.0, float((p[x] + epsilon) / q[x])) for x in range(3)], dtype=torch.float64)
            miss = 1 - float((accept * q).sum())
            left = (p - accept * q).clamp_min(0)
            law = accept * q + miss * (p if after == "uno" else left / left.sum() if left.sum() > 0 else p)
            rejections, off = rejections + miss, off + float((law - p).abs().sum()) / 2
            logs += float(p[token].log())
            out, meant = out * float(law[token]), meant * float(p[token])
        rejected, bias, score = rejected + out * rejections, bias + out * off, score + out * logs
        plain += meant * logs
    found = relaxed_text(pair, epsilon, after, length)
    expected = (rejected / length, bias / length, score / length, plain / length)
    assert (found.rejected, found.bias, found.score, found.lossless_score) == pytest.approx(expected, abs=1e-10)


def test_bad_arguments_are_refused() -> None:
    target, draft = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.float64)
    with pytest.raises(ArgumentError, match=r"epsilon must be at least 0 and finite, got -0\.1"):
        relaxed_test(target, draft, -0.1)
    with pytest.raises(ArgumentError, match=r"probabilities in \[0, 1\]"):
        decoding_opt(target, draft, torch.tensor([1.5, 0.0], dtype=torch.float64))
    with pytest.raises(ArgumentError, match="after must be one of opt, uno, got 'both'"):
        relaxed_text(zipf_chain(3), 0.1, "both", 4)
