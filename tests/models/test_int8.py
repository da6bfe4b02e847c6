"""A head with int8 weights drafts nearly the same as the original, plain and compiled."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tests.architectures import tiny_model
from torch import Tensor, nn

import spectr.models.compiled as compiled
import spectr.models.int8 as rounding
from spectr.errors import ArgumentError
from spectr.models.fast_kernels import speed_up_head
from spectr.models.head import FeatureHead, head_of
from spectr.models.int8 import Int8Linear, full_weight, int8_products
from spectr.models.target import Target
from spectr.models.trained import Trained, fingerprint, load_for_training, save_drafter

pytest.importorskip("triton")


def drafted(head: FeatureHead, *, compiles: bool = True) -> Tensor:
    """Return the logits of nodes after a text with all features, computed twice, the second time with compiled
    layers."""
    target, width = Target(head), head.shape.width
    session = target.open(1, 20, feature_layers=(), lasting=False)
    generator = torch.Generator().manual_seed(0)

    def features(count: int, parts: int) -> Tensor:
        return torch.randn(1, count, parts * width, generator=generator).to(head.device, head.dtype)

    tree = torch.tensor([[[1, 0, 0], [1, 1, 0], [1, 0, 1]]]).bool().to(head.device)
    tokens, depth = torch.tensor([[5, 6, 7]], device=head.device), torch.tensor([[0, 1, 1]], device=head.device)
    session.input_features = features(5, 1 + len(head.shape.feature_layers))
    target.read(session, [[3, 4, 5, 6, 7]])
    session.input_features = features(3, 1)
    plain = target.score(session, tokens, tree, depth)
    target.rewind(session, [5])
    session.input_features = features(3, 1)
    if compiles:
        target.compile()
    return torch.cat([plain, target.score(session, tokens, tree, depth)], 1)


@pytest.fixture
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round weights on a CPU and in float32 too, where kernels are interpreted."""
    if torch.cuda.is_available():
        pytest.skip("kernels run on the GPU here")
    monkeypatch.setattr(compiled, "_BACKEND", "aot_eager")
    monkeypatch.setattr(rounding, "_fits", lambda layer: type(layer) is nn.Linear and layer.bias is None)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("compiles", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "compiled"])
def test_a_rounded_head_drafts_nearly_the_same(compiles: bool) -> None:
    """The logits of a head with int8 weights are within 2 % of the original's."""
    head = head_of(tiny_model("llama"), layers=2).requires_grad_(False)
    meant = drafted(head, compiles=compiles)
    speed_up_head(head)
    assert isinstance(head._short["join"], Int8Linear)
    assert isinstance(head.get_output_embeddings(), Int8Linear)
    assert isinstance(head.trunk.layers[1].mlp.up_proj, Int8Linear)
    found = drafted(head, compiles=compiles)
    assert 0 < float((found - meant).norm() / meant.norm()) < 0.02


@pytest.mark.usefixtures("everywhere")
def test_rounded_weights_can_be_inflated() -> None:
    """A head with int8 weights can be inflated for the benchmarks."""
    model = pytest.importorskip("benchmarks.inflate.model", exc_type=ImportError)
    small = tiny_model("llama")
    head = head_of(small, layers=1).requires_grad_(False)
    speed_up_head(head)
    config = small.config
    width = config.hidden_size // config.num_attention_heads
    size = model.Size(width * 2 * config.num_attention_heads, config.num_hidden_layers, 2 * config.num_attention_heads,
                2 * config.num_key_value_heads, 2 * config.intermediate_size)  # fmt: skip
    large = model.inflated_head(head, model.inflated(small, size))
    part = full_weight(head.trunk.layers[0].mlp.up_proj)
    assert torch.allclose(large.trunk.layers[0].mlp.up_proj.weight[: len(part), : part.shape[1]], part)


def test_a_cpu_keeps_its_weights() -> None:
    """On a CPU the weights are not rounded to int8."""
    head = head_of(tiny_model("llama"), layers=1).requires_grad_(False)
    int8_products(head)
    assert type(head.join) is nn.Linear


@pytest.mark.usefixtures("everywhere")
def test_a_head_tuned_on_a_cpu_can_be_saved_and_a_rounded_one_not(tmp_path: Path) -> None:
    """A shortened head can be saved and loaded for training; a head with int8 weights is refused."""
    net = tiny_model("llama")
    head = head_of(net, layers=1).requires_grad_(False)
    about = Trained("tiny", fingerprint(net), head.as_data())
    head.shorten()
    save_drafter(tmp_path, head, about, torch.arange(61))
    assert torch.allclose(load_for_training(tmp_path, net).join.weight, head.join.weight, atol=0.01)
    speed_up_head(head)
    with pytest.raises(ArgumentError, match="rounded weights"):
        save_drafter(tmp_path, head, about, torch.arange(61))


def test_training_uses_the_whole_joining_layer() -> None:
    """Training uses the whole joining layer; the shortened one is for drafting only."""
    head = head_of(tiny_model("llama"), layers=1).requires_grad_(False)
    head.shorten()
    nn.init.zeros_(head.join.weight)
    tokens, features = torch.tensor([[3, 4]]), torch.randn(1, 2, head.shape.width)
    found = [float(head.train(mode).features(tokens, features).detach().abs().max()) for mode in (True, False)]
    assert found[0] == 0 < found[1]


@pytest.mark.usefixtures("everywhere")
def test_any_number_of_rows_is_one_compilation() -> None:
    """An int8 product is compiled once for all numbers of rows."""
    made, graphs = Int8Linear(torch.randn(40, 24)), list[torch.fx.GraphModule]()

    def backend(graph: torch.fx.GraphModule, _: list[Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    run = torch.compile(made, backend=backend, dynamic=True)
    for count in (2, 3, 7, 20):
        assert run(torch.randn(count, 24)).shape == (count, 40)
    assert len(graphs) == 1


@pytest.mark.gpu
def test_half_precision_on_a_gpu() -> None:
    """In bfloat16 with int8 weights and tree attention, plain and compiled, logits are close to plain float32."""
    head = head_of(tiny_model("llama"), layers=2).requires_grad_(False)
    meant = drafted(head, compiles=False)
    quick = head_of(tiny_model("llama"), layers=2).requires_grad_(False)
    quick.load_state_dict(head.state_dict())
    net = tiny_model("llama").to("cuda", torch.bfloat16)
    quick.to("cuda", torch.bfloat16)
    quick.borrow(net)
    speed_up_head(quick)
    assert isinstance(quick.join, Int8Linear)
    found = drafted(quick).cpu().float()
    assert float((found - meant).norm() / meant.norm()) < 0.05
