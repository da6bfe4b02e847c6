"""Garbage collection is as it was after work without it."""

import gc
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from spectr.garbage import without_collection


@pytest.mark.parametrize("is_enabled", [True, False])
def test_collection_is_as_it_was(is_enabled: bool) -> None:
    before = gc.isenabled()
    (gc.enable if is_enabled else gc.disable)()
    try:
        with pytest.raises(ValueError, match="during work"), without_collection():
            raise ValueError("during work" if not gc.isenabled() else "")
        assert gc.isenabled() == is_enabled
    finally:
        (gc.enable if before else gc.disable)()


def test_collection_begins_again_when_the_last_thread_has_left() -> None:
    """A thread that leaves first does not enable the collection of one that is still inside."""
    assert gc.isenabled()
    entered, may_leave = Event(), Event()

    def work() -> None:
        with without_collection():
            entered.set()
            may_leave.wait(60)

    with ThreadPoolExecutor(1) as thread:
        with without_collection():
            ended = thread.submit(work)
            assert entered.wait(60)
        assert not gc.isenabled()
        may_leave.set()
        ended.result(60)
    assert gc.isenabled()
