"""With `prediction`, a text that the answer will probably repeat (a string or token ids) saves calls."""

import asyncio
from pathlib import Path

import numpy as np
import pytest

import spectr
from spectr.errors import ArgumentError, MismatchError

ASK = "the quick brown fox jumps over the quick brown"


QUICK = [(0, "early_exit"), (0.7, "none"), (0.7, "lookup"), (1.3, "auto")]


@pytest.mark.parametrize(
    ("temperature", "drafter"),
    [
        pytest.param(temperature, drafter, marks=() if (temperature, drafter) in QUICK else pytest.mark.slow)
        for temperature in (0, 0.7, 1.3)
        for drafter in ("none", "lookup", "auto", "early_exit")
    ],
)
def test_the_text_is_the_same_and_takes_fewer_calls(folder: Path, drafter: str, temperature: float) -> None:
    """A right prediction saves calls, a wrong one does not change the text, and both are counted."""
    lm = spectr.load(str(folder), drafter)
    plain = lm.generate(ASK, 60, seed=5, temperature=temperature)
    for prediction in (plain.tokens, np.array(plain.tokens), tuple(plain.tokens)):
        found = lm.generate(ASK, 60, seed=5, temperature=temperature, prediction=prediction)
        assert found.tokens == plain.tokens
        assert found.stats.steps <= 5
        assert found.stats.accepted_prediction_tokens == len(plain.tokens)
        assert found.stats.rejected_prediction_tokens == 0
    wrong = lm.generate(ASK, 60, seed=5, temperature=temperature, prediction=" tides rise and fall" * 30)
    assert wrong.tokens == plain.tokens
    assert wrong.stats.accepted_prediction_tokens < wrong.stats.rejected_prediction_tokens


def test_a_string_is_read_as_it_would_stand_in_the_text(folder: Path) -> None:
    """A string is encoded without the special tokens that a prompt has at its beginning or end."""
    lm = spectr.load(str(folder), "none")
    words = "one two three four five six seven eight nine ten"
    ids = lm.tokenizer(words, add_special_tokens=False)["input_ids"]
    echo = lm.generate("x", len(ids), raw=True, allowed=lambda text: [ids[len(text) - 1]], prediction=words)
    assert echo.text == words
    assert echo.stats.accepted_prediction_tokens == len(ids)
    assert echo.stats.steps < len(ids) / 3


def test_one_for_each_prompt_or_one_for_all(folder: Path) -> None:
    """A list has one prediction per prompt, some of which may be missing; a single one is used for all prompts."""
    lm = spectr.load(str(folder), "none")
    plain = lm.generate([ASK, "tides"], 30, seed=3)
    ids = [out.tokens for out in plain]
    for given, accepted in (
        (ids, [len(ids[0]), len(ids[1])]),
        (ids[0], [len(ids[0]), None]),
        ([ids[0], None], [len(ids[0]), 0]),
        (["", ids[1]], [0, len(ids[1])]),
        ([], [0, 0]),
        ("", [0, 0]),
    ):
        found = lm.generate([ASK, "tides"], 30, seed=3, prediction=given)
        assert [out.tokens for out in found] == ids
        for out, count in zip(found, accepted, strict=True):
            assert count in (None, out.stats.accepted_prediction_tokens)
    several = lm.generate(ASK, 30, seed=3, n=2, prediction=ids[0])
    assert [out.stats.rejected_prediction_tokens == 0 for out in several] == [True, False]
    with pytest.raises(ArgumentError, match="prediction must have one value for each of 2 prompts, got 3"):
        lm.generate([ASK, "tides"], 30, prediction=["a", "b", "c"])


def test_streams_handles_and_conversations(folder: Path) -> None:
    """Predictions work with stream, submit, await and chat."""
    lm = spectr.load(str(folder), "lookup")
    plain = lm.generate(ASK, 40, seed=8)
    stream = lm.stream(ASK, 40, seed=8, prediction=plain.tokens)
    assert "".join(stream) == plain.text
    assert stream.output.stats.accepted_prediction_tokens == len(plain.tokens)
    handle = lm.submit(ASK, 40, seed=8, prediction=plain.tokens)
    assert handle.result().tokens == plain.tokens
    assert handle.stats.steps <= 4

    async def awaited() -> spectr.Output:
        return await lm.submit(ASK, 40, seed=8, prediction=plain.tokens)

    assert asyncio.run(awaited()).tokens == plain.tokens
    chat, other = lm.chat(), lm.chat()
    first = "".join(chat.say("one two three", 24, seed=4))
    assert "".join(other.say("one two three", 24, seed=4, prediction=first)) == first
    assert other.stats.accepted_prediction_tokens > 0
    again = "".join(chat.say("and then?", 24, seed=4))
    assert "".join(other.say("and then?", 24, seed=4, prediction=again)) == again
    assert other.reused > 5


def test_invalid_predictions_are_refused_before_anything_runs(folder: Path) -> None:
    lm = spectr.load(str(folder), "none")
    for bad in (5, ["a"], [1.5], {"type": "content"}, [[1, 2]], True):
        with pytest.raises(ArgumentError, match="prediction must be a string or a list of token ids"):
            lm.generate(ASK, 4, prediction=bad)
    with pytest.raises(ArgumentError, match="valid Unicode"):
        lm.generate(ASK, 4, prediction="\udcff")
    with pytest.raises(ArgumentError, match=r"tokens of a prediction must lie in 0 … 319, got \[320\]"):
        lm.submit(ASK, 4, prediction=[1, 320])
    with pytest.raises(ArgumentError, match="did you mean prediction"):
        lm.generate(ASK, 4, predictions="x")
    coupled = spectr.load(str(folder), "early_exit", "optimal")
    with pytest.raises(MismatchError, match="rule 'optimal' needs one; load the model with rule='race'"):
        coupled.generate(ASK, 4, prediction="x")
    assert len(coupled.generate(ASK, 4, prediction="", min_new_tokens=4).tokens) == 4


def test_an_encoder_decoder_model(translator: Path) -> None:
    """Predictions work with encoder-decoder models."""
    lm = spectr.load(str(translator), "none")
    plain = lm.generate("tides rise", 30, seed=1)
    found = lm.generate("tides rise", 30, seed=1, prediction=plain.tokens)
    assert found.tokens == plain.tokens
    assert found.stats.steps <= 4


def test_without_a_tokenizer(folder: Path) -> None:
    """Without a tokenizer a prediction must be token ids."""
    from transformers import AutoModelForCausalLM

    lm = spectr.load(AutoModelForCausalLM.from_pretrained(folder), "none")
    plain = lm.generate([3, 4, 5], 30, seed=1)
    assert lm.generate([3, 4, 5], 30, seed=1, prediction=plain.tokens).stats.steps <= 4
    with pytest.raises(ArgumentError, match="text needs a tokenizer"):
        lm.generate([3, 4, 5], 30, prediction="words")
