"""A request gives the same steps wherever its row is: alone, in a batch, joined late, or in a row that others had
before.

Models are float64, so that texts are exactly equal. Under the race the text is that of plain decoding, whatever the
drafter; under a coupling rule it is that of the same plan alone. The steps are the same under both.
"""

import asyncio
import gc
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.asking import LetterReader, Stepped, TakesForEver, trace
from tests.contracts.conftest import SIZE, Make
from tests.late import run_as_on_a_gpu
from transformers import PreTrainedModel

import spectr
from spectr.draft import Plan, drafter
from spectr.draft.model import ModelDrafting
from spectr.engine import Engine, Handle, Request, Result
from spectr.engine.prefix import PrefixCache
from spectr.engine.rows import Rows
from spectr.engine.runner import LaunchedStep, StepRunner
from spectr.engine.state import RequestState
from spectr.errors import ArgumentError, LawError, MismatchError, SpectrError
from spectr.models.target import Target
from spectr.policy import History, Policy, PolicyRows


@dataclass(frozen=True)
class Way:
    """A rule, a drafter and its plan. With `late`, steps are read one step late, as on a GPU."""

    rule: str
    name: str
    plan: Plan
    late: bool = False

    def __str__(self) -> str:
        return f"{self.rule}-{self.name}{'-late' * self.late}"


PRUNED, CHAINS, ONE = Plan(drafts=3, length=4, nodes=10), Plan("iid", drafts=3, length=3), Plan("iid", 1, 3)
DRAWN, HYBRID = Plan("without_replacement", tree=(3, 2)), Plan("hybrid", tree=(3, 2))
RACES = ["none", "lookup", "random", "ngram", "model", "early_exit", "feature", "blockwise", "padded", "mixed", "short"]
WAYS = [
    *(Way("race", name, PRUNED) for name in RACES),
    Way("race", "model", Plan("race", tree=(3, 2, 1))),
    Way("kseq", "model", CHAINS), Way("optimal", "ngram", CHAINS), Way("optimal", "feature", CHAINS),
    Way("path_block", "early_exit", CHAINS), Way("recursive", "blockwise", CHAINS), Way("kseq_plus", "short", CHAINS),
    Way("block", "model", ONE), Way("speculative", "feature", ONE), Way("traversal", "model", DRAWN),
    Way("recursive_wor", "ngram", DRAWN), Way("hybrid", "model", HYBRID),
    Way("match", "model", Plan("fixed", tree=(2, 2))), Way("match", "lookup", PRUNED), Way("match", "mixed", PRUNED),
    *(Way("race", name, PRUNED, late=True) for name in ("none", "lookup", "model", "early_exit", "feature")),
    Way("kseq", "model", CHAINS, late=True), Way("optimal", "feature", CHAINS, late=True),
    *(Way("race", name, PRUNED, late=late) for name in ("eagle3", "dspark", "peagle") for late in (False, True)),
    Way("optimal", "dspark", CHAINS), Way("kseq", "eagle3", CHAINS, late=True),
]  # fmt: skip


def ways(offset: int, every: int = 6) -> pytest.MarkDecorator:
    """Parametrizes a test with all ways; different tests have different ones in the quick tier."""
    marked = [
        pytest.param(way, marks=() if (at + offset) % every == 0 else pytest.mark.slow, id=str(way))
        for at, way in enumerate(WAYS)
    ]
    return pytest.mark.parametrize("way", marked)


LONG = [3, 4, 5, 3, 4, 6, 1, 2, 3, 4, 5, 3, 4, 6, 8, 9] * 2 + [3, 4, 5, 3]
OTHER = [0, 10, 7, 11] * 9  # has no token in common with it


def asked() -> list[Request]:
    """Eight requests, no two of which have a setting in common."""
    penalties: dict[str, Any] = {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3}
    words: list[list[int]] = [[7], [3, 4], [1, 2, 8]]
    return [
        Request([3, 4, 5, 3, 4, 5, 3], 1, 22),
        Request([1], 2, 17, Policy(0)),
        Request([2, 2, 2, 2], 3, 20, Policy(0.7, top_k=5)),
        Request(LONG, 4, 16, Policy(0.9, top_p=0.8, min_p=0.05)),
        Request([5, 6, 5, 6, 5], 5, 24, Policy(**penalties)),
        Request([3, 3], 6, 13, Policy(0.8, logit_bias={2: 3.0, 5: -math.inf}, bad_words=words)),
        Request(LONG[:9], 7, 24, Policy(1.2, min_new_tokens=9, no_repeat_ngram_size=2), stop_ids=frozenset({3, 9, 10})),
        Request([8, 1, 8], 8, 24, Policy(0.6, repetition_penalty=0.9), reader=LetterReader("dbk")),
    ]  # fmt: skip


@pytest.fixture
def build(net: PreTrainedModel, makers: dict[str, Make], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """A function that makes the engine of a way."""

    def made(way: Way, target: Target | None = None, **options: Any) -> Engine:
        if way.late:
            run_as_on_a_gpu(monkeypatch)
        return Engine(target or Target(net), makers[way.name](way.plan), spectr.rule(way.rule), **options)

    return made


_KNOWN: dict[Any, Any] = {}


@pytest.fixture
def alone(net: PreTrainedModel, makers: dict[str, Make]) -> Callable[..., list[Result]]:
    """A function that runs requests one by one, each in its own engine, whose steps are read at once."""

    def found(way: Way, requests: list[Request], key: object = None) -> list[Result]:
        where = None if key is None else (key, way.rule, way.name, way.plan)
        if where is None or where not in _KNOWN:
            results = []
            for request in requests:
                stepped = Stepped(Engine(Target(net), makers[way.name](way.plan), spectr.rule(way.rule)))
                results += stepped.finish([stepped.submit(request)])
            if where is None:
                return results
            _KNOWN[where] = results
        return list(_KNOWN[where])

    return found


@pytest.fixture
def meant(alone: Callable[..., list[Result]]) -> Callable[[Way], list[Result]]:
    """A function that returns the results of the eight requests alone; under the race texts equal those of plain
    decoding."""

    def found(way: Way) -> list[Result]:
        results = alone(way, asked(), "asked")
        if way.rule == "race":
            plain = alone(Way("race", "none", Plan()), asked(), "asked")
            assert [result.tokens for result in results] == [result.tokens for result in plain]
        return results

    return found


def same(found: list[Result], want: list[Result]) -> None:
    """Compares texts, finish reasons and steps."""
    for at, (one, other) in enumerate(zip(found, want, strict=True)):
        assert (at, one.tokens, one.finish_reason, one.text) == (at, other.tokens, other.finish_reason, other.text)
        assert (at, trace(one)) == (at, trace(other))


def test_the_requests_say_what_they_should(meant: Callable[[Way], list[Result]]) -> None:
    """Every setting makes a difference, and texts end in all ways."""
    results = meant(WAYS[0])
    assert [result.finish_reason for result in results] == ["length"] * 6 + ["stop"] * 2
    assert min(len(result.tokens) for result in results) > 8
    assert results[7].text.endswith("dbk.")
    free = [replace(request, policy=Policy(), stop_ids=frozenset(), reader=None) for request in asked()]
    plain = [result.tokens for result in _fresh(free)]
    assert all(result.tokens != text for result, text in zip(results[1:], plain[1:], strict=True))


def _fresh(requests: list[Request]) -> list[Result]:
    from tests.tiny import llama

    return Engine(Target(llama(3, layers=3)), drafter("none"), spectr.rule("race")).generate(requests)


# Company.


@ways(0, 4)
def test_in_company(way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    want, engine = meant(way), build(way)
    same(engine.generate(asked()), want)
    same(engine.generate(asked()[::-1]), want[::-1])


@ways(1)
def test_joined_late(way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """Requests join one after the other, while others run and end."""
    want = meant(way)
    for pause in (1, 3):
        stepped, handles = Stepped(build(way)), list[Handle]()
        for request in asked():
            handles.append(stepped.submit(request))
            stepped.turn(pause)
        same(stepped.finish(handles), want)


@ways(2)
def test_neighbours_are_cancelled(way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    want, gone = meant(way), {0: 2, 4: 2, 6: 3, 1: 5}
    stepped = Stepped(build(way))
    handles = [stepped.submit(request) for request in asked()]
    for turn in range(8):
        stepped.turn()
        for row, when in gone.items():
            if when == turn:
                handles[row].cancel()
    results = stepped.finish(handles)
    left = [row for row in range(8) if row not in gone]
    same([results[row] for row in left], [want[row] for row in left])
    reasons = [results[row].finish_reason for row in gone]
    assert reasons[:2] == ["cancelled"] * 2
    assert all(
        reason == "cancelled" or reason == want[row].finish_reason for row, reason in zip(gone, reasons, strict=True)
    )


@ways(3)
def test_few_rows(way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """Requests without a row wait."""
    want, engine = meant(way), build(way, rows=2)
    same(engine.generate(asked()), want)
    (lane,) = engine.scheduler.lanes.values()
    assert len(lane.memory) == 2


@ways(4)
def test_prompts_read_in_chunks(
    way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without other rows that decode."""
    want = meant(way)
    monkeypatch.setattr("spectr.engine.lane._IDLE_CHUNKS", 2)
    stepped, handles = Stepped(build(way).with_parts(chunk=5)), list[Handle]()
    for request in asked():
        handles.append(stepped.submit(request))
        stepped.turn(2)
    same(stepped.finish(handles), want)
    same(build(way).with_parts(chunk=5).generate(asked()), want)


@ways(5)
def test_copies_of_one_prompt(way: Way, build: Callable[..., Engine], alone: Callable[..., list[Result]]) -> None:
    """The prompt is prefilled once."""
    requests = [Request(LONG, seed, 8 + seed, Policy(0.8)) for seed in range(6)]
    found = build(way).generate(requests)
    same(found, alone(way, requests, "copies"))
    if way.name != "short":  # reads the end of a prompt, which is no beginning
        assert [result.reused for result in found] == [0] + [len(LONG) - 1] * 5


@pytest.mark.parametrize("name", [name for name in RACES if name != "none"])
def test_resumed(name: str, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """A text that is continued from any cut with the same seed has the same rest: penalties, minimum lengths, limits
    and stop strings count the tokens before. This holds for the race, whose noise is keyed by positions."""
    way = Way("race", name, PRUNED)
    requests, want = list[Request](), list[tuple[list[int], str | None]]()
    for request, result in zip(asked(), meant(way), strict=True):
        for cut in {1, 2, 7, len(result.tokens) // 2, len(result.tokens) - 1}:
            given = result.tokens[:cut]
            fed = None if request.reader is None else LetterReader("dbk")
            if fed is not None:
                fed.feed(given)
            requests.append(replace(request, generated=given, reader=fed))
            want.append((result.tokens[cut:], result.finish_reason))
    found = build(way).generate(requests)
    assert [(result.tokens, result.finish_reason) for result in found] == want


# Rows that others had.


@ways(6, 5)
def test_rows_that_others_had(way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """The requests run repeatedly in different orders, in rows with the caches of other texts."""
    want, engine = meant(way), build(way, rows=5)
    others = [Request([row, *LONG, row], row, 30, Policy(0.5, presence_penalty=1.0)) for row in range(3)]
    order = [5, 0, 7, 2, 6, 1, 4, 3]
    for _ in range(2):
        engine.generate(others)
        requests = asked()
        same(engine.generate([requests[row] for row in order]), [want[row] for row in order])


@ways(7, 5)
def test_a_beginning_that_an_ended_text_had(
    way: Way, build: Callable[..., Engine], alone: Callable[..., list[Result]]
) -> None:
    """Its cached prefix is reused, for target and drafter: steps equal those of a new engine."""
    stepped = Stepped(build(way))
    firsts = [Request(LONG, seed, 20, Policy(0.7)) for seed in (1, 2, 3)]  # of which some end in the middle of a draft
    said = [result.tokens for result in alone(way, firsts, "firsts")]
    seconds = [
        *(Request([*LONG, *text, 7, 7, 1], 2, 12) for text in said),  # go on
        Request([*LONG, *said[0][:9], 7, 7, 1], 2, 12),  # parts in the text
        Request([*LONG[:20], 9, 9], 3, 12, Policy(0, repetition_penalty=1.2)),  # parts in the prompt
        Request(LONG, 1, 20, Policy(0.7)),  # the same again
    ]
    want = alone(way, seconds, "seconds")
    for second, other in zip(seconds, want, strict=True):
        stepped.finish([stepped.submit(request) for request in [*firsts, Request([1, 2, 3], 5, 3)]])
        found = stepped.finish([stepped.submit(second)])
        same(found, [other])
        assert (found[0].reused > 8) == (way.name != "short")


@ways(8, 5)
def test_a_beginning_that_a_running_text_has(
    way: Way, build: Callable[..., Engine], alone: Callable[..., list[Result]]
) -> None:
    """The prefix is copied; rows behind it have other texts."""
    running, others = Request(LONG, 1, 40, Policy(0.7)), [Request(OTHER, row, 9 * row) for row in (1, 2, 3)]
    said = alone(way, [running], "runs")[0].tokens
    joins = [Request([*LONG[:30], row], 9 + row, 14, Policy(frequency_penalty=0.2 * row)) for row in range(3)]
    joins += [Request([*LONG, *said[:row]], 9 + row, 14) for row in (9, 12, 15)]
    want = alone(way, [running, *joins], "running")
    stepped = Stepped(build(way))
    stepped.finish([stepped.submit(request) for request in others])
    handles = [stepped.submit(running)]
    stepped.turn(2)
    for join in joins:
        handles.append(stepped.submit(join))
        stepped.turn()
    found = stepped.finish(handles)
    same(found, want)
    if way.name != "short":
        assert all(result.reused >= 29 for result in found[1:])


@ways(9)
def test_texts_that_need_more_room(way: Way, build: Callable[..., Engine], alone: Callable[..., list[Result]]) -> None:
    """Texts grow beyond all earlier ones, up to the end of the context, and more requests join, while others run."""
    requests = [Request([3, 4, 5], 1, 60), *(Request([row, 1], row, 12) for row in range(5)), Request(LONG, 2, 220)]
    want = alone(way, requests, "room")
    stepped, handles = Stepped(build(way)), list[Handle]()
    for request in requests:
        handles.append(stepped.submit(request))
        stepped.turn()
    same(stepped.finish(handles), want)


# Errors.


def refuses_at(length: int) -> Callable[[list[int]], list[int] | None]:
    def hook(text: list[int]) -> list[int] | None:
        if len(text) == length:
            raise KeyError("off the grammar")
        return None

    return hook


def ends_at(length: int) -> Callable[[list[int]], list[int] | None]:
    return lambda text: [] if len(text) == length else None


def breaks_at(length: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def processor(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] == length:
            raise ZeroDivisionError("in a processor")
        return scores

    return processor


def narrows_at(length: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda ids, scores: scores[:, :3] if ids.shape[1] == length else scores


FAULTS: dict[str, tuple[Policy, type[Exception]]] = {
    "hook": (Policy(allowed=refuses_at(12)), KeyError),
    "grammar": (Policy(allowed=ends_at(12)), ArgumentError),
    "processor": (Policy(processors=[breaks_at(12)]), ZeroDivisionError),
    "shape": (Policy(processors=[narrows_at(12)]), ArgumentError),
    "settings": (Policy(suppress_tokens=range(SIZE)), ArgumentError),
    "words": (Policy(bad_words=[[token] for token in range(SIZE)], presence_penalty=1.0), ArgumentError),
}
HOOKED = Policy(0.8, allowed=lambda text: [token for token in range(SIZE) if (token + text[-1]) % 4])


@pytest.mark.parametrize("fault", FAULTS)
@ways(10, 9)
def test_an_error_of_one_request(
    way: Way, fault: str, build: Callable[..., Engine], alone: Callable[..., list[Result]]
) -> None:
    """It ends that request with its tokens so far; other requests, with and without hooks, are not affected."""
    if way.late:
        pytest.skip("hooks run on the host, where steps are read at once")
    policy, error = FAULTS[fault]
    neighbours = [*asked()[:5], Request([3, 4], 9, 20, HOOKED), Request([1, 2, 3], 10, 20, HOOKED)]
    want = alone(way, neighbours, "hooked")
    stepped = Stepped(build(way))
    handles = [stepped.submit(request) for request in neighbours]
    stepped.turn(1)
    bad = [stepped.submit(Request([3, 4, 5], seed, 30, policy)) for seed in (1, 2)]
    stepped.turn(1)
    with pytest.raises(error):
        stepped.finish(bad)
    for handle in bad:
        with pytest.raises(error):
            handle.result(timeout=0)
        assert handle.so_far.finish_reason is None
    same(stepped.finish(handles), want)
    same(stepped.finish([stepped.submit(request) for request in neighbours]), want)


class Sick(Target):
    """A model whose logits after one token are not finite."""

    def score(self, session: Any, tokens: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        logits = super().score(session, tokens, *others, **options)
        return torch.where((tokens == SIZE - 1)[..., None], torch.nan, logits)


@ways(11)
def test_logits_that_are_no_numbers(
    way: Way, net: PreTrainedModel, build: Callable[..., Engine], alone: Callable[..., list[Result]]
) -> None:
    """They are an error only where a text gets there; drafts may."""
    never = {SIZE - 1: -math.inf}
    healthy = [Request(LONG[:11], row, 20, Policy(logit_bias=never, top_k=row)) for row in range(4)]
    want = alone(way, healthy, "healthy")
    stepped = Stepped(build(way, Sick(net)))
    handles = [stepped.submit(request) for request in healthy]
    sick = [stepped.submit(Request([2, 3], seed, 40, Policy(2.0, logit_bias={SIZE - 1: 2.0}))) for seed in (1, 2)]
    while stepped.turn():
        pass
    same(stepped.finish(handles), want)
    for handle in sick:
        with pytest.raises(LawError, match="NaN or infinite"):
            handle.result(timeout=0)


@ways(14)
def test_no_numbers_beyond_the_end(way: Way, net: PreTrainedModel, build: Callable[..., Engine]) -> None:
    """A stop string ends texts before the token whose logits are not finite, also with drafts."""
    last = chr(ord("a") + SIZE - 1)
    requests = [Request(LONG[:11], row, 40, Policy(2.0), reader=LetterReader(last)) for row in range(6)]
    results = build(way, Sick(net)).generate(requests)
    assert [result.finish_reason for result in results] == ["stop"] * 6
    assert all(result.tokens.index(SIZE - 1) == len(result.tokens) - 1 for result in results)


@ways(12)
def test_an_error_of_the_engine(
    way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends all requests that run or wait; afterwards the engine works."""
    want, engine = meant(way), build(way, rows=3)
    engine.generate([Request(LONG, 1, 9)])

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("the device is gone")

    stepped = Stepped(engine)
    handles = [stepped.submit(request) for request in asked()]
    stepped.turn(2)
    with monkeypatch.context() as broken:
        broken.setattr(engine.target, "score", fails)
        stepped.turn()
    for handle in handles:
        with pytest.raises(RuntimeError, match="the device is gone"):
            handle.result(timeout=0)
    assert not stepped.turn()
    same(stepped.finish([stepped.submit(request) for request in asked()]), want)
    with monkeypatch.context() as broken:
        broken.setattr(engine.target, "score", fails)
        with pytest.raises(RuntimeError, match="the device is gone"):
            engine.generate(asked())
    same(engine.generate(asked()), want)


def test_bad_requests_are_refused_at_once(build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """They are refused before any is queued; other requests are not affected."""
    engine = build(WAYS[4])
    handles = [engine.submit(request) for request in asked()]
    bad: list[tuple[type[Exception], Request]] = [
        (ArgumentError, Request([])), (ArgumentError, Request([SIZE])), (ArgumentError, Request([-1])),
        (ArgumentError, Request([1], 0, 256)), (ArgumentError, Request([1], 0, 3, generated=[1, 2, 3])),
        (ArgumentError, Request([1], generated=[SIZE])), (ArgumentError, Request([1], policy=Policy(bad_words=[[99]]))),
        (ArgumentError, Request([1], logprobs=-1)), (ArgumentError, Request([1], prompt_logprobs=-1)),
        (ArgumentError, Request([1], 1.5)),  # type: ignore[arg-type]
        (MismatchError, Request([1], source=[1, 2])),
    ]  # fmt: skip
    for error, request in bad:
        with pytest.raises(error):
            engine.submit(request)
    same([handle.result() for handle in handles], meant(WAYS[4]))


# Handles.


def active(engine: Engine) -> int:
    return sum(len(lane.active) + len(lane.prefilling) + len(lane.queue) for lane in engine.scheduler.lanes.values())


def test_an_abandoned_request_frees_its_row(build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    stepped = Stepped(build(WAYS[4], rows=1))
    handle = stepped.submit(Request([3, 4, 5], 1, 200))
    waiting = stepped.submit(asked()[0])
    stepped.turn(3)
    (lane,) = stepped.scheduler.lanes.values()
    assert (len(lane.active), len(lane.queue)) == (1, 1)
    del handle
    gc.collect()
    stepped.turn()
    assert (len(lane.active), len(lane.queue)) == (1, 0)
    same(stepped.finish([waiting]), meant(WAYS[4])[:1])


def test_an_abandoned_request_is_not_run_to_its_end(build: Callable[..., Engine]) -> None:
    engine = build(WAYS[0])
    handle = engine.submit(Request([3, 4, 5], 1, 250))
    next(handle)
    delivery = handle._delivery
    del handle
    gc.collect()
    assert delivery.is_cancelled
    engine.generate([Request([1], 1, 3)])
    while engine.scheduler.is_busy:
        time.sleep(0.01)
    assert active(engine) == 0
    assert not delivery.has_ended  # it was dropped, and did not come to its end


def test_a_cancelled_request_keeps_what_came(
    build: Callable[..., Engine], meant: Callable[[Way], list[Result]]
) -> None:
    engine, want = build(WAYS[4]), meant(WAYS[4])[0]
    handle = engine.submit(asked()[0])
    first = next(handle)
    handle.cancel()
    handle.cancel()
    assert list(handle) == []
    assert handle.result().finish_reason == "cancelled"
    assert handle.result().tokens == first.tokens == want.tokens[: len(first.tokens)]
    ended = engine.submit(asked()[0])
    same([ended.result()], [want])
    ended.cancel()
    same([ended.result()], [want])


def test_a_result_may_take_too_long(build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    stepped = Stepped(build(WAYS[4]))
    handle = stepped.submit(asked()[0])
    with pytest.raises(TimeoutError, match="the request goes on"):
        handle.result(timeout=0.01)
    same(stepped.finish([handle]), meant(WAYS[4])[:1])


def test_asynchronous_readers(build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """Handles are awaited, or read step by step, all at once in one loop; one raises, and one is cancelled."""
    engine, want = build(WAYS[4]), meant(WAYS[4])

    async def steps(handle: Handle) -> Result:
        seen = [step.tokens async for step in handle]
        assert [token for tokens in seen for token in tokens] == handle.so_far.tokens
        return handle.so_far

    async def awaited(handle: Handle) -> Result:
        return await handle

    async def fails() -> None:
        with pytest.raises(KeyError):
            await engine.submit(Request([3, 4, 5], 1, 30, FAULTS["hook"][0]))

    async def cancels() -> None:
        handle = engine.submit(Request([3, 4, 5], 1, 200))
        await anext(aiter(handle))
        handle.cancel()
        assert (await handle).finish_reason == "cancelled"

    async def together() -> list[Any]:
        read = [(steps if at % 2 else awaited)(engine.submit(request)) for at, request in enumerate(asked())]
        return await asyncio.gather(*read, fails(), cancels())

    same(asyncio.run(together())[:8], want)


@pytest.mark.parametrize("way", [WAYS[0], WAYS[4], WAYS[14]], ids=str)
def test_many_threads(way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """They submit at once, and wait, read or cancel; there are twice as many requests as rows."""
    want, engine = meant(way), build(way, rows=4)
    begin = threading.Barrier(8)

    def ask(at: int) -> Result:
        begin.wait()
        if at % 4 == 3:
            given_up = engine.submit(asked()[0])
            next(given_up)
            given_up.cancel()
        if at % 2:
            return engine.generate([asked()[at]])[0]
        handle = engine.submit(asked()[at])
        assert sum(len(step.tokens) for step in handle) == len(handle.so_far.tokens)
        return handle.so_far

    for _ in range(2):
        with ThreadPoolExecutor(8) as pool:
            same(list(pool.map(ask, range(8))), want)


def test_engines_share_a_model(build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """Their steps exclude one another."""
    chosen = [WAYS[0], WAYS[4], WAYS[6], WAYS[14]]
    first = build(chosen[0])
    engines = [first, *(build(way, first.target) for way in chosen[1:])]
    handles = [[engine.submit(request) for request in asked()] for engine in engines]
    for way, own in zip(chosen, handles, strict=True):
        same([handle.result() for handle in own], meant(way))


def test_a_hook_may_generate(build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """With the engine that calls it, whose thread cannot wait for itself."""
    engine, want = build(WAYS[4]), meant(WAYS[4])

    def asks(text: list[int]) -> list[int]:
        inner = engine.generate([Request(text, 1, 2)])[0].tokens
        return sorted({*inner, text[-1]})

    found = engine.generate([*asked(), Request([3, 4], 1, 6, Policy(allowed=asks))])
    same(found[:8], want)
    assert len(found[8].tokens) == 6


EXITS = """
from tests.tiny import llama
import spectr
from spectr.draft import drafter
from spectr.engine import Engine, Request
from spectr.models.target import Target

engine = Engine(Target(llama(3)), drafter("lookup"), spectr.rule("race"))
engine.generate([Request([3, 4, 5], 1, 5), Request([3, 4, 5], 1, 40)])
"""
RUNNING = """
handle = engine.submit(Request([3, 4, 5], 1, 250))
next(handle)
"""
TIMED = """
import atexit, time
from spectr.engine import scheduler

atexit.register(lambda: print(time.monotonic() - began < 2))  # after all that was registered later
atexit.unregister(scheduler.end_threads)
atexit.register(scheduler.end_threads)
began = time.monotonic()
"""


@pytest.mark.parametrize("script", [EXITS, EXITS + RUNNING], ids=["ended", "running"])
def test_a_process_may_end_at_any_time(script: str) -> None:
    """Right after a text has ended, and while another one runs."""
    path = os.pathsep.join([str(Path(spectr.__file__).parents[1]), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", script + TIMED], env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"True\n", b"")


# Planted faults: what these tests would see.

EARLY, LATE = [WAYS[0], WAYS[4], WAYS[14]], [way for way in WAYS if way.late and way.name in ("none", "model")]


@pytest.fixture
def seen(
    build: Callable[..., Engine], meant: Callable[[Way], list[Result]]
) -> Callable[[Way, Callable[[], None]], bool]:
    """Whether the eight requests in a batch differ from those alone once a fault is planted, or end in an error."""

    def found(way: Way, plant: Callable[[], None]) -> bool:
        want, before = meant(way), Stepped(build(way))
        same(before.finish([before.submit(request) for request in asked()]), want)
        plant()
        after = Stepped(build(way), checks=False)
        try:
            results = after.finish([after.submit(request) for request in asked()], 60)
        except (IndexError, RuntimeError, SpectrError, TakesForEver):
            return True
        return [trace(result) for result in results] != [trace(result) for result in want]

    return found


Seen = Callable[[Way, Callable[[], None]], bool]


@pytest.mark.parametrize("way", LATE, ids=str)
def test_a_setting_that_leaks_is_seen(way: Way, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: what is computed for one row is used for all. Most settings change nothing where they are off; greedy
    does."""
    leaky = lambda _self, _name, edited, _logits: edited  # noqa: E731
    assert seen(way, lambda: monkeypatch.setattr(PolicyRows, "_put_back", leaky))


SETTINGS = ["temperature", "repetition_penalty", "frequency_penalty", "min_new_tokens"]


@pytest.mark.parametrize(
    ("way", "setting"),
    [(way, setting) for setting in SETTINGS for way in EARLY] + [(way, "top_k") for way in LATE],
    ids=str,
)
def test_a_setting_of_the_neighbour_is_seen(
    way: Way, setting: str, seen: Seen, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: each row has the setting of the row before it."""
    number = PolicyRows.number

    def shifted(rows: PolicyRows, name: str) -> torch.Tensor:
        return number(rows, name).roll(1) if name == setting else number(rows, name)

    assert seen(way, lambda: monkeypatch.setattr(PolicyRows, "number", shifted))


@pytest.mark.parametrize("way", [*EARLY, *LATE], ids=str)
def test_rows_that_do_not_move_are_seen(way: Way, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: requests move to the rows of ended ones, and their tensors do not."""
    stays = lambda before, *_: list(range(len(before)))  # noqa: E731
    assert seen(way, lambda: monkeypatch.setattr("spectr.engine.placement._compacted", stays))


@pytest.mark.parametrize("way", EARLY, ids=str)
@pytest.mark.parametrize("kind", [Target, History, PolicyRows, Rows], ids=lambda kind: kind.__name__)
def test_a_part_that_does_not_move_is_seen(way: Way, kind: type, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the state of one part does not move with the rows."""
    assert seen(way, lambda: monkeypatch.setattr(kind, "copy_rows", lambda *_: None))


@pytest.mark.parametrize("way", [*EARLY, *LATE], ids=str)
def test_a_seed_of_the_row_is_seen(way: Way, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a row uses its index as the seed, instead of its request's."""
    put = Rows.put

    def by_number(rows: Rows, first: int, requests: list[Request], stops: frozenset[int]) -> None:
        put(rows, first, requests, stops)
        rows.seed[:] = torch.arange(len(rows))

    assert seen(way, lambda: monkeypatch.setattr(Rows, "put", by_number))


@pytest.mark.parametrize("way", LATE, ids=str)
def test_a_late_step_for_others_is_seen(way: Way, seen: Seen, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: a step is delivered to the requests that are in its rows now, and not to those when it was launched."""
    read = StepRunner.read

    def misread(runner: StepRunner, step: LaunchedStep) -> list[RequestState]:
        active = runner.placement.active
        now = [*active, *step.states[len(active) :]][: len(step.states)]
        return read(runner, replace(step, states=now))

    assert seen(way, lambda: monkeypatch.setattr(StepRunner, "read", misread))


def reused(stepped: Stepped) -> list[Any]:
    """The steps of a text that shares a prefix with a running one, in a row that had another text."""
    stepped.finish([stepped.submit(Request(OTHER, row, 40)) for row in (1, 2)])
    running = stepped.submit(Request(LONG, 1, 60, Policy(0.7)))
    stepped.turn(2)
    (result,) = stepped.finish([stepped.submit(Request([*LONG, 7], 2, 40))])
    assert running.result(timeout=0).finish_reason == "length"
    assert result.reused > 30
    return [trace(result)]


@pytest.mark.parametrize("way", [Way("race", "model", PRUNED), Way("kseq", "model", CHAINS), WAYS[14]], ids=str)
def test_a_beginning_without_the_drafters_part_is_seen(
    way: Way, build: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: the target's cache of a prefix is copied, and the drafter's is not. The race's text does not depend on
    it, but its steps do."""
    want = reused(Stepped(build(way)))
    monkeypatch.setattr(ModelDrafting, "copy_rows", lambda *_: None)
    with suppress(RuntimeError):  # of a drafter that has read more than there is
        assert reused(Stepped(build(way), checks=False)) != want


@pytest.mark.parametrize("way", EARLY, ids=str)
def test_a_beginning_that_is_too_long_is_seen(
    way: Way, build: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: one token too many counts as cached."""
    longest = PrefixCache.longest_match

    def longer(*given: Any, **options: Any) -> tuple[int, int]:
        row, count = longest(*given, **options)
        return row, count + (0 < count < len(LONG))

    shorter = Request([*LONG[:20], 7, 7, 7], 2, 40)
    stepped = Stepped(build(way))
    stepped.finish([stepped.submit(Request(LONG, 1, 9))])
    (right,) = stepped.finish([stepped.submit(shorter)])
    monkeypatch.setattr(PrefixCache, "longest_match", longer)
    stepped = Stepped(build(way), checks=False)
    stepped.finish([stepped.submit(Request(LONG, 1, 9))])
    (wrong,) = stepped.finish([stepped.submit(shorter)])
    assert (right.reused, wrong.reused) == (20, 21)
    assert trace(wrong) != trace(right)
