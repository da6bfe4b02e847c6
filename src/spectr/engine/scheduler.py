"""Requests in, steps out: one thread for each engine takes turns among its lanes as long as there is something to do.

Whoever submits gets a handle and never touches the device. Steps of all engines exclude one another: they put hooks on
a model's modules and state on its cache, and two engines may share a model.
"""

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from spectr.draft.reference import Referring
from spectr.engine.handle import Delivery, Handle
from spectr.engine.lane import EngineParts, Lane, Seat
from spectr.engine.request import Request

__all__ = ["LOCK", "Load", "Scheduler", "end_threads"]

LOCK = threading.RLock()
"""Held while steps run."""

_IDLE = 5.0  # seconds that a thread waits for another request before it ends
_PATIENCE = 30.0  # seconds that the end of the process waits for the step under way
_here = threading.local()
_running: dict[threading.Thread, threading.Condition] = {}
_closing = threading.Event()


@atexit.register
def end_threads() -> None:
    """End all threads before the interpreter does: it would end them amid a call of torch, which aborts."""
    _closing.set()
    for thread, news in list(_running.items()):
        with news:
            news.notify_all()
        thread.join(_PATIENCE)


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine has to do, and how much of its room is used."""

    running: int  # requests that take part in steps
    reading: int  # whose prompts are being read
    waiting: int  # for a row
    tokens: int  # of the texts in rows
    slots: int  # that rows have room for
    starts_over: int  # how often requests began again for want of memory


class Scheduler:
    """The lanes of an engine, and the thread that runs them."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
        self.lanes: dict[tuple[bool, bool, bool, bool], Lane] = {}
        self._news = threading.Condition()
        self._waiting: deque[Seat] = deque()
        self.thread: threading.Thread | None = None
        self.threads = torch.get_num_threads()

    def submit(self, requests: Sequence[Request]) -> list[Handle]:
        """Begin with requests as soon as there is room, the first first."""
        deliveries = [Delivery(request) for request in requests]
        seats = [Seat(delivery, delivery.request.tokens) for delivery in deliveries]
        handles = [Handle(delivery, self._wake) for delivery in deliveries]
        if getattr(
            _here, "is_running", False
        ):  # a user's function generates in turn: its thread cannot wait for itself
            inner = Scheduler(self.parts)
            inner._waiting += seats
            while inner.turn():
                pass
            return handles
        with self._news:
            self._waiting += seats
            self.threads = 1 if getattr(self.parts.target, "runs_own_threads", False) else torch.get_num_threads()
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(target=_serve, args=(weakref.ref(self), self._news), daemon=True)
                _running[self.thread] = self._news
                self.thread.start()
            self._news.notify_all()
        return handles

    def turn(self) -> bool:
        """Every lane takes its turn; whether there is more to do."""
        self._place()
        for key, lane in list(self.lanes.items()):
            if lane.is_idle:
                continue
            try:
                lane.turn()
            except BaseException as error:  # of whatever kind: whoever waits must hear of it
                del self.lanes[key]
                lane.fail(error)
        return self.is_busy

    @property
    def starts_over(self) -> int:
        """How often requests had to begin again for want of memory, in the lanes that there are."""
        return sum(lane.starts_over for lane in self.lanes.values())

    @property
    def load(self) -> "Load":
        """How much there is to do. From any thread: counts of one moment, which may not fit together exactly."""
        lanes = list(self.lanes.values())
        return Load(
            sum(len(lane.active) for lane in lanes),
            sum(len(lane.reading) for lane in lanes),
            len(self._waiting) + sum(len(lane.queue) for lane in lanes),
            sum(lane.tokens for lane in lanes),
            sum(lane.room for lane in lanes),
            self.starts_over,
        )

    @property
    def is_busy(self) -> bool:
        """Whether some request has not ended."""
        return bool(self._waiting) or any(not lane.is_idle for lane in self.lanes.values())

    def close(self) -> None:
        """Give back what idle lanes hold."""
        with LOCK:
            self.lanes = {key: lane for key, lane in self.lanes.items() if not lane.is_idle}

    def _place(self) -> None:
        """Put those that wait into their lanes."""
        with self._news:
            waiting, self._waiting = self._waiting, deque()
        for seat in waiting:
            asked = seat.request
            refers = asked.refers or (asked.grammar is not None and self.parts.drafts_forced_text)
            key = (asked.has_hooks, asked.optimality_gap, refers, asked.trace)
            if key not in self.lanes:
                parts = _with_references(self.parts) if refers else self.parts
                self.lanes[key] = Lane(parts, on_host=key[0], optimality_gap=key[1], traces=asked.trace)
            self.lanes[key].queue.append(seat)

    def _wake(self) -> None:
        with self._news:
            self._news.notify_all()

    def run(self) -> bool:
        """One turn, as the thread takes it."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        _here.is_running = True
        try:
            with LOCK, torch.no_grad():
                return self.turn()
        finally:
            _here.is_running = False


def _with_references(parts: EngineParts) -> EngineParts:
    """The same, with a drafter that also drafts from a reference of each row."""
    return replace(parts, drafter=Referring(parts.drafter, races=parts.rule.card.name == "race"))


def _serve(found: "weakref.ref[Scheduler]", news: threading.Condition) -> None:
    """Take turns until there has been nothing to do for a while, or nobody holds the engine any more."""
    try:
        while not _closing.is_set() and _take_turns(found, news):
            pass
    finally:
        _running.pop(threading.current_thread(), None)


def _take_turns(found: "weakref.ref[Scheduler]", news: threading.Condition) -> bool:
    """Whatever there is to do, then wait for more; False if nothing came."""
    scheduler = found()
    while scheduler is not None and not _closing.is_set() and scheduler.run():
        pass
    with news:
        if scheduler is None or scheduler.is_busy:
            return scheduler is not None
        del scheduler  # nobody but its owner holds it while it waits
        if _closing.is_set() or news.wait(_IDLE):
            return True
        scheduler = found()
        if scheduler is not None and not scheduler.is_busy:
            scheduler.thread = None
        return scheduler is not None and scheduler.is_busy
