"""The optimum by closed form, linear program and min-cut, and the order of the couplings below it."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.oracles import cut_optimum, iid_sets, lp_optimum

import spectr
from spectr.transport import kseq_share, race_acceptance, token_bound


@st.composite
def law_pairs(draw: st.DrawFn, most: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Draw two laws over 2 … `most` tokens, with zeros and ties, over many orders of magnitude."""
    size = draw(st.integers(2, most))
    entry = st.one_of(st.just(0.0), st.integers(1, 4).map(float), st.floats(-14, 0).map(lambda e: 10.0**e))
    weights = st.lists(entry, min_size=size, max_size=size).filter(lambda w: sum(w) > 1e-3)
    target, draft = (np.array(draw(weights)) for _ in range(2))
    return target / target.sum(), draft / draft.sum()


@settings(max_examples=60)
@given(law_pairs(), st.integers(1, 4))
def test_closed_form_is_the_linear_program_and_the_cut(pair: tuple[np.ndarray, np.ndarray], k: int) -> None:
    target, draft = pair
    sets = iid_sets(draft, k)
    closed = float(spectr.optimal_acceptance(torch.tensor(target), torch.tensor(draft), k))
    assert closed == pytest.approx(cut_optimum(target, sets), abs=1e-12)
    assert closed == pytest.approx(lp_optimum(target, sets), abs=1e-8)


@settings(max_examples=120)
@given(law_pairs(most=8), st.integers(1, 8))
def test_order_of_the_couplings(pair: tuple[np.ndarray, np.ndarray], k: int) -> None:
    target, draft = (torch.tensor(law) for law in pair)
    best = float(spectr.optimal_acceptance(target, draft, k))
    found = {
        n: float(spectr.coupling(n).acceptance(target, draft, k)) for n in ("kseq", "kseq_plus", "optimal", "recursive")
    }
    assert found["optimal"] == pytest.approx(best, abs=1e-9)
    assert not bool(spectr.coupling("optimal").stays(target, draft, k))
    assert found["kseq"] <= found["kseq_plus"] + 1e-9
    assert found["kseq_plus"] <= best + 1e-12
    assert found["recursive"] <= best + 1e-12
    assert found["kseq"] >= kseq_share(k) * best - 1e-12
    assert best <= float(token_bound(target, draft, k)) + 1e-12


@settings(max_examples=100)
@given(law_pairs(most=8))
def test_one_draft_is_maximal_coupling(pair: tuple[np.ndarray, np.ndarray]) -> None:
    target, draft = (torch.tensor(law) for law in pair)
    overlap = float(torch.minimum(target, draft).sum())
    for name in ("maximal", "kseq", "kseq_plus", "optimal", "recursive"):
        assert float(spectr.coupling(name).acceptance(target, draft, 1)) == pytest.approx(overlap, abs=1e-12)


@settings(max_examples=60)
@given(law_pairs(most=7), st.integers(1, 5), st.integers(0, 2**31))
def test_race_closed_form(pair: tuple[np.ndarray, np.ndarray], k: int, seed: int) -> None:
    """The closed form agrees with a simulation of 20,000 races within 6 standard errors."""
    target, draft = pair
    noise = np.random.default_rng(seed).exponential(size=(20_000, len(target)))
    with np.errstate(divide="ignore"):
        winner = (noise / target).argmin(1)
        ahead = (noise / draft).argsort(1)[:, :k]
    hit = ((ahead == winner[:, None]) & (draft[ahead] > 0)).any(1).mean()
    closed = float(race_acceptance(torch.tensor(target), torch.tensor(draft), k))
    assert abs(hit - closed) < 6 * (0.25 / 20_000) ** 0.5
    if k == 1:
        live = (target > 0) & (draft > 0)
        ratios = np.maximum(target[None] / target[live, None], draft[None] / draft[live, None])
        assert closed == pytest.approx(float((1 / ratios.sum(1)).sum()), abs=1e-10)


def test_binned_optimum_loses_little() -> None:
    """On large vocabularies 4096 classes are close to the optimum, and the selected law sums to one."""
    generator = torch.Generator().manual_seed(1)
    rank = torch.arange(1, 20_001, dtype=torch.float64).log()
    for k in (2, 4, 8, 16):
        logits = -1.2 * rank + 0.6 * torch.randn(20_000, generator=generator, dtype=torch.float64)
        target = logits.softmax(-1)
        draft = (0.9 * logits + 0.8 * torch.randn(20_000, generator=generator, dtype=torch.float64)).softmax(-1)
        best = float(spectr.optimal_acceptance(target, draft, k))
        binned = float(spectr.coupling("optimal_binned").acceptance(target, draft, k))
        assert best - 3e-4 < binned <= best + 1e-12
        assert float(spectr.coupling("optimal_sorted").acceptance(target, draft, k)) == pytest.approx(best, abs=1e-12)
