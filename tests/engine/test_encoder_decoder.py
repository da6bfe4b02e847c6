"""Encoder-decoder targets in the engine: greedy is transformers', and the race's text is the same with any drafter."""

import pytest
import torch
from tests.tiny import widen
from transformers import AutoConfig, AutoModelForSeq2SeqLM, PreTrainedModel

import spectr
from spectr.draft import Plan, drafter
from spectr.engine import Engine, Job, Request
from spectr.errors import MismatchError
from spectr.models.target import Target
from spectr.policy import Policy

SIZE = 20
SHARED = {"vocab_size": SIZE, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 3}
BART = {
    "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128, "forced_eos_token_id": None,
}  # fmt: skip
CONFIGS = {
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4},
    "bart": BART,
    "marian": BART,
}


def tiny(name: str, seed: int = 0) -> PreTrainedModel:
    torch.manual_seed(seed)
    net = AutoModelForSeq2SeqLM.from_config(AutoConfig.for_model(name, **SHARED, **CONFIGS[name]))
    return widen(net, 0.25).double()  # so that texts can be compared token for token, as `tests.tiny` says


SOURCES = [[5, 6, 7, 8, 5, 6, 2], [9, 4, 2], [5, 6, 7, 8, 5, 6, 2]]


def requests(count: int = 18) -> list[Request]:
    return [Request([3], 7 + i, count - 4 * i, source=source) for i, source in enumerate(SOURCES)]


@pytest.mark.parametrize("name", CONFIGS)
def test_texts(name: str) -> None:
    net = tiny(name)
    target, plan = Target(net), Plan(drafts=2, length=3)
    drafters = [
        drafter("lookup"),
        drafter("ngram", plan=plan),
        drafter("model", model=Target(tiny(name, 1)), plan=plan),
        drafter("model", model=Target(tiny("t5", 2)), plan=Plan("race", tree=(2, 2))),
    ]
    for policy in (Policy(), Policy(0.5, top_k=6, repetition_penalty=1.2), Policy(0)):
        plain = Engine(target, drafter("none"), spectr.rule("race"))
        meant = [plain.generate(Job([request], policy))[0].tokens for request in requests()]
        for made in drafters:
            results = Engine(target, made, spectr.rule("race")).generate(Job(requests(), policy))
            assert [result.tokens for result in results] == meant


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_is_that_of_transformers(name: str) -> None:
    net = tiny(name)
    engine = Engine(Target(net), drafter("lookup"), spectr.rule("match"), frozenset({2}))
    for source in SOURCES[:2]:
        meant = net.generate(torch.tensor([source]), do_sample=False, max_new_tokens=15, num_beams=1)[0, 1:].tolist()
        found = engine.generate(Job([Request([3], 0, 15, source=source)], Policy(0)))[0].tokens
        assert found == meant


def test_sources_and_encoders_belong_together() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=SIZE, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    causal = Engine(Target(LlamaForCausalLM(config)), drafter("none"), spectr.rule("race"))
    with pytest.raises(MismatchError, match="has no encoder"):
        causal.generate(Job([Request([3], source=[4, 5])]))
    with pytest.raises(MismatchError, match="answers to a source"):
        Engine(Target(tiny("t5")), drafter("none"), spectr.rule("race")).generate(Job([Request([3, 4])]))
