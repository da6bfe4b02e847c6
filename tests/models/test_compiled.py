"""Compiled layers give the logits of plain ones, and are compiled once for all layers, nodes and slots."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedModel

from spectr.errors import MismatchError
from spectr.models.attention import group_heads
from spectr.models.compiled import CompiledLayers
from spectr.models.target import Target


@pytest.fixture(autouse=True)
def as_traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run traced graphs without compiling them to kernels, which takes long and is torch's own part."""
    monkeypatch.setattr("spectr.models.compiled._BACKEND", "eager")


@pytest.fixture
def net() -> PreTrainedModel:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=50,
        hidden_size=40,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        intermediate_size=72,
        attn_implementation="sdpa",
    )
    made: PreTrainedModel = LlamaForCausalLM(config).eval().requires_grad_(False)
    return made


def scored(target: Target, slots: int, nodes: int, rows: int = 1) -> torch.Tensor:
    """Return the logits of a chain after a short text, with `slots` attended slots, and of one token after the kept
    path."""
    whole = target.open(rows, slots + nodes + 1)
    target.read(whole, [list(range(1, 9 - row)) for row in range(rows)])
    tokens, depth = torch.arange(3, 3 + nodes).expand(rows, -1), torch.arange(nodes).expand(rows, -1)
    ancestors = torch.ones(nodes, nodes, dtype=torch.bool).tril().expand(rows, -1, -1)
    session = target.window(whole, 0, rows, slots - nodes)
    first = target.score(session, tokens, ancestors, depth)
    assert session.cache.attended == slots
    target.keep(session, torch.zeros(rows, 1, dtype=torch.int64))
    session = target.window(whole, 0, rows, slots - 1)
    return torch.cat([first, target.score(session, tokens[:, :1], ancestors[:, :1, :1], depth[:, :1])], 1)


@pytest.mark.parametrize("tuned", [False, True], ids=["usual", "grouped"])
def test_the_same_numbers_from_one_function(net: PreTrainedModel, tuned: bool) -> None:
    """Compiled layers give the logits of plain ones with two traces, one for several nodes and one for a single node,
    for any number of layers and slots."""
    if tuned:
        group_heads(net)
    target, cases = Target(net), ((16, 4, 1), (32, 4, 1), (48, 7, 1))
    plain = [scored(target, *case) for case in cases]
    target._compiled = CompiledLayers(target.layers)  # the layers only
    torch._dynamo.reset()
    counters.clear()
    for case, want in zip(cases, plain, strict=True):
        torch.testing.assert_close(scored(target, *case), want, rtol=0, atol=1e-6)
    assert counters["stats"]["unique_graphs"] == 2
    assert not counters["graph_break"]
    assert all("forward" not in vars(layer) for layer in net.model.layers)  # type: ignore[operator, union-attr]


def test_equal_sizes_of_the_first_call_may_differ_later(net: PreTrainedModel) -> None:
    """As many rows as nodes, heads or slots in the first call do not make a later call with other sizes compile
    again."""
    target = Target(net)
    cases = ((16, 4, 4), (32, 7, 4), (48, 16, 16), (16, 2, 2))
    plain = [scored(target, *case) for case in cases]
    target._compiled = CompiledLayers(target.layers)
    torch._dynamo.reset()
    counters.clear()
    for case, want in zip(cases, plain, strict=True):
        torch.testing.assert_close(scored(target, *case), want, rtol=0, atol=1e-6)
    assert counters["stats"]["unique_graphs"] == 2


def test_as_many_shapes_are_compiled_in_every_thread(net: PreTrainedModel) -> None:
    """torch has a limit of recompilations for each thread, above which functions run uncompiled. It is as high in an
    engine's thread as in the one that loaded the model."""
    layers = CompiledLayers(list(net.model.layers))  # type: ignore[arg-type, union-attr]

    def limit() -> int:
        with layers.on():
            return int(torch.compiler.config.recompile_limit)

    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(limit).result() == limit() >= 64


@pytest.mark.slow
def test_compiled_layers_work_on_several_rows(net: PreTrainedModel) -> None:
    target = Target(net)
    want = scored(target, 16, 4, rows=3)
    target.compile()
    torch.testing.assert_close(scored(target, 16, 4, rows=3), want, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "name",
    ["gemma2", *(pytest.param(n, marks=pytest.mark.slow) for n in ("qwen2", "mistral", "gpt_neox", "phi3"))],
)
def test_other_families_compile_to_the_same_logits(name: str) -> None:
    """Compiled logits of several rows are right in families with biases, norms in the layers, fused projections, and
    without gates."""
    torch.manual_seed(1)
    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "pad_token_id": 0,
             "num_key_value_heads": 2, "intermediate_size": 48, "head_dim": 8}  # fmt: skip
    net = AutoModelForCausalLM.from_config(AutoConfig.for_model(name, **sizes)).eval().requires_grad_(False)
    target = Target(net)
    want = scored(target, 16, 4, rows=3)
    target.compile()
    torch.testing.assert_close(scored(target, 16, 4, rows=3), want, rtol=0, atol=1e-5)


def test_weights_are_held_once(net: PreTrainedModel) -> None:
    """After compilation the model's weights are views of the joint weights, and a second compilation shares them."""
    before = {name: weights.clone() for name, weights in net.named_parameters()}
    attention: Any = net.model.layers[1].self_attn  # type: ignore[index, union-attr]
    for _ in range(2):
        CompiledLayers(list(net.model.layers))  # type: ignore[arg-type, union-attr]
        where = attention.q_proj.weight.untyped_storage().data_ptr()
        assert attention.v_proj.weight.untyped_storage().data_ptr() == where
    assert attention.q_proj.weight.untyped_storage().nbytes() == sum(
        getattr(attention, name).weight.nbytes for name in ("q_proj", "k_proj", "v_proj")
    )
    assert all(torch.equal(weights, before[name]) for name, weights in net.named_parameters())


def test_replaced_weights_are_an_error(net: PreTrainedModel) -> None:
    target = Target(net)
    target.compile()
    attention: Any = net.model.layers[1].self_attn  # type: ignore[index, union-attr]
    attention.q_proj.weight = torch.nn.Parameter(attention.q_proj.weight.clone(), requires_grad=False)
    with pytest.raises(MismatchError, match="moved or replaced"):
        scored(target, 16, 4)


def test_compiled_layers_allocate_missing_buffers(net: PreTrainedModel) -> None:
    """Compiled layers allocate the cache if it is missing, as at the beginning of a text of one token."""
    target, one = Target(net), torch.tensor([[5]])
    session, again = target.open(1, 8), target.open(1, 8)
    want = target.score(session, one, torch.ones(1, 1, 1, dtype=torch.bool), torch.zeros_like(one))
    target.compile()
    found = target.score(again, one, torch.ones(1, 1, 1, dtype=torch.bool), torch.zeros_like(one))
    torch.testing.assert_close(found, want, rtol=0, atol=1e-6)


def test_layers_that_differ_have_functions_of_their_own(net: PreTrainedModel) -> None:
    """Layers with different settings or data are compiled separately."""
    layers = list(net.model.layers)  # type: ignore[arg-type, union-attr]
    assert CompiledLayers(layers).kinds == 1
    layers[2].self_attn.scaling = 0.5  # type: ignore[union-attr, assignment]
    assert CompiledLayers(layers).kinds == 2
    layers[3].mlp.table = [1, 2]  # type: ignore[union-attr, assignment]
    assert CompiledLayers(layers).kinds == 3
