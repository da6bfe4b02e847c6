"""With encoder-decoder targets, greedy texts equal those of transformers, and under the race no text depends on the
drafter."""

from typing import Any

import pytest
import torch
from tests.asking import Stepped, trace, under
from tests.tiny import widen, word_tokenizer
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedModel,
)

import spectr
from spectr.draft import Plan, drafter
from spectr.engine import Engine, Handle, Request
from spectr.errors import ArgumentError, MismatchError
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
    return widen(net, 0.25).double()  # float64, so that texts can be compared token for token (see `tests.tiny`)


SOURCES = [[5, 6, 7, 8, 5, 6, 2], [9, 4, 2], [5, 6, 7, 8, 5, 6, 2]]


def requests(count: int = 18) -> list[Request]:
    return [Request([3], 7 + i, count - 4 * i, source=source) for i, source in enumerate(SOURCES)]


@pytest.mark.parametrize("name", ["t5", *(pytest.param(name, marks=pytest.mark.slow) for name in ("bart", "marian"))])
def test_the_text_does_not_depend_on_the_drafter(name: str) -> None:
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
        meant = [plain.generate([request])[0].tokens for request in under(policy, requests())]
        for made in drafters:
            results = Engine(target, made, spectr.rule("race")).generate(under(policy, requests()))
            assert [result.tokens for result in results] == meant


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_texts_equal_those_of_transformers(name: str) -> None:
    net = tiny(name)
    engine = Engine(Target(net), drafter("lookup"), spectr.rule("match"), frozenset({2}))
    for source in SOURCES[:2]:
        meant = net.generate(torch.tensor([source]), do_sample=False, max_new_tokens=15, num_beams=1)[0, 1:].tolist()
        found = engine.generate([Request([3], 0, 15, Policy(0), source=source)])[0].tokens
        assert found == meant


TOKENS = {name: value for name, value in SHARED.items() if name.endswith("_id")}


def test_no_padding_is_generated_and_every_text_ends() -> None:
    """The generation config of translation models is respected: padding is a bad word, and a text that reaches its
    limit ends with the end token."""
    net = tiny("marian")
    net.generation_config = GenerationConfig(bad_words_ids=[[0]], forced_eos_token_id=2, **TOKENS)
    lm, most = spectr.load(net, "ngram", tokenizer=word_tokenizer(SIZE)), 6
    for source in ("w5 w6 w7 w8 w5", "w9 w4"):
        flat = {"max_new_tokens": most, "seed": 1, "n": 150, "temperature": 3.0}  # hot, so that padding would occur
        texts = [out.tokens for out in lm.generate([source], **flat)]
        assert not any(0 in text for text in texts)
        assert all(text[-1] == 2 for text in texts)
        assert max(map(len, texts)) == most
        free = [out.tokens for out in lm.generate([source], bad_words=(), forced_eos_token_id=None, **flat)]
        assert any(0 in text for text in free)
        assert any(text[-1] != 2 for text in free)


@pytest.mark.parametrize(
    ("name", "forced"),
    [
        pytest.param(name, forced, marks=() if (name, forced) in (("t5", 7), ("marian", None)) else pytest.mark.slow)
        for name in CONFIGS
        for forced in (None, 7)
    ],
)
def test_settings_of_the_model_are_those_of_transformers(name: str, forced: int | None) -> None:
    """A generation config with many settings gives the greedy texts of transformers, also with a forced first token,
    which transformers counts as a new token."""
    net = tiny(name).double()
    net.generation_config = GenerationConfig(
        repetition_penalty=1.2, no_repeat_ngram_size=2, bad_words_ids=[[0], [5, 6]], suppress_tokens=[11],
        begin_suppress_tokens=[4, 9, 12, 15], forced_eos_token_id=2, min_length=8, forced_bos_token_id=forced, **TOKENS,
    )  # fmt: skip
    most, begins = 15, 1 if forced is None else 2
    for source in ("w5 w6 w7 w8 w5", "w9 w4", "w3 w13 w14"):
        ids = torch.tensor([word_tokenizer(SIZE)(source)["input_ids"]])
        meant = net.generate(ids, do_sample=False, max_new_tokens=most)[0, begins:].tolist()
        for drafts in ("none", "lookup", "ngram"):
            lm = spectr.load(net, drafts, tokenizer=word_tokenizer(SIZE))
            assert lm.generate(source, most + 1 - begins, temperature=0).tokens == meant


QUICK = [("t5", "none"), ("bart", "model"), ("marian", "lookup")]  # each model and each drafter


def test_a_source_needs_an_encoder_and_an_encoder_a_source() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=SIZE, hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2
    )
    causal = Engine(Target(LlamaForCausalLM(config)), drafter("none"), spectr.rule("race"))
    with pytest.raises(MismatchError, match="has no encoder"):
        causal.generate([Request([3], source=[4, 5])])
    with pytest.raises(MismatchError, match="needs a source"):
        Engine(Target(tiny("t5")), drafter("none"), spectr.rule("race")).generate([Request([3, 4])])


@pytest.mark.parametrize(
    ("name", "made"),
    [
        pytest.param(name, made, marks=() if (name, made) in QUICK else pytest.mark.slow)
        for name in CONFIGS
        for made in ("none", "lookup", "model")
    ],
)
def test_rows_come_and_go(name: str, made: str) -> None:
    """Texts with sources of different lengths have the same steps as alone when they join late, are cancelled and reuse
    rows; a prefix is reused only from a text with the same source."""
    net, options = tiny(name), {"model": Target(tiny(name, 1)), "plan": Plan(drafts=2, length=3)}
    drafts = drafter(made, **(options if made == "model" else {}))
    target, asked = Target(net), [Request([3], row, 14, source=source) for row, source in enumerate(SOURCES * 2)]

    def alone(request: Request) -> Any:
        return trace(Engine(target, drafts, spectr.rule("race")).generate([request])[0])

    want = [alone(request) for request in asked]
    stepped, handles = Stepped(Engine(target, drafts, spectr.rule("race"), rows=4)), list[Handle]()
    for request in asked:
        handles.append(stepped.submit(request))
        stepped.turn(2)
    handles[1].cancel()
    results = stepped.finish(handles)
    assert [trace(result) for result in results[2:]] == want[2:]
    text = [3, *results[5].tokens]
    for source, known in ((SOURCES[0], True), (SOURCES[1], False)):
        again = Request([*text, 5], 9, 10, source=source)
        (result,) = stepped.finish([stepped.submit(again)])
        assert trace(result) == alone(again)
        assert (result.reused > 8) == known


def test_a_bad_source_is_refused_at_once() -> None:
    """`submit` refuses a missing, empty, invalid or too long source; a running text is not affected."""
    engine = Engine(Target(tiny("bart")), drafter("none"), spectr.rule("race"))
    good = engine.submit(Request([3], 1, 20, source=SOURCES[0]))
    for source in (None, [], [SIZE], [-1], [4] * 200):
        with pytest.raises((ArgumentError, MismatchError)):
            engine.submit(Request([3], 1, 20, source=source))
    assert len(good.result().tokens) == 20
