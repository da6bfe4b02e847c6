"""Products of few rows: the same numbers in another order, and nothing left behind."""

import pytest
import torch
from tests.models.conftest import tiny
from torch import nn

from spectr.models import products
from spectr.models.products import narrow_products, usual_products
from spectr.models.tuned import tune, untuned


@pytest.fixture
def on_intel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The form for Intel, whatever this machine is: slower elsewhere, and right everywhere."""
    monkeypatch.setattr(products, "narrow_is_faster", lambda: True)


@pytest.mark.usefixtures("on_intel")
@pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 7), (3, 2), (2, 40), (0, 4)])
@pytest.mark.parametrize("bias", [True, False])
def test_the_same_numbers(shape: tuple[int, ...], bias: bool) -> None:
    layer = nn.Linear(24, 50, bias=bias)
    rows = torch.randn(*shape, 24)
    meant = layer(rows)
    narrow_products(layer)
    assert torch.allclose(layer(rows), meant, atol=1e-5)
    assert layer(rows).shape == meant.shape
    usual_products(layer)
    assert "forward" not in vars(layer)


@pytest.mark.usefixtures("on_intel")
def test_a_model_can_be_tuned_and_untuned() -> None:
    model = tiny("llama")
    ids = torch.randint(3, 61, (1, 9))
    meant = model(ids).logits
    tune(model)
    assert torch.allclose(model(ids).logits, meant, atol=1e-4)
    with untuned(model):
        assert torch.equal(model(ids).logits, meant)
        assert model.config._attn_implementation == "sdpa"
    assert model.config._attn_implementation == "spectr_grouped"
    assert "forward" in vars(model.lm_head)


@pytest.mark.usefixtures("on_intel")
def test_other_dtypes_are_left_alone() -> None:
    layer = nn.Linear(4, 4).to(torch.bfloat16)
    narrow_products(layer)
    assert "forward" not in vars(layer)


@pytest.mark.parametrize(("vendor", "used"), [("vendor_id : GenuineIntel", True), ("vendor_id : AuthenticAMD", False)])
def test_the_cpu_decides(monkeypatch: pytest.MonkeyPatch, vendor: str, used: bool) -> None:
    monkeypatch.setattr(products, "_cpu_vendor", lambda: vendor)
    products.narrow_is_faster.cache_clear()
    layer = nn.Linear(4, 4)
    narrow_products(layer)
    products.narrow_is_faster.cache_clear()
    assert ("forward" in vars(layer)) == (used and torch.backends.mkl.is_available())
