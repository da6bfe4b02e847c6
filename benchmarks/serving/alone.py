"""Runs requests on the engine alone: one thread submits them, and the engine's thread runs them."""

import queue
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from benchmarks.record import Found
from spectr.engine import Handle
from spectr.lm import LM
from spectr.lm.output import TextReader
from spectr.text.stream import TextStream

__all__ = ["run_alone"]

_PATIENCE = 1.0  # seconds between checks for failed requests, of which no reader hears


@dataclass(slots=True)
class _TimedReader(TextReader):
    """Decodes a text as the server does, and records when its tokens arrive."""

    number: int
    ended: "queue.SimpleQueue[int]"
    found: Found  # the measurements of the request

    def feed(self, tokens: list[int]) -> tuple[str, int | None]:
        """Decode tokens, and record the time."""
        now = time.perf_counter()
        self.found.setdefault("first", now)
        self.found["last"] = now
        self.found["tokens"] = self.found.get("tokens", 0) + len(tokens)
        self.found["events"] = self.found.get("events", 0) + 1
        return super(_TimedReader, self).feed(tokens)

    def finish(self) -> str:
        """Decode the rest, and report that the text has ended."""
        self.ended.put(self.number)
        return super(_TimedReader, self).finish()


def _raise_errors(handles: Iterable[Handle]) -> None:
    """Raise the error of a request that has failed."""
    for handle in handles:
        with suppress(TimeoutError):  # still running
            handle.result(timeout=0)


def run_alone(lm: LM, count: int, bodies: list[Found], scope: str) -> list[Found]:
    """Run requests in the given order with `count` in flight, and return the measurements of each. Only requests of the
    same `scope` share prefixes."""
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    found: list[Found] = [{} for _ in bodies]
    handles, waiting = dict[int, Handle](), iter(enumerate(bodies))

    def submit() -> None:
        number, body = next(waiting, (None, None))
        if number is None or body is None:
            return
        request = lm.request(body["prompt"], body["max_tokens"], body["seed"], temperature=body["temperature"])
        reader = _TimedReader(TextStream(lm.tokenizer), number, ended, found[number])
        found[number]["sent"] = time.perf_counter()
        handles[number] = lm.engine.submit(replace(request, reader=reader, cache_scope=scope))

    for _ in range(count):
        submit()
    while handles:
        try:
            del handles[ended.get(timeout=_PATIENCE)]
        except queue.Empty:
            _raise_errors(handles.values())
        else:
            submit()
    return found
