"""In float32 at a vocabulary of 152,064 the actual output law, draws included, is close to the target's.

Tuples cannot be enumerated here, but every coupling has a structure that sums them in closed form. The tables and
tests are the ones the coupling computes in float32; only their summation over drafts is done in float64. What a draw
adds on top is bounded in `test_coins.py`: boundaries to 1e-12.
"""

import pytest
import torch
from torch import Tensor

import spectr
from spectr.transport import kseq_share
from spectr.transport.coupling import Drafted
from spectr.transport.hybrid import Hybrid
from spectr.transport.kseq import KSeq, KSeqPlus
from spectr.transport.laws import normalise, overlap, residual
from spectr.transport.maximal import Maximal
from spectr.transport.optimal import Bins, Optimal, level_law
from spectr.transport.selection import one_draft_test
from spectr.verify.rule import law_of

SIZE = 152_064
ALL = torch.arange(SIZE)


@pytest.fixture(scope="module", params=[0.3, 1.0])
def laws(request: pytest.FixtureRequest) -> tuple[Tensor, Tensor]:
    """Return Zipf-like target and draft laws as a softmax computes them, at two distances."""
    generator = torch.Generator().manual_seed(5)
    logits = -1.2 * torch.arange(1, SIZE + 1).log() + 0.6 * torch.randn(SIZE, generator=generator)
    draft = 0.9 * logits + request.param * torch.randn(SIZE, generator=generator)
    return law_of(logits), law_of(draft)


def bias(law: Tensor, target: Tensor) -> float:
    return float((law - target.double()).abs().sum() / 2)


def after_the_test(selected: Tensor, r: Tensor, target: Tensor) -> Tensor:
    """Return the law after the one-draft test of a selected token with true law `selected` and computed law `r`."""
    taken = selected * one_draft_test(target, r)
    left = residual(target, r).double()
    return taken + (1 - taken.sum()) * left / left.sum()


@pytest.mark.parametrize("k", [2, 8])
def test_kseq(laws: tuple[Tensor, Tensor], k: int) -> None:
    target, draft = laws
    live = torch.ones(k, dtype=torch.bool)
    plan = KSeq()._plan(target, draft, live)
    outcome = KSeq().settle(target, draft, Drafted(torch.zeros(k, dtype=torch.int64), live))
    visits = torch.minimum(draft, target / plan[0].float())
    passes = torch.where(draft > 0, visits.double() / draft.double(), 0.0).clamp_max(1)
    assert float(passes[0]) == pytest.approx(float(outcome.ending[0]), rel=1e-6)  # the test the coupling makes
    accepted = draft.double() * passes
    beta = accepted.sum() / draft.double().sum()
    left = outcome.residual.all().double()
    law = accepted / accepted.sum() * (1 - (1 - beta) ** k) + (1 - beta) ** k * left / left.sum()
    assert bias(law, target) < 1e-6


@pytest.mark.parametrize("k", [2, 8])
def test_kseq_plus(laws: tuple[Tensor, Tensor], k: int) -> None:
    target, draft = laws
    high, r = KSeqPlus()._levels(target, draft, torch.tensor(k))
    q = draft.double() / draft.double().sum()
    low = (q * (1 - high.double())).sum()
    selected = q * ((1 - high.double()) * low ** (k - 1) + high.double() * (1 - low**k) / (1 - low))
    assert bias(after_the_test(selected, r, target), target) < 1e-6


def test_maximal(laws: tuple[Tensor, Tensor]) -> None:
    target, draft = laws
    drafted = Drafted(torch.zeros(1, dtype=torch.int64), torch.ones(1, dtype=torch.bool))
    r = Maximal().select(target, draft, drafted).law.all()
    assert bias(after_the_test(draft.double() / draft.double().sum(), r, target), target) < 1e-6


def selected_by_levels(target: Tensor, draft: Tensor, k: int, slots: int) -> tuple[Tensor, Tensor]:
    """Return the actual law of the token that the level swaps select, and the law that the coupling computes.

    `slots` is the capacity, which sets the range of the classes."""
    coupling = Optimal()
    bins = Bins(coupling.bins, slots)
    levels, r, _ = coupling._tables(target, draft, torch.tensor(k), bins)
    member = bins.of(target, draft)
    q = draft.double() / draft.double().sum()
    mass = torch.zeros(bins.count, dtype=torch.float64).scatter_add_(0, member, q)
    kernel = level_law(levels, torch.arange(bins.count))  # (class, level)
    on_level = mass @ kernel
    reach = on_level.cumsum(0)
    before = torch.cat([torch.zeros(1, dtype=torch.float64), reach[:-1]])
    wins = sum(reach**i * before ** (k - 1 - i) for i in range(k))  # (reach^k − before^k) / on_level
    return q * (kernel @ wins)[member], r.all()


@pytest.mark.parametrize("k", [2, 8])
def test_optimal(laws: tuple[Tensor, Tensor], k: int) -> None:
    target, draft = laws
    selected, r = selected_by_levels(target, draft, k, k)
    assert bias(selected, r) < 1e-6  # the selected law is what the coupling says
    assert bias(after_the_test(selected, r, target), target) < 1e-6


@pytest.mark.parametrize("size", [3, 100, 49_152, SIZE])
def test_acceptance_is_the_optimum(size: int) -> None:
    """Rounding of float32 sums must not cost acceptance, neither of the optimum nor of K-SEQ."""
    generator = torch.Generator().manual_seed(size)
    logits = -1.2 * torch.arange(1, size + 1).log() + 0.6 * torch.randn(6, size, generator=generator)
    target, draft = law_of(logits), law_of(0.9 * logits + 0.7 * torch.randn(6, size, generator=generator))
    for k in (2, 8, 16):
        best = spectr.optimal_acceptance(target, draft, k)
        for name in ("optimal", "optimal_binned"):
            assert bool((spectr.coupling(name).acceptance(target, draft, k) > best - 4e-4).all())
            assert not bool(spectr.coupling(name).stays(target, draft, k).any())
        assert bool((spectr.coupling("kseq").acceptance(target, draft, k) > kseq_share(k) * best - 1e-6).all())
    tokens = torch.multinomial(draft, 8, replacement=True, generator=generator)
    selection = Optimal().select(target, draft, Drafted(tokens, torch.ones_like(tokens, dtype=torch.bool)))
    kept = torch.minimum(target, selection.law.all()).sum(-1, dtype=torch.float64)
    assert bool((kept > spectr.optimal_acceptance(target, draft, 8) - 4e-4).all())


def test_kseq_never_gives_out_more_than_the_target_owes(laws: tuple[Tensor, Tensor]) -> None:
    """visits · φ ≤ target at every token, so that clamping the residual removes nothing."""
    target, draft = laws
    for k in (2, 8, 16):
        rho, phi = KSeq()._plan(target, draft, torch.ones(k, dtype=torch.bool))
        visits = torch.minimum(draft, target / rho.float()).double()
        assert bool((visits * phi <= target.double() * (1 + 1e-7)).all())


@pytest.mark.parametrize("k", [2, 8])
def test_hybrid(laws: tuple[Tensor, Tensor], k: int) -> None:
    """Fixed tokens receive the residual's mass on them; the rest is the optimal coupling outside them."""
    target, draft = laws
    fixed = draft.topk(3).indices
    off = draft.clone()
    off[fixed] = 0
    off = normalise(off, off)
    selected, r = selected_by_levels(target, off, k, k + 3)
    assert bias(after_the_test(selected, r, target), target) < 1e-6
    tokens = torch.cat([off.topk(k).indices, fixed])
    flags = torch.arange(k + 3) >= k
    outcome = Hybrid().outcome(target, draft, Drafted(tokens, torch.ones_like(flags), flags))
    rest = 1 - outcome.ending[:k].sum()
    hit = rest * residual(target, r).double()[fixed] / residual(target, r).double().sum()
    assert outcome.ending[k:].tolist() == pytest.approx(hit.tolist(), abs=1e-6)


@pytest.mark.parametrize("k", [2, 8])
def test_recursive(laws: tuple[Tensor, Tensor], k: int) -> None:
    target, draft = laws
    q, law, rest, left = draft.double() / draft.double().sum(), torch.zeros(SIZE).double(), 1.0, target
    for _ in range(k):
        taken = q * one_draft_test(left, draft)
        law += rest * taken
        rest = rest * float(1 - taken.sum())
        left = normalise(residual(left, draft), left)
    assert bias(law + rest * left.double(), target) < 1e-6
    assert float(overlap(target, draft)) < 1


def test_float32_sums_would_fail() -> None:
    """A check of these tests: a float32 running sum at this size is off by far more than the bound."""
    weights = torch.rand(SIZE, generator=torch.Generator().manual_seed(1)) ** 8
    ends = weights.cumsum(0).double() / weights.cumsum(0)[-1].double()
    exact = weights.double().cumsum(0) / weights.double().sum()
    assert (ends.diff() - exact.diff()).abs().sum() / 2 > 1e-5
