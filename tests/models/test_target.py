"""Trees on unmodified models: logits at every node equal a plain forward of its path, and the cache after a keep too.

Weights are drawn wide, since with the default ones a wrong mask or position hides; negative controls show it does not.
"""

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from spectr.errors import ArgumentError, MismatchError
from spectr.models.target import Session, Target
from spectr.trees.shape import _ancestors

BASE = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT = {"n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 128}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "head_dim": 8}
WINDOW = {"sliding_window": 6}
ARCHITECTURES: dict[str, dict[str, object]] = {
    "llama": {},
    "mistral": WINDOW,
    "qwen2": {},
    "qwen3": {"head_dim": 8},
    "phi3": {},
    "gemma2": {"head_dim": 8, **WINDOW},
    "gemma3_text": {"head_dim": 8, **WINDOW},
    "olmo2": {},
    "granite": {},
    "stablelm": {},
    "cohere2": WINDOW,
    "smollm3": {},
    "mixtral": {"num_local_experts": 4},
    "qwen3_moe": MOE,
    "gpt_neox": {},
    "gpt2": GPT,
    "gptj": {**GPT, "rotary_dim": 8},
    "opt": {"ffn_dim": 48, "word_embed_proj_dim": 32},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
}
EAGER = {"gemma2", "gptj"}
PARENTS = [0, 0, 0, 1, 1, 2, 3]


def tiny(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **{**BASE, **ARCHITECTURES.get(name, {})})
    extra = {"attn_implementation": "eager"} if name in EAGER else {}
    model = AutoModelForCausalLM.from_config(config, **extra)
    with torch.no_grad():
        for weights in model.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.25)
    return model


def plain(model: PreTrainedModel, ids: list[int]) -> Tensor:
    with torch.no_grad():
        return model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]


def two_rows(target: Target) -> tuple[Session, list[list[int]], Tensor, Tensor]:
    """A ragged session after prompts of 11 and 7 tokens, the prompts, tree tokens and the ancestor mask."""
    generator = torch.Generator().manual_seed(1)
    prompts = [torch.randint(3, 61, (n,), generator=generator).tolist() for n in (11, 7)]
    session = target.open(2, 48)
    target.read(session, prompts)
    tokens = torch.randint(3, 61, (2, len(PARENTS)), generator=generator)
    return session, prompts, tokens, _ancestors(torch.tensor([PARENTS, PARENTS]), 3)


def worst(model: PreTrainedModel, prompts: list[list[int]], tokens: Tensor, seen: Tensor, logits: Tensor) -> float:
    """Largest difference to plain forwards of every node's path."""
    found = 0.0
    for row, prompt in enumerate(prompts):
        for node in range(tokens.shape[1]):
            path = [int(tokens[row, n]) for n in range(tokens.shape[1]) if seen[row, node, n]]
            found = max(found, float((logits[row, node] - plain(model, prompt + path)).abs().max()))
    return found


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_trees_and_kept_paths(name: str) -> None:
    model = tiny(name)
    target = Target(model, chunk=4)
    session, prompts, tokens, seen = two_rows(target)
    depth = seen.sum(-1) - 1
    logits = target.score(session, tokens, seen, depth)
    assert worst(model, prompts, tokens, seen, logits) < 5e-5 * max(1.0, float(logits.std()))
    target.keep(session, torch.tensor([[1, 3, 6], [2, -1, -1]]))
    kept = [prompts[0] + tokens[0, [0, 1, 3, 6]].tolist(), prompts[1] + tokens[1, [0, 2]].tolist()]
    assert session.filled.tolist() == [len(text) for text in kept]
    one = torch.ones(2, 1, 1, dtype=torch.bool)
    after = target.score(session, torch.tensor([[5], [6]]), one, torch.zeros(2, 1, dtype=torch.int64))
    for row, text in enumerate(kept):
        assert (after[row, 0] - plain(model, [*text, 5 + row])).abs().max() < 5e-5 * max(1.0, float(after.std()))


def test_rows_that_stay_are_untouched_when_others_leave() -> None:
    model = tiny("llama")
    target = Target(model)
    session, prompts, tokens, seen = two_rows(target)
    target.take_rows(session, torch.tensor([1]))
    logits = target.score(session, tokens[1:], seen[1:], seen[1:].sum(-1) - 1)
    assert worst(model, prompts[1:], tokens[1:], seen[1:], logits) < 5e-5


def test_wrong_masks_and_positions_are_seen() -> None:
    model = tiny("llama")
    target = Target(model)
    session, prompts, tokens, seen = two_rows(target)
    causal = torch.ones_like(seen).tril()
    assert worst(model, prompts, tokens, seen, target.score(session, tokens, causal, seen.sum(-1) - 1)) > 1e-2
    slots = torch.arange(len(PARENTS)).expand_as(tokens)
    assert worst(model, prompts, tokens, seen, target.score(session, tokens, seen, slots)) > 1e-2


@pytest.mark.parametrize(("name", "reason"), [("bloom", "ALiBi"), ("mamba", "recurrent state"), ("t5", "encoder")])
def test_models_that_cannot_be_driven(name: str, reason: str) -> None:
    from transformers import AutoModelForSeq2SeqLM

    config = AutoConfig.for_model(
        name, **({**BASE, "n_layer": 2, "n_head": 4} if name != "t5" else {"d_model": 32, "num_layers": 1})
    )
    auto = AutoModelForSeq2SeqLM if name == "t5" else AutoModelForCausalLM
    with pytest.raises(MismatchError, match=reason):
        Target(auto.from_config(config))


def test_limits_have_figures() -> None:
    target = Target(tiny("llama"))
    with pytest.raises(ArgumentError, match="48 tokens, got one of 60"):
        target.read(target.open(1, 48), [[5] * 60])
    with pytest.raises(ArgumentError, match="at least one row"):
        target.open(0, 8)
    session = target.open(1, 4)
    target.read(session, [[5, 6, 7]])
    with pytest.raises(ArgumentError, match="4 slots and 10 are needed"):
        target.score(
            session, torch.zeros(1, 7, dtype=torch.int64), torch.eye(7)[None] > 0, torch.zeros(1, 7, dtype=torch.int64)
        )
    assert target.memory(2, 100) == 2 * 2 * 100 * 3 * 2 * 8 * 4
