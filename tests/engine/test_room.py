"""The memory of rows grows with their texts; when it runs out, some texts wait and continue later."""

import pytest
import torch
from tests.tiny import llama

import spectr
from spectr.draft import drafter
from spectr.engine import Engine, Request, lane
from spectr.engine.memory import LaneMemory
from spectr.errors import NoRoomError
from spectr.models import memory
from spectr.models.target import Target
from spectr.policy import Policy

POLICIES = [Policy(), Policy(repetition_penalty=1.2), Policy(0.7, frequency_penalty=0.1), Policy(0)]
REQUESTS = [Request([3 + row, 4, 5, 3, 4], row, 350 - 45 * row, policy) for row, policy in enumerate(POLICIES)]


@pytest.fixture(scope="module")
def target() -> Target:
    return Target(llama(3, max_position_embeddings=1024))


@pytest.fixture(autouse=True)
def _little_headroom(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane, "_HEADROOM", 50)


def engine(target: Target) -> Engine:
    return Engine(target, drafter("lookup", drafts=2, length=3), spectr.rule("race"))


@pytest.fixture(scope="module")
def alone(target: Target) -> list[list[int]]:
    return [engine(target).generate([request])[0].tokens for request in REQUESTS]


def test_room_grows_with_the_text(target: Target, alone: list[list[int]]) -> None:
    """Memory is allocated as the text grows, not for the limit of the request."""
    made = engine(target)
    handle = made.submit(Request([3, 4, 5, 3, 4], 0, 350))
    next(handle)
    assert made.load.slots < 350
    assert handle.result().tokens == alone[0]
    assert made.load.slots > 350


def test_texts_without_room_wait(target: Target, alone: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts for which there is no memory are restarted later and are the same as alone."""
    free = target.cache_bytes(4, 300)
    monkeypatch.setattr(memory, "available", lambda _: free)
    made = engine(target)
    handles = [made.submit(request) for request in REQUESTS]
    assert [handle.result().tokens for handle in handles] == alone
    assert made.scheduler.preemptions > 0
    assert all(handle.so_far.stats.emitted == len(text) for handle, text in zip(handles, alone, strict=True))


def test_a_text_that_never_fits_is_refused(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text that can never fit raises an error, and the engine serves shorter ones."""
    made, free = engine(target), target.cache_bytes(1, 200)
    monkeypatch.setattr(memory, "available", lambda _: free)
    with pytest.raises(NoRoomError, match="a cache of 1 rows"):
        made.generate([REQUESTS[0]])
    short = Request([3, 4, 5, 3, 4], 0, 40)
    assert made.generate([short])[0].tokens == engine(target).generate([short])[0].tokens


def test_an_error_while_room_is_made_ends_all_requests(target: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that have left the queue but have no row yet fail too, so that none waits for ever."""
    grow = LaneMemory.grow

    def fails_for_two_rows(memory: LaneMemory, rows: int, slots: int) -> None:
        if rows > 1:
            raise RuntimeError("the device is gone")
        grow(memory, rows, slots)

    monkeypatch.setattr(LaneMemory, "grow", fails_for_two_rows)
    made = engine(target)
    handles = made.scheduler.submit([Request([3, 4], 0, 8), Request([9, 8], 1, 8)])
    for handle in handles:
        with pytest.raises(RuntimeError, match="the device is gone"):
            handle.result(timeout=60)


def test_prefixes_are_shared_within_a_scope_only(target: Target) -> None:
    """Cached prefixes are reused only by requests with the same `cache_scope`."""
    made, prompt = engine(target), torch.arange(3, 11).repeat(8).tolist()
    first, other, same = (made.generate([Request(prompt, 1, 4, cache_scope=name)])[0] for name in ("a", "b", "a"))
    assert [first.reused, other.reused, same.reused] == [0, 0, len(prompt) - 1]
    assert first.tokens == other.tokens == same.tokens
    together = made.generate([Request([9, *prompt], 1, 4, cache_scope=name) for name in ("c", "c", "d")])
    assert [result.reused for result in together] == [0, len(prompt), 0]
