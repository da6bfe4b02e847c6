"""The scheduler of an engine: one thread lets its lanes take turns as long as there are requests.

Callers get a handle and never use the device. Steps of all engines in a process exclude one another, because a step
puts hooks on a model's modules and state into its cache, and two engines may share a model.
"""

import atexit
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch

from spectr.draft.prediction import PredictionDrafter
from spectr.engine.handle import Delivery, Handle
from spectr.engine.lane import Lane
from spectr.engine.parts import EngineParts
from spectr.engine.request import Request
from spectr.engine.state import RequestState
from spectr.models.traits import ModelTraits

__all__ = ["LOCK", "Load", "Scheduler", "end_threads"]

LOCK = threading.RLock()
"""Held while steps run."""

_IDLE_SECONDS = 5.0  # that a thread waits for another request before it ends
_EXIT_SECONDS = 30.0  # that the exit of the process waits for the step under way
_thread_local = threading.local()
_running: dict[threading.Thread, threading.Condition] = {}
_closing = threading.Event()


@atexit.register
def end_threads() -> None:
    """End all threads before the interpreter exits: it would stop them inside a call of torch, which aborts."""
    _closing.set()
    for thread, news in list(_running.items()):
        with news:
            news.notify_all()
        thread.join(_EXIT_SECONDS)


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine has to do, and how much of its room is used."""

    running: int  # requests that decode
    prefilling: int  # requests whose prompts are being prefilled
    waiting: int  # requests without a row
    tokens: int  # tokens of the texts in rows
    slots: int  # tokens that the rows have room for
    preemptions: int  # how often requests began again because memory was short


class LaneKey(NamedTuple):
    """What the steps of a lane need. Requests with the same key share a lane."""

    runs_on_host: bool  # users' functions or a grammar
    optimality_gap: bool
    drafts_predictions: bool  # a branch from a prediction, or from text that a grammar forces
    traces: bool


class Scheduler:
    """The lanes of an engine, and the thread that runs them."""

    def __init__(self, parts: EngineParts) -> None:
        self.parts = parts
        self.lanes: dict[LaneKey, Lane] = {}
        self._news = threading.Condition()
        self._waiting: deque[RequestState] = deque()
        self.thread: threading.Thread | None = None
        self.threads = torch.get_num_threads()

    def queue(self, requests: Sequence[Request]) -> list[Handle]:
        """Queue requests for the next turn, which the caller takes."""
        deliveries = [Delivery(request) for request in requests]
        states = [RequestState(delivery, delivery.request.tokens) for delivery in deliveries]
        with self._news:
            self._waiting += states
        return [Handle(delivery, self._wake) for delivery in deliveries]

    def submit(self, requests: Sequence[Request]) -> list[Handle]:
        """Queue requests, which begin in order as soon as there is room."""
        if getattr(_thread_local, "is_running", False):  # a user's function generates: it cannot wait here
            inner = Scheduler(self.parts)
            handles = inner.queue(requests)
            while inner.turn():
                pass
            return handles
        with self._news:
            handles = self.queue(requests)
            self.threads = 1 if ModelTraits(self.parts.target).runs_own_threads else torch.get_num_threads()
            if self.thread is None or not self.thread.is_alive():
                self.thread = threading.Thread(
                    target=_run_until_idle, args=(weakref.ref(self), self._news), daemon=True
                )
                _running[self.thread] = self._news
                self.thread.start()
            self._news.notify_all()
        return handles

    def turn(self) -> bool:
        """Let every lane take a turn, and return whether there is more to do."""
        self._place()
        for key, lane in list(self.lanes.items()):
            if lane.is_idle:
                continue
            try:
                lane.turn()
            except BaseException as error:  # of any kind: it is raised again where the results are awaited
                del self.lanes[key]
                lane.fail(error)
        return self.is_busy

    @property
    def preemptions(self) -> int:
        """How often requests of the current lanes began again because memory was short."""
        return sum(lane.preemptions for lane in self.lanes.values())

    @property
    def load(self) -> "Load":
        """How much there is to do. May be read from any thread; the counts may be of slightly different moments."""
        lanes = list(self.lanes.values())
        return Load(
            sum(len(lane.active) for lane in lanes),
            sum(len(lane.prefilling) for lane in lanes),
            len(self._waiting) + sum(len(lane.queue) for lane in lanes),
            sum(lane.tokens for lane in lanes),
            sum(lane.room for lane in lanes),
            self.preemptions,
        )

    @property
    def is_busy(self) -> bool:
        """Whether a request has not ended."""
        return bool(self._waiting) or any(not lane.is_idle for lane in self.lanes.values())

    def close(self) -> None:
        """Free the memory of idle lanes."""
        with LOCK:
            self.lanes = {key: lane for key, lane in self.lanes.items() if not lane.is_idle}

    def _place(self) -> None:
        """Put waiting requests into the queues of their lanes."""
        with self._news:
            waiting, self._waiting = self._waiting, deque()
        for state in waiting:
            key = self._lane_key(state.request)
            if key not in self.lanes:
                self.lanes[key] = self._new_lane(key)
            self.lanes[key].queue.append(state)

    def _lane_key(self, request: Request) -> LaneKey:
        drafts_predictions = bool(request.prediction) or (request.grammar is not None and self.parts.drafts_forced_text)
        return LaneKey(request.runs_on_host, request.optimality_gap, drafts_predictions, request.trace)

    def _new_lane(self, key: LaneKey) -> Lane:
        parts = self.parts
        if key.drafts_predictions:
            drafter = PredictionDrafter(parts.drafter, races=not parts.rule.card.text_depends_on_drafts)
            parts = replace(parts, drafter=drafter)
        return Lane(parts, on_host=key.runs_on_host, optimality_gap=key.optimality_gap, traces=key.traces)

    def _wake(self) -> None:
        with self._news:
            self._news.notify_all()

    def run(self) -> bool:
        """Take one turn in the scheduler's thread."""
        if torch.get_num_threads() != self.threads:
            torch.set_num_threads(self.threads)
        _thread_local.is_running = True
        try:
            with LOCK, torch.no_grad():
                return self.turn()
        finally:
            _thread_local.is_running = False


def _run_until_idle(reference: "weakref.ref[Scheduler]", news: threading.Condition) -> None:
    """Take turns until there has been nothing to do for a while, or the scheduler was collected."""
    try:
        while not _closing.is_set() and _take_turns(reference, news):
            pass
    finally:
        _running.pop(threading.current_thread(), None)


def _take_turns(reference: "weakref.ref[Scheduler]", news: threading.Condition) -> bool:
    """Do what there is to do, then wait for more; False if nothing came."""
    scheduler = reference()
    while scheduler is not None and not _closing.is_set() and scheduler.run():
        pass
    with news:
        if scheduler is None or scheduler.is_busy:
            return scheduler is not None
        del scheduler  # a waiting thread must not keep the scheduler alive
        if _closing.is_set() or news.wait(_IDLE_SECONDS):
            return True
        scheduler = reference()
        if scheduler is not None and not scheduler.is_busy:
            scheduler.thread = None
        return scheduler is not None and scheduler.is_busy
