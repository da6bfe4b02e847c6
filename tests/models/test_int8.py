"""A head with rounded weights: near what it was, alone, in joint products and compiled."""

import pytest
import torch
from tests.models.conftest import tiny  # type: ignore[import-not-found]
from torch import Tensor, nn

import spectr.models.compiled as compiled
import spectr.models.int8 as rounding
from spectr.models.head import FeatureHead, head_of
from spectr.models.inflate import Size, inflated, inflated_head
from spectr.models.int8 import Int8Linear, full_weight, int8_products
from spectr.models.target import Target
from spectr.models.tuned import tune_head

pytest.importorskip("triton")


def drafted(head: FeatureHead) -> Tensor:
    """Logits of a text with all features, and of nodes below it with one."""
    target, width = Target(head), head.shape.width
    session = target.open(1, 20, features=(), lasting=False)
    generator = torch.Generator().manual_seed(0)

    def features(count: int, parts: int) -> Tensor:
        return torch.randn(1, count, parts * width, generator=generator).to(head.device, head.dtype)

    tree = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]]).bool().to(head.device)
    tokens, depth = torch.tensor([[5, 6, 7]], device=head.device), torch.tensor([[0, 1, 1]], device=head.device)
    session.given = features(5, 1 + len(head.shape.taps))
    target.read(session, [[3, 4, 5, 6, 7]])
    session.given = features(3, 1)
    plain = target.score(session, tokens, tree, depth)
    target.rewind(session, [5])
    session.given = features(3, 1)
    target.compile()
    return torch.cat([plain, target.score(session, tokens, tree, depth)], 1)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round on a CPU and in float32 too, where kernels are interpreted."""
    if torch.cuda.is_available():
        pytest.skip("kernels run on the GPU here")
    monkeypatch.setattr(compiled, "_BACKEND", "aot_eager")
    monkeypatch.setattr(rounding, "_fits", lambda layer: type(layer) is nn.Linear and layer.bias is None)


@pytest.mark.usefixtures("everywhere")
def test_a_rounded_head_drafts_nearly_the_same() -> None:
    head = head_of(tiny("llama"), layers=2).requires_grad_(False)
    meant = drafted(head)
    tune_head(head)
    assert isinstance(head.short, Int8Linear)
    assert isinstance(head.get_output_embeddings(), Int8Linear)
    assert isinstance(head.trunk.layers[1].mlp.up_proj, Int8Linear)
    found = drafted(head)
    assert 0 < float((found - meant).norm() / meant.norm()) < 0.02


@pytest.mark.usefixtures("everywhere")
def test_what_is_rounded_can_be_inflated() -> None:
    small = tiny("llama")
    head = head_of(small, layers=1).requires_grad_(False)
    tune_head(head)
    config = small.config
    width = config.hidden_size // config.num_attention_heads
    size = Size(width * 2 * config.num_attention_heads, config.num_hidden_layers, 2 * config.num_attention_heads,
                2 * config.num_key_value_heads, 2 * config.intermediate_size)  # fmt: skip
    large = inflated_head(head, inflated(small, size))
    part = full_weight(head.trunk.layers[0].mlp.up_proj)
    assert torch.allclose(large.trunk.layers[0].mlp.up_proj.weight[: len(part), : part.shape[1]], part)


def test_a_cpu_keeps_its_weights() -> None:
    head = head_of(tiny("llama"), layers=1).requires_grad_(False)
    int8_products(head)
    assert type(head.join) is nn.Linear


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_half_precision_on_a_gpu() -> None:
    """Rounded weights and the attention of trees, plain and compiled, against float32 without either."""
    head = head_of(tiny("llama"), layers=2).requires_grad_(False)
    meant = drafted(head)
    quick = head_of(tiny("llama"), layers=2).requires_grad_(False)
    quick.load_state_dict(head.state_dict())
    net = tiny("llama").to("cuda", torch.bfloat16)
    quick.to("cuda", torch.bfloat16)
    quick.borrow(net)
    tune_head(quick)
    assert isinstance(quick.join, Int8Linear)
    found = drafted(quick).cpu().float()
    assert float((found - meant).norm() / meant.norm()) < 0.05
