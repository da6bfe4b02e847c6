"""Each kernel against the plain code it stands for."""

import math

import pytest
import torch
from torch import Tensor

from spectr.coins import _COIN_STREAM, _NOISE_STREAM, gumbel, uniform
from spectr.transport.coupling import Drafted
from spectr.transport.kseq import KSeq
from spectr.transport.optimal import _LOWEST, Bins, Optimal

pytest.importorskip("triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY = 5_003 if DEVICE == "cpu" else 152_064


def laws(rows: int, seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, VOCABULARY, generator=generator)
    draft = 0.9 * logits + 0.7 * torch.randn(rows, VOCABULARY, generator=generator)
    draft[:, ::7] = -torch.inf  # tokens that are never drafted
    return logits.softmax(-1), draft.softmax(-1)


def test_race_winner() -> None:
    from spectr.kernels.noise import race_winner

    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(3, 4, VOCABULARY, generator=generator)
    logits[:, :, ::5] = -torch.inf
    seed = torch.tensor([0, -9, 2**50])
    position = torch.tensor([0, 1, 7, 100_000]).expand(3, 4)
    plain = (logits + gumbel(seed, position, VOCABULARY)).argmax(-1)
    for dtype in (torch.float32, torch.bfloat16):
        meant = plain if dtype == torch.float32 else (logits.to(dtype) + gumbel(seed, position, VOCABULARY)).argmax(-1)
        found = race_winner(logits.to(DEVICE, dtype), seed.to(DEVICE), position.to(DEVICE), _NOISE_STREAM)
        assert torch.equal(found.cpu(), meant)


def test_rough_noise() -> None:
    from spectr.kernels.noise import rough_noise

    seed, position = torch.tensor([0, -9, 2**50]), torch.tensor([[0, 1, 7], [5, 2, 9], [8, 8, 100_000]])
    meant = gumbel(seed, position, VOCABULARY)
    found = rough_noise(seed.to(DEVICE), position.to(DEVICE), VOCABULARY, _NOISE_STREAM).cpu()
    assert found.dtype == torch.float32
    off = (found - meant).abs()
    assert float(off[meant > -1].max()) < 2e-5  # nine in ten; the rest wins no race
    assert float(off.max()) < 1e-2


def test_kseq_plan() -> None:
    """ρ is valid (not below the exact one) and close; φ belongs to it."""
    from spectr.kernels.sections import kseq_plan

    target, draft = laws(8, 2)
    k = torch.tensor([0, 1, 2, 3, 4, 8, 16, 16])
    draft[7] = target[7]
    live = torch.arange(16) < k[:, None]
    exact = KSeq()._plan(target.double(), draft.double(), live)
    plan = kseq_plan(target.to(DEVICE), draft.to(DEVICE), k.to(DEVICE), 16).cpu()
    assert bool((plan[:, 0] >= exact[:, 0] - 1e-12).all())
    assert bool((plan[:, 0] <= exact[:, 0] * (1 + 2e-6)).all())
    visits = torch.minimum(draft, target / plan[:, :1].float()).sum(-1, dtype=torch.float64)
    meant = torch.where(k > 1, (1 - (1 - visits) ** k) / visits, k.double())
    assert plan[:, 1].tolist() == pytest.approx(meant.tolist(), abs=1e-9)


@pytest.mark.parametrize("bins", [512, 2048])
def test_optimal_selection(bins: int) -> None:
    from spectr.kernels.levels import optimal_selection

    rows, k = (6, 5) if DEVICE == "cpu" else (12, 16)
    target, draft = laws(rows, 3)
    tokens = torch.multinomial(draft, k, replacement=True, generator=torch.Generator().manual_seed(4))
    tokens[-1, 2] = tokens[-1, 0]  # a copy
    count = torch.tensor([0, 1, 2, 3, k, k] * (rows // 6))
    live = (
        torch.rand(rows, k, generator=torch.Generator().manual_seed(5)).argsort(-1) < count[:, None]
    )  # dead slots between
    meant = Optimal(bins=bins, sort_below=0).select(target, draft, Drafted(tokens, live))
    classes = Bins(bins, k)
    assert classes.width == pytest.approx((math.log(k) - _LOWEST) / (bins - 2))
    on = [x.to(DEVICE) for x in (target, draft, tokens, live)]
    chance, mean = optimal_selection((on[0], on[1]), on[2], on[3], bins, _LOWEST, classes.width)
    off = (chance.cpu() - meant.chance).abs().max()
    assert off < 1e-7, off
    from spectr.kernels.levels import class_law

    fused = class_law(on[0], on[1], mean, _LOWEST, classes.width).cpu()
    assert (fused - classes.law(target, draft, mean.cpu())).abs().sum(-1).max() < 1e-7
    off = (classes.law(target, draft, mean.cpu()) - meant.law.all()).abs().sum(-1).max() / 2
    assert off < 5e-7, off  # a lone draft's law is not divided by what float32 leaves of its sum


def test_coins() -> None:
    from spectr.kernels.noise import fused_uniform

    seed, committed = torch.tensor([5, -2, 2**60]), torch.tensor([0, 9, 1000])
    node = torch.arange(200).expand(3, 200)
    found = fused_uniform(seed.to(DEVICE), committed.to(DEVICE), node.to(DEVICE), 3, _COIN_STREAM)
    assert torch.equal(found.cpu(), uniform(seed, committed, node, 3))
