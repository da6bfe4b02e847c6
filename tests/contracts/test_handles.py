"""Handles can be abandoned, cancelled, awaited, and used in many threads and at the exit of the process."""

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.asking import Stepped
from tests.contracts.ways import WAYS, Way, asked, refuses_at, same

import spectr
from spectr.engine import Engine, Handle, Request, Result
from spectr.policy import Policy


def active(engine: Engine) -> int:
    return sum(len(lane.active) + len(lane.prefilling) + len(lane.queue) for lane in engine.scheduler.lanes.values())


def test_an_abandoned_request_frees_its_row(build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """When the handle of a running request is collected, a waiting request gets its row."""
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
    """When the handle of a running request is collected, the engine drops the request."""
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
    assert not delivery.has_ended  # it was dropped before its end


def test_a_cancelled_request_keeps_what_came(
    build: Callable[..., Engine], meant: Callable[[Way], list[Result]]
) -> None:
    """A cancelled request keeps its tokens so far; cancelling an ended request changes nothing."""
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


def test_a_result_has_a_timeout(build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """`result` raises TimeoutError, and the request continues."""
    stepped = Stepped(build(WAYS[4]))
    handle = stepped.submit(asked()[0])
    with pytest.raises(TimeoutError, match="the request goes on"):
        handle.result(timeout=0.01)
    same(stepped.finish([handle]), meant(WAYS[4])[:1])


def test_asynchronous_readers(build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """Many handles can be awaited or read step by step in one event loop, while one raises and one is cancelled."""
    engine, want = build(WAYS[4]), meant(WAYS[4])

    async def steps(handle: Handle) -> Result:
        seen = [step.tokens async for step in handle]
        assert [token for tokens in seen for token in tokens] == handle.so_far.tokens
        return handle.so_far

    async def awaited(handle: Handle) -> Result:
        return await handle

    async def fails() -> None:
        with pytest.raises(KeyError):
            await engine.submit(Request([3, 4, 5], 1, 30, Policy(allowed=refuses_at(12))))

    async def cancels() -> None:
        handle = engine.submit(Request([3, 4, 5], 1, 200))
        await anext(aiter(handle))
        handle.cancel()
        assert (await handle).finish_reason == "cancelled"

    async def together() -> list[Any]:
        read = [(steps if at % 2 else awaited)(engine.submit(request)) for at, request in enumerate(asked())]
        return await asyncio.gather(*read, fails(), cancels())

    same(asyncio.run(together())[:8], want)


@pytest.mark.parametrize(
    "way", [WAYS[4], *(pytest.param(way, marks=pytest.mark.slow) for way in (WAYS[0], WAYS[14]))], ids=str
)
def test_many_threads(way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """Texts are right when many threads submit at once and wait, read or cancel, with more requests than rows."""
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
    """Engines that share a model may run at the same time, because their steps exclude one another."""
    chosen = [WAYS[0], WAYS[4], WAYS[14]]
    first = build(chosen[0])
    engines = [first, *(build(way, first.target) for way in chosen[1:])]
    handles = [[engine.submit(request) for request in asked()] for engine in engines]
    for way, own in zip(chosen, handles, strict=True):
        same([handle.result() for handle in own], meant(way))


def test_a_hook_may_generate(build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """A hook may generate with the engine that calls it, although it runs in the engine's own thread."""
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

atexit.register(lambda: print(time.monotonic() - began < 30))  # runs after everything that was registered later
atexit.unregister(scheduler.end_threads)
atexit.register(scheduler.end_threads)
began = time.monotonic()
"""


@pytest.mark.slow
@pytest.mark.parametrize("script", [pytest.param(EXITS, id="ended"), pytest.param(EXITS + RUNNING, id="running")])
def test_a_process_may_end_at_any_time(script: str) -> None:
    """A process exits cleanly and without delay, right after a text has ended and while one is running."""
    path = os.pathsep.join([str(Path(spectr.__file__).parents[1]), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", script + TIMED], env={**os.environ, "PYTHONPATH": path}, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"True\n", b"")
