"""`submit` generates texts in the background, each with its own settings; a list of settings has one value per
prompt."""

import asyncio
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import spectr
from spectr.errors import ArgumentError
from spectr.lm import LM, Output
from spectr.lm.output import TextHandle

ASK = "the quick brown fox jumps over the quick brown"
TIDES = "tides rise and fall with the moon"


@pytest.fixture(scope="module")
def lm(folder: Path, small: Path) -> LM:
    return spectr.load(str(folder), str(small), nodes=6, dtype="float64")


def same(one: Output, other: Output) -> None:
    assert (one.tokens, one.text, one.finish_reason, one.seed) == (
        other.tokens, other.text, other.finish_reason, other.seed,
    )  # fmt: skip


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0}, {"top_k": 9, "seed": 4}, {"stop": ["a", "e"], "seed": 5}, {"max_new_tokens": 7, "seed": 6},
    {"repetition_penalty": 1.4, "bad_words": ["the"], "seed": 7}, {"raw": True, "logprobs": 3, "seed": 8},
    {"allowed": lambda text: range(5, 300, 1 + len(text) % 3), "seed": 9}, {"min_new_tokens": 12, "seed": 10},
]  # fmt: skip


def test_texts_run_together(lm: LM) -> None:
    """Submitted texts with different settings run in one batch and equal those of generate."""
    want = [lm.generate(ASK, **{"max_new_tokens": 20, "seed": 3, **own}) for own in SETTINGS]
    handles = [lm.submit(ASK, **{"max_new_tokens": 20, "seed": 3, **own}) for own in SETTINGS]
    for handle, output in zip(handles, want, strict=True):
        same(handle.result(), output)
        assert handle.result().logprobs == output.logprobs
        assert handle.output.top_logprobs == output.top_logprobs
    again = [lm.submit(ASK, **{"max_new_tokens": 20, "seed": 3, **own}) for own in SETTINGS]
    assert ["".join(handle) for handle in again] == [output.text for output in want]


def test_texts_are_read_with_asyncio(lm: LM) -> None:
    """A submitted text can be awaited or read piece by piece in an event loop."""
    want = lm.generate(ASK, 16, seed=2)

    async def pieces() -> str:
        return "".join([piece async for piece in lm.submit(ASK, 16, seed=2)])

    async def together() -> tuple[Output, str]:
        return await asyncio.gather(_awaited(lm), pieces())

    output, text = asyncio.run(together())
    same(output, want)
    assert text == want.text


async def _awaited(lm: LM) -> Output:
    return await lm.submit(ASK, 16, seed=2)


def test_cancelled_and_dropped_texts_end(lm: LM) -> None:
    """A cancelled text keeps its pieces so far; a text whose handle is dropped is cancelled."""
    handle = lm.submit(ASK, 300, seed=2, min_new_tokens=300)
    first = next(handle)
    handle.cancel()
    assert handle.result().finish_reason == "cancelled"
    assert handle.result().text.startswith(first)
    dropped = lm.submit(ASK, 300, seed=2, min_new_tokens=300)
    next(dropped)
    delivery = dropped._handle._delivery
    del dropped
    gc.collect()
    lm.generate(ASK, 4, seed=1)
    assert delivery.is_cancelled
    assert not delivery.has_ended  # it was dropped before its end


def test_an_error_is_raised_where_the_text_is_awaited(lm: LM) -> None:
    """An error of one text is raised from its handle, each time; other texts are not affected."""

    def refuses(text: list[int]) -> None:
        raise KeyError(len(text))

    good = lm.submit(ASK, 12, seed=1)
    bad = lm.submit(ASK, 12, seed=1, allowed=refuses)
    for _ in range(2):
        with pytest.raises(KeyError):
            bad.result()
    with pytest.raises(KeyError):
        list(lm.submit(ASK, 12, seed=1, allowed=refuses))
    same(good.result(), lm.generate(ASK, 12, seed=1))
    with pytest.raises(ArgumentError, match="submit takes one prompt"):
        lm.submit([ASK, ASK])  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="submit gives one text and takes no n; use generate"):
        lm.submit(ASK, n=2)


def test_a_text_that_failed_says_so(lm: LM) -> None:
    """The reason is "error" however the text was waited for. A timeout is no error of the text."""

    def refuses(text: list[int]) -> None:
        raise KeyError(len(text))

    async def awaited(handle: TextHandle) -> None:
        await handle

    async def iterated(handle: TextHandle) -> None:
        async for _ in handle:
            pass

    ways: list[Callable[[TextHandle], object]] = [
        TextHandle.result, list, lambda handle: asyncio.run(awaited(handle)),
        lambda handle: asyncio.run(iterated(handle)),
    ]  # fmt: skip
    for wait in ways:
        bad = lm.submit(ASK, 12, seed=1, allowed=refuses)
        with pytest.raises(KeyError):
            wait(bad)
        bad.cancel()
        assert bad.finish_reason == "error"
    slow = lm.submit(ASK, 200, seed=1, min_new_tokens=200)
    with pytest.raises(TimeoutError, match="did not end within 0 seconds; the request goes on"):
        slow.result(timeout=0)
    assert slow.finish_reason is None
    slow.cancel()


def test_a_timeout_is_for_the_whole_text(lm: LM) -> None:
    """However often a step comes within it."""

    def slowly(_: list[int]) -> None:
        time.sleep(0.05)

    slow = lm.submit(ASK, 400, seed=1, min_new_tokens=400, allowed=slowly)
    with pytest.raises(TimeoutError):
        slow.result(timeout=1.0)
    assert slow.finish_reason is None
    slow.cancel()


def test_settings_for_each_prompt(lm: LM) -> None:
    """A list of settings has one value per prompt, also for settings that are lists themselves."""
    each: dict[str, Any] = {
        "temperature": [0.0, 0.7, 1.0], "max_new_tokens": [9, 12, 15], "stop": [["a"], [], None], "top_k": [0, 5, 0],
        "bad_words": [["the", "fox"], [], [[5, 6]]], "logit_bias": [{7: 2.0}, {}, {8: -3.0}], "seed": [1, 2, 3],
        "suppress_tokens": [[9], [], [10, 11]], "raw": [True, False, True], "logprobs": [None, 0, 2],
    }  # fmt: skip
    prompts = [ASK, TIDES, ASK]
    together = lm.generate(prompts, **each)
    for at, prompt in enumerate(prompts):
        alone = lm.generate(prompt, **{name: values[at] for name, values in each.items()})
        same(together[at], alone)
        assert (together[at].logprobs is None) == (at == 0)
    for name in ("temperature", "seed", "max_new_tokens"):
        with pytest.raises(ArgumentError, match=f"{name} must have one value for each of 3 prompts, got 2"):
            lm.generate(prompts, **{"max_new_tokens": 4, name: [1, 1]})
    with pytest.raises(ArgumentError, match="top_p"):
        lm.generate(prompts, 4, top_p=[0.5, 7, 0.5])


def test_settings_that_are_lists_hold_for_all(lm: LM) -> None:
    """A single list for a setting that is a list itself holds for all prompts."""
    shared: dict[str, Any] = {"stop": ["a", "e"], "bad_words": ["the", "fox"], "suppress_tokens": [9, 10]}
    together = lm.generate([ASK, TIDES], 16, seed=[5, 6], **shared)
    for output, prompt, seed in zip(together, (ASK, TIDES), (5, 6), strict=True):
        same(output, lm.generate(prompt, 16, seed=seed, **shared))


def test_several_texts_of_each_prompt(lm: LM) -> None:
    """With several texts per prompt every text has its own seed; with a seed per prompt they derive from that seed."""
    outputs = lm.generate([ASK, TIDES], 8, seed=3, n=[2, 3])
    assert len({output.seed for output in outputs}) == len(outputs) == 5
    for output, prompt in zip(outputs, [ASK] * 2 + [TIDES] * 3, strict=True):
        same(output, lm.generate(prompt, 8, seed=output.seed))
    outputs = lm.generate([ASK, TIDES], 8, seed=[3, 4], n=2)
    alone: list[Any] = [lm.generate(ASK, 8, seed=3, n=2), lm.generate(TIDES, 8, seed=4, n=2)]
    for one, other in zip(outputs, [*alone[0], *alone[1]], strict=True):
        same(one, other)


def test_log_probabilities_of_the_prompt(lm: LM) -> None:
    """Prompt log-probabilities are those of the model, for all tokens but the first."""
    output = lm.generate(ASK, 4, seed=1, prompt_logprobs=2, logprobs=1)
    ids = lm.encode(ASK)
    with torch.no_grad():
        law = lm.opened.target.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    assert output.prompt_logprobs is not None
    assert output.prompt_logprobs[0] is None
    for place, found in enumerate(output.prompt_logprobs[1:]):
        assert found is not None
        assert found.logprob == pytest.approx(float(law[place, ids[place + 1]]), abs=1e-5)
        assert [token for token, _ in found.top] == law[place].topk(2).indices.tolist()
    assert output.top_logprobs is not None
    assert output.top_logprobs[0][0][0] == int(law[-1].argmax())


def test_a_shared_prefix_is_prefilled_once(lm: LM) -> None:
    first = lm.generate(ASK + " " + TIDES, 8, seed=1)
    second = lm.generate(ASK + " " + TIDES + " and", 8, seed=1)
    assert second.reused > 20
    assert first.tokens == lm.generate(ASK + " " + TIDES, 8, seed=1).tokens


def test_few_rows(folder: Path) -> None:
    """Texts do not depend on the number of rows."""
    few, many = spectr.load(str(folder), rows=2, dtype="float64"), spectr.load(str(folder), dtype="float64")
    for one, other in zip(*(lm.generate([ASK, TIDES], 9, seed=2, n=4) for lm in (few, many)), strict=True):
        same(one, other)
