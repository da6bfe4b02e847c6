"""A model's `generation_config` as the default policy: its settings, what overrides them, and the scores that
transformers' own `generate` computes from the same config, at every step of a text."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    WatermarkingConfig,
)

import spectr
from spectr.errors import SpectrError
from spectr.models.generation_config import default_settings, unsupported_settings
from spectr.models.hf import open_loaded, open_model
from spectr.notices import forget
from spectr.policy import History, Past, Policy, merge_settings

V = 24
TOKENS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}


def spread(net: PreTrainedModel) -> PreTrainedModel:
    """Draw wide weights, so that distributions differ from token to token."""
    torch.manual_seed(5)
    with torch.no_grad():
        for weights in net.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.3)
    return net.eval()


def causal() -> PreTrainedModel:
    size: dict[str, Any] = {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
    }
    return spread(LlamaForCausalLM(LlamaConfig(vocab_size=V, max_position_embeddings=64, **size, **TOKENS)))


def encoder_decoder() -> PreTrainedModel:
    size = {f"{part}_{name}": n for part in ("encoder", "decoder") for name, n in
            (("layers", 1), ("attention_heads", 2), ("ffn_dim", 24))}  # fmt: skip
    config = BartConfig(
        vocab_size=V, d_model=16, max_position_embeddings=64, decoder_start_token_id=3, **size, **TOKENS
    )
    return spread(BartForConditionalGeneration(config))


@pytest.fixture(scope="module")
def net() -> PreTrainedModel:
    return causal()


def with_config(net: PreTrainedModel, **said: Any) -> PreTrainedModel:
    net.generation_config = GenerationConfig(**{**TOKENS, "decoder_start_token_id": 3, **said})
    return net


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ({}, {}),
        ({"do_sample": True, "temperature": 0.6, "top_p": 0.9}, {"temperature": 0.6, "top_p": 0.9}),
        ({"temperature": 0.6}, {"temperature": 0.6}),  # whether to sample is left open: texts are sampled
        ({"do_sample": False, "repetition_penalty": 1.1}, {"temperature": 0, "repetition_penalty": 1.1}),
        ({"do_sample": False, "temperature": 0.7, "top_k": 20}, {"temperature": 0, "top_k": 20}),
        ({"top_p": 1.0, "typical_p": 1.0, "top_k": 0, "epsilon_cutoff": 0.0, "eta_cutoff": 0.0}, {"top_k": 0}),
        ({"no_repeat_ngram_size": 0, "min_length": 0, "min_p": 0.1}, {"min_p": 0.1}),
        ({"bad_words_ids": [[2], [5], [2, 4]], "eos_token_id": [2, 3]}, {"bad_words": [[5], [2, 4]]}),
        ({"bad_words_ids": [[2]]}, {}),  # an end of text is no bad word
        ({"suppress_tokens": [4, 99], "begin_suppress_tokens": [98]}, {"suppress_tokens": (4,)}),
        ({"forced_eos_token_id": 2, "min_length": 7}, {"forced_eos_token_id": 2, "min_length": 7}),
        ({"min_length": 7, "min_new_tokens": 3}, {"min_new_tokens": 3}),  # the second stands in place of the first
        ({"max_length": 20, "renormalize_logits": True, "num_beams": 4}, {}),
    ],
    ids=str,
)
def test_settings(net: PreTrainedModel, said: dict[str, Any], meant: dict[str, Any]) -> None:
    found = open_loaded(with_config(net, **said)).settings
    assert found == meant
    Policy(**found)


def test_a_model_without_a_config_has_no_settings(net: PreTrainedModel) -> None:
    net.generation_config = None
    assert default_settings(net, V) == {}
    assert unsupported_settings(net, V) is None


def test_a_checkpoint_keeps_its_settings(tmp_path: Path) -> None:
    said = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.05, "eos_token_id": [2, 7]}
    with_config(causal(), **said).save_pretrained(tmp_path)
    opened = open_loaded(LlamaForCausalLM.from_pretrained(tmp_path))
    assert opened.settings == {"temperature": 0.6, "top_p": 0.9, "repetition_penalty": 1.05}
    assert opened.stops == {2, 7}


def test_a_given_setting_overrides_only_that_setting() -> None:
    own = {"temperature": 0.6, "top_k": 50, "repetition_penalty": 1.1, "min_length": 9, "suppress_tokens": (3,)}
    assert merge_settings(own, {}) == own
    assert merge_settings(own, {"temperature": 1.0}) == {**own, "temperature": 1.0}
    off = merge_settings(own, {"top_k": 0, "repetition_penalty": 1.0, "suppress_tokens": (), "min_length": 0})
    assert Policy(**off) == Policy(0.6)
    assert merge_settings(own, {"logit_bias": {3: 1.0}})["suppress_tokens"] == (3,)
    shorter = merge_settings(own, {"min_new_tokens": 2})  # as in transformers, in place of min_length too
    assert (shorter["min_new_tokens"], shorter.get("min_length")) == (2, None)


def test_unsupported_settings_are_named(net: PreTrainedModel) -> None:
    assert unsupported_settings(with_config(net, num_beams=1, guidance_scale=1.0, temperature=0.5), V) is None
    said = unsupported_settings(with_config(net, num_beams=4, guidance_scale=1.5, top_p=0.0, stop_strings=["."]), V)
    assert said is not None
    for part in ("num_beams (there is no beam search, so texts are sampled", "guidance_scale (", "stop_strings (give",
                 "top_p must lie in (0, 1], where 1 is off, got 0.0"):  # fmt: skip
        assert part in said
    others = {
        "encoder_repetition_penalty": 1.5, "encoder_no_repeat_ngram_size": 3, "sequence_bias": [[[4], -1.0]],
        "exponential_decay_length_penalty": (3, 1.1), "watermarking_config": WatermarkingConfig(),
        "forced_bos_token_id": 4,
    }  # fmt: skip
    said = unsupported_settings(with_config(net, **others), V)
    assert said is not None
    assert all(f"{name} (" in said for name in others)
    beyond = unsupported_settings(with_config(net, forced_eos_token_id=V, bad_words_ids=[[3, V]]), V)
    assert beyond is not None
    assert beyond.count(f"must name tokens below {V}") == 2
    assert default_settings(net, V) == {}


def test_unsupported_settings_are_named_when_a_model_is_loaded(
    net: PreTrainedModel, caplog: pytest.LogCaptureFixture
) -> None:
    said: list[str] = []
    spectr.load(with_config(net, num_beams=4, top_p=0.9), "none", progress=said.append)
    assert len(said) == 1
    assert "num_beams (" in said[0]
    forget()
    spectr.load(with_config(net, num_beams=4), "none")
    assert "num_beams (" in caplog.text


RICH: dict[str, Any] = {
    "do_sample": True, "temperature": 0.8, "top_k": 20, "top_p": 0.97, "min_p": 0.005, "typical_p": 0.97,
    "epsilon_cutoff": 0.004, "eta_cutoff": 0.01, "repetition_penalty": 1.2, "bad_words_ids": [[7], [4, 6], [2]],
    "suppress_tokens": [8, 99], "begin_suppress_tokens": [5, 9, 10], "forced_eos_token_id": 2, "min_length": 9,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "rich": RICH,
    "repeats": {"do_sample": True, "top_k": 0, "no_repeat_ngram_size": 2, "repetition_penalty": 0.7},
    "several ends": {**RICH, "eos_token_id": [2, 3, 4], "forced_eos_token_id": [2, 4], "min_new_tokens": 5},
    "normalised": {**RICH, "renormalize_logits": True},
    "greedy": {**RICH, "do_sample": False},
    "forced beginning": {**RICH, "forced_bos_token_id": 11, "min_new_tokens": 6},
}
PROMPT = [5, 6, 7, 5, 6, 9]


def compare_texts(net: PreTrainedModel) -> None:
    """At every step of a few texts, the policy of the config equals what transformers computes from the model's
    logits."""
    assert sum(compare_scores(net, seed) for seed in range(6)) >= 30


def compare_scores(net: PreTrainedModel, seed: int, most: int = 12) -> int:
    """Compare scores, and return the number of steps that were compared."""
    torch.manual_seed(seed)
    options = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True, "max_new_tokens": most}
    out: Any = net.generate(torch.tensor([PROMPT]), **options)  # type: ignore[operator]
    opened = open_loaded(net)
    prompt = list(opened.start or PROMPT)
    skipped = len(prompt) - 1 if opened.start else 0  # a forced beginning is part of the prompt
    answer = out.sequences[0, len(prompt) :].tolist()
    history = History.of([prompt], V, stops=opened.stops, limits=[most - skipped])
    policy, root = Policy(**opened.settings), torch.zeros(1, 1, 0, dtype=torch.int64)
    for step, token in enumerate(answer, start=skipped):
        found = policy(out.logits[step][None], Past(history, root))[0, 0]
        if opened.settings.get("temperature") == 0:
            assert int(found.argmax()) == int(out.scores[step][0].argmax()) == token
        else:
            torch.testing.assert_close(found.softmax(-1), out.scores[step][0].softmax(-1), rtol=1e-4, atol=1e-6)
        history.commit([[token]])
    return len(answer)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name != "forced beginning"])
def test_the_policy_is_what_transformers_makes_of_the_config(net: PreTrainedModel, name: str) -> None:
    compare_texts(with_config(net, **CONFIGS[name]))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_policy_of_an_encoder_decoder_model(name: str) -> None:
    compare_texts(with_config(encoder_decoder(), **CONFIGS[name]))


@pytest.mark.parametrize("setting", ["repetition_penalty", "bad_words", "suppress_tokens", "forced_eos_token_id"])
def test_a_setting_that_is_left_out_is_seen(
    net: PreTrainedModel, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The comparison fails if a setting is left out."""
    with_config(net, **RICH)

    def fewer(net: Any, vocabulary: int) -> dict[str, Any]:
        return {name: value for name, value in default_settings(net, vocabulary).items() if name != setting}

    monkeypatch.setattr("spectr.models.hf.default_settings", fewer)
    with pytest.raises(AssertionError, match="Tensor-likes are not close"):
        compare_texts(net)


@pytest.mark.skipif(find_spec("sentencepiece") is not None, reason="it is there")
@pytest.mark.parametrize(("files", "message"), [(["source.spm", "vocab.json"], "needs the package sentencepiece"),
                                                ([], "has no tokenizer that can be loaded")])  # fmt: skip
def test_a_missing_package_of_a_tokenizer_is_named(tmp_path: Path, files: list[str], message: str) -> None:
    from transformers import MarianConfig, MarianMTModel

    size = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 1,
            "decoder_attention_heads": 1, "encoder_ffn_dim": 8, "decoder_ffn_dim": 8}  # fmt: skip
    MarianMTModel(MarianConfig(vocab_size=V, decoder_start_token_id=0, **size, **TOKENS)).save_pretrained(tmp_path)
    for name in files:
        (tmp_path / name).write_text("{}")
    with pytest.raises(SpectrError, match=message):
        open_model(str(tmp_path))
