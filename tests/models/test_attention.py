"""Grouped attention gives the logits of sdpa for trees, plain calls and plain generation."""

from typing import Any

import pytest
import torch
from tests.architectures import tiny_model

from spectr.models import attention
from spectr.models.attention import group_heads
from spectr.models.target import Target


def test_plain_calls_and_trees_are_the_same() -> None:
    """Grouped attention gives the logits of sdpa in plain calls, with padding, in `generate` and for a tree."""
    model = tiny_model("llama")
    ids, mask = torch.randint(3, 61, (2, 9)), torch.ones(2, 9, dtype=torch.int64)
    mask[1, 6:] = 0
    before = [model(ids).logits, model(ids, attention_mask=mask).logits[mask.bool()]]
    text = model.generate(ids[:1], max_new_tokens=8, do_sample=False)
    group_heads(model)
    assert model.config._attn_implementation != "sdpa"
    after = [model(ids).logits, model(ids, attention_mask=mask).logits[mask.bool()]]
    for one, other in zip(before, after, strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    assert model.generate(ids[:1], max_new_tokens=8, do_sample=False).tolist() == text.tolist()
    target = Target(model)
    session = target.open(1, 20)
    target.read(session, [ids[0, :-1].tolist()])
    one = torch.ones(1, 1, 1, dtype=torch.bool)
    logits = target.score(session, ids[:1, -1:], one, torch.zeros(1, 1, dtype=torch.int64))
    assert torch.allclose(logits[0, 0], before[0][0, -1], atol=1e-5)


GROUPED = [
    "llama",
    "mistral",
    "qwen2 sliding",
    "qwen3",
    "gemma3_text",
    "cohere2",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("olmo2", "granite", "smollm3", "mixtral")),
]


@pytest.mark.parametrize("name", GROUPED)
def test_the_tree_kernel_gives_the_same_logits_in_every_family(
    name: str, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tree kernel gives the logits of plain passes, in families with windows, scales and norms of heads too.

    Here it is interpreted, in float32.
    """
    pytest.importorskip("triton")
    if torch.cuda.is_available():
        pytest.skip("kernels run on the GPU here")
    import spectr.kernels.attention  # noqa: F401  registers it

    play, asked = make(name), list[int]()
    group_heads(play.target.model)
    assert play.target.model.config._attn_implementation == "spectr_grouped"

    def is_tree(query: torch.Tensor, _: torch.Tensor, mask: torch.Tensor) -> bool:
        asked.extend([query.shape[2]] if mask.dtype == query.dtype else [])  # plain calls have boolean masks
        return mask.dtype == query.dtype

    monkeypatch.setattr(attention, "_is_tree", is_tree)
    logits = play.target.score(play.session, play.tokens, play.seen, play.depth)
    assert play.worst(logits) < 5e-5
    assert play.tokens.shape[1] in asked


@pytest.mark.parametrize("name", GROUPED)
def test_attention_is_told_where_each_row_ends(name: str, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a row is that of its text and its nodes; every layer gets it."""
    play, told, grouped = make(name), list[list[int]](), attention._grouped

    def attend(*given: Any, **kwargs: Any) -> Any:
        told.append(kwargs["row_ends"].tolist())
        return grouped(*given, **kwargs)

    monkeypatch.setattr(attention, "_grouped", attend)
    group_heads(play.target.model)
    play.target.score(play.session, play.tokens, play.seen, play.depth)
    count = play.tokens.shape[1]
    assert told == [[len(prompt) + count for prompt in play.prompts]] * play.model.config.num_hidden_layers
