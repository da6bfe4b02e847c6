"""Acceptance by one curve against the couplings' own closed forms, for every number of drafts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spectr.theory import acceptance_curves, bernoulli, uniform, zipf
from spectr.theory.excess import CURVES, Excess
from spectr.theory.families import Family
from spectr.transport import COUPLINGS, coupling

FAMILIES = [bernoulli(0.25, 0.75), bernoulli(0.4, 0.4), bernoulli(1.0, 0.0), uniform(2, 4, offset=1), zipf(30, seed=1),
            zipf(80, noise=2.0, temperature=0.3, seed=2)]  # fmt: skip


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("name", CURVES)
def test_every_coupling(family: Family, name: str) -> None:
    found = acceptance_curves(family.target, family.draft, 16)[name].tolist()
    made = coupling("optimal_sorted" if name == "optimal" else name)
    meant = [float(made.acceptance(family.target, family.draft, k)) for k in range(1, 17)]
    assert found == pytest.approx(meant, abs=1e-10)


def test_every_lossless_coupling_of_iid_drafts_is_there() -> None:
    """Variants of one coupling count once; hybrid couplings are excluded because they fix drafts."""
    plain = {name for name in COUPLINGS if "iid" in coupling(name).siblings and coupling(name).lossless}
    assert plain - {"optimal_sorted", "optimal_binned"} == set(CURVES)


@settings(max_examples=60)
@given(st.integers(0, 2**31), st.floats(0, 20))
def test_the_curve_itself(seed: int, scale: float) -> None:
    laws = torch.rand(2, 3, 7, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    laws = torch.where(laws > 0.2, laws, 0.0) + 1e-3 * torch.eye(7)[0]
    target, draft = laws / laws.sum(-1, keepdim=True)
    meant = (target - scale * draft).clamp_min(0).sum(-1)
    found = Excess(target, draft)(torch.full((3, 1), scale, dtype=torch.float64))[:, 0]
    assert found.tolist() == pytest.approx(meant.tolist(), abs=1e-12)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
@pytest.mark.parametrize("k", [2, 3, 8])
def test_the_optimum_by_the_curve_alone(family: Family, k: int) -> None:
    """1 − max_s [s − 1 + E(s) − (K − 1)(s/K)^(K/(K−1))]: no s exceeds it, and one of slope K·Q^(K−1) attains it."""
    optimum = float(acceptance_curves(family.target, family.draft, k)["optimal"][-1])
    excess = Excess(family.target[None], family.draft[None])
    order = (family.target / family.draft).nan_to_num(torch.inf, torch.inf).argsort()
    slopes = k * family.draft[order].cumsum(0).clamp_max(1) ** (k - 1)
    scales = torch.cat([slopes, torch.linspace(0, k, 50, dtype=torch.float64)])[None]
    lost = scales - 1 + excess(scales) - (k - 1) * (scales / k) ** (k / (k - 1))
    assert 1 - float(lost.max().clamp_min(0)) == pytest.approx(optimum, abs=1e-10)


def test_batches_and_float32() -> None:
    families = [zipf(40, seed=seed) for seed in range(6)]
    target, draft = (torch.stack([getattr(f, name) for f in families]).view(2, 3, 40) for name in ("target", "draft"))
    whole = acceptance_curves(target, draft, 4)
    coarse = acceptance_curves(target.float(), draft.float(), 4)
    for name, values in whole.items():
        assert values.shape == (2, 3, 4)
        alone = acceptance_curves(target[1, 2], draft[1, 2], 4)[name]
        assert values[1, 2].tolist() == pytest.approx(alone.tolist(), abs=1e-12)
        assert coarse[name].flatten().tolist() == pytest.approx(values.flatten().tolist(), abs=1e-5)
