"""A model made larger computes what it computed; so does the head that drafts for it."""

import pytest
import torch
from tests.contracts.conftest import llama
from transformers import GPT2Config, GPT2LMHeadModel

import spectr
from benchmarks.inflate.model import Size, inflated, inflated_head
from spectr.draft import Plan, drafter
from spectr.engine import Engine, Request
from spectr.errors import ArgumentError, MismatchError
from spectr.models.head import head_of
from spectr.models.target import Target

LARGE = Size(width=96, layers=5, heads=12, kv_heads=4, inner=100)


def test_the_function_is_kept() -> None:
    small = llama(3, layers=3)
    large = inflated(small, LARGE)
    tokens = torch.randint(0, 12, (2, 20), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        meant, found = small(tokens).logits, large(tokens).logits
    assert float((found - meant).abs().max()) < 2e-4 * float(meant.abs().max())
    assert sum(w.numel() for w in large.parameters()) > 5 * sum(w.numel() for w in small.parameters())
    states = large(tokens, output_hidden_states=True).hidden_states
    assert all(float(state[..., 32:].abs().max()) == 0 for state in states)
    busy = large.model.layers[4].mlp.gate_proj.weight  # type: ignore[union-attr]
    assert float((busy == 0).float().mean()) < 0.01  # type: ignore[operator]


@pytest.mark.parametrize("light", [False, True])
def test_the_head_drafts_the_same(light: bool) -> None:
    small = llama(3, layers=3)
    torch.manual_seed(0)
    head = head_of(small, 2, (1,), light).eval()
    with torch.no_grad():
        for weights in head.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.2)
    large = inflated(small, LARGE)
    results = []
    for net, own in ((small, head), (large, inflated_head(head, large))):
        made = drafter(
            "feature", head=Target(own), target=Target(net), plan=Plan(drafts=3, length=4, nodes=9), feature_layers=(1,)
        )
        engine = Engine(Target(net), made, spectr.rule("race"))
        results.append(engine.generate([Request([3, 4, 5], 2, 60)]))
    assert results[0][0].tokens == results[1][0].tokens
    assert [step.tokens for step in results[0][0].steps] == [step.tokens for step in results[1][0].steps]


def test_what_cannot_grow_is_refused() -> None:
    with pytest.raises(ArgumentError, match="can only grow"):
        inflated(llama(3), Size(96, 2, 12, 4, 40))
    with pytest.raises(ArgumentError, match="width must be heads"):
        inflated(llama(3), Size(90, 5, 12, 4, 100))
    with pytest.raises(MismatchError, match="only Llama models"):
        inflated(GPT2LMHeadModel(GPT2Config(vocab_size=12, n_embd=32, n_layer=2, n_head=4)), LARGE)
