"""α_K between its bounds, on laws with zeros and ties, against the linear program."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles import iid_sets, lp_optimum

from spectr.theory import acceptance_bounds, scaled_overlap, uniform
from spectr.transport import kseq_share


@st.composite
def law_pairs(draw: st.DrawFn, most: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    size = draw(st.integers(2, most))
    entry = st.one_of(st.just(0.0), st.integers(1, 4).map(float), st.floats(-6, 0).map(lambda e: 10.0**e))
    weights = st.lists(entry, min_size=size, max_size=size).filter(lambda w: sum(w) > 1e-2)
    target, draft = (torch.tensor(draw(weights), dtype=torch.float64) for _ in range(2))
    return target / target.sum(), draft / draft.sum()


@settings(max_examples=80)
@given(law_pairs(), st.integers(1, 4))
def test_the_bounds_hold_around_the_linear_program(pair: tuple[torch.Tensor, torch.Tensor], k: int) -> None:
    target, draft = pair
    found = acceptance_bounds(target, draft, k)
    program = lp_optimum(target.numpy(), iid_sets(draft.numpy(), k))
    assert float(found.optimum) == pytest.approx(program, abs=1e-8)
    chain = [found.below, found.kseq, found.optimum, found.by_token, found.scaled]
    assert all(low <= high + 1e-9 for low, high in itertools.pairwise(chain))
    assert float(found.kseq) >= kseq_share(k) * program - 1e-9


@pytest.mark.parametrize("k", [2, 3, 8])
def test_the_share_of_the_bound_is_attained(k: int) -> None:
    """Target uniform over n tokens, draft over K·n of them: the optimum itself is 1 − (1 − 1/K)^K of Σ min(p, Kq)."""
    family = uniform(4, 4 * k, offset=0)
    found = acceptance_bounds(family.target, family.draft, k)
    assert float(found.scaled) == pytest.approx(1, abs=1e-12)
    assert float(found.optimum) == pytest.approx(kseq_share(k), abs=1e-10)
    assert float(found.below) == pytest.approx(kseq_share(k), abs=1e-10)


def test_the_share_falls_to_one_minus_one_over_e() -> None:
    shares = [kseq_share(k) for k in range(1, 200)]
    assert shares == sorted(shares, reverse=True)
    assert shares[-1] == pytest.approx(1 - 1 / math.e, abs=1e-3)
    assert min(shares) > 1 - 1 / math.e


def test_batched_as_one_by_one() -> None:
    laws = torch.rand(2, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    target, draft = laws / laws.sum(-1, keepdim=True)
    assert scaled_overlap(target, draft, 3).tolist() == [
        float(scaled_overlap(p, q, 3)) for p, q in zip(target, draft, strict=True)
    ]
