"""What the ranks other than 0 do: run the calls that rank 0 announces, on their own shards, until it says stop."""

import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from spectr.errors import RankError, SpectrError
from spectr.models.early import truncated
from spectr.models.parallel.message import Message
from spectr.models.parallel.target import ShardedTarget, free_bytes
from spectr.models.session import Session

__all__ = ["Follower", "follow"]


class Follower:
    """The targets and sessions of one rank, by the names that rank 0 gave them."""

    def __init__(self, target: ShardedTarget) -> None:
        self.group, self.device = target.group, target.device
        self.targets = {0: target}
        self.sessions: dict[int, Session] = {}
        self.windows: dict[tuple[int, int, int], Session] = {}  # by number, first and last row
        self.views: dict[int, tuple[int, Session]] = {}  # the last view of each session
        self._calls: dict[str, Callable[..., Any]] = {
            "beat": lambda: self.group.least(0),
            "gather": target.gather_ends,
            "digest": target.digest,
            "free": self._free,
            "open": self._open,
            "truncate": self._truncate,
        }

    def run(self, message: Message) -> None:
        """Run one call. What is refused here is refused on rank 0 as well, and changes nothing."""
        if message.name in self._calls:
            self._calls[message.name](**message.numbers)
            return
        numbers = dict(message.numbers)
        target, session = self.targets[numbers.pop("model")], self._session(*numbers.pop("session"))
        tensors = [None if tensor is None else tensor.to(self.device) for tensor in message.tensors]
        if message.name == "score":
            tokens, ancestors, depth, only = tensors
            target.score(session, _given(tokens), _given(ancestors), _given(depth), only=only)
        else:
            getattr(target, message.name)(session, *tensors, **numbers)

    def _free(self, dropped: list[int]) -> None:
        """Forget sessions that rank 0 holds no more, and say how much memory there is."""
        for number in dropped:
            self.sessions.pop(number, None)
            self.views.pop(number, None)
            self.windows = {key: window for key, window in self.windows.items() if key[0] != number}
        if dropped and self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.group.least(free_bytes(self.group))

    def _open(self, model: int, session: int, rows: int, slots: int) -> None:
        self.sessions[session] = self.targets[model].open(rows, slots)

    def _truncate(self, model: int, layers: int) -> None:
        self.targets[model] = ShardedTarget(truncated(self.targets[0].model, layers), self.group)

    def _session(self, number: int, window: list[int] | None, view: int, is_new: bool) -> Session:
        """The session, window or view that is meant; made now if it is new."""
        found, target = self.sessions[number], self.targets[0]
        if view and not is_new:
            last, held = self.views[number]
            if last != view:
                raise RankError(f"view {view} of session {number} is gone, and {last} is there")
            return held
        if window is not None:
            start, stop, longest = window
            key = (number, start, stop)
            if is_new:
                self.windows[key] = target.window(found, start, stop, longest)
            found = self.windows[key]
        if view:
            found = target.share(found)
            self.views[number] = (view, found)
        return found


def _given(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def follow(target: ShardedTarget) -> None:
    """Follow rank 0 to its end, then end this process: with 0 if rank 0 said so, with 1 if a rank was lost.

    Signals that end a whole job reach all of its processes at once. They are left to rank 0, which may have requests to
    finish and needs the others for it."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    group, follower = target.group, Follower(target)
    try:
        with torch.no_grad():
            while (message := group.receive()).name != "stop":
                try:
                    with group.speaking():
                        follower.run(message)
                except RankError:
                    raise
                except SpectrError:
                    continue
    except RankError:
        sys.exit(1)
    sys.exit(0)
