"""The loop of the ranks other than 0: run the calls that rank 0 announces on this rank's shards, until it says stop."""

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
    """Holds the targets and sessions of one rank under the numbers that rank 0 gave them, and runs calls on them."""

    def __init__(self, target: ShardedTarget) -> None:
        self.group, self.device = target.group, target.device
        self.targets = {0: target}
        self.sessions: dict[int, Session] = {}
        self.windows: dict[tuple[int, int, int], Session] = {}  # by session number, first and last row
        self.views: dict[int, tuple[int, Session]] = {}  # the latest view of each session
        self._calls: dict[str, Callable[..., Any]] = {
            "heartbeat": lambda: self.group.minimum(0),
            "gather": target.gather_embeddings,
            "digest": target.digest,
            "free": self._free,
            "open": self._open,
            "truncate": self._truncate,
        }

    def run(self, message: Message) -> None:
        """Run one call. A call that is refused here is refused on rank 0 as well and changes nothing on either."""
        if message.name in self._calls:
            self._calls[message.name](**message.arguments)
            return
        arguments = dict(message.arguments)
        target, session = self.targets[arguments.pop("model")], self._session(*arguments.pop("session"))
        tensors = [None if tensor is None else tensor.to(self.device) for tensor in message.tensors]
        if message.name == "score":
            tokens, ancestors, depth, only = tensors
            target.score(session, _required(tokens), _required(ancestors), _required(depth), only=only)
        else:
            getattr(target, message.name)(session, *tensors, **arguments)

    def _free(self, dropped: list[int]) -> None:
        """Drop the sessions that rank 0 no longer holds, and report this rank's free memory."""
        for number in dropped:
            self.sessions.pop(number, None)
            self.views.pop(number, None)
            self.windows = {key: window for key, window in self.windows.items() if key[0] != number}
        if dropped and self.device.type == "cuda":
            torch.cuda.empty_cache()
        self.group.minimum(free_bytes(self.group))

    def _open(self, model: int, session: int, rows: int, slots: int) -> None:
        self.sessions[session] = self.targets[model].open(rows, slots)

    def _truncate(self, model: int, layers: int) -> None:
        self.targets[model] = ShardedTarget(truncated(self.targets[0].model, layers), self.group)

    def _session(self, number: int, window: list[int] | None, view: int, is_new: bool) -> Session:
        """Return the session, window or view that a `SessionName` refers to. Create a window or view that is new."""
        session, target = self.sessions[number], self.targets[0]
        if view and not is_new:
            latest, held = self.views[number]
            if latest != view:
                raise RankError(f"view {view} of session {number} has been replaced by view {latest}")
            return held
        if window is not None:
            start, stop, longest = window
            key = (number, start, stop)
            if is_new:
                self.windows[key] = target.window(session, start, stop, longest)
            session = self.windows[key]
        if view:
            session = target.share(session)
            self.views[number] = (view, session)
        return session


def _required(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


def follow(target: ShardedTarget) -> None:
    """Follow rank 0 until it stops, then exit: with code 0 if rank 0 sent a stop message, with code 1 if a rank was
    lost.

    A signal that ends a job reaches all of its processes at once. This process ignores SIGINT and SIGTERM, because rank
    0 may have requests to finish and needs all ranks to do so."""
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    group, follower = target.group, Follower(target)
    try:
        with torch.no_grad():
            while (message := group.receive()).name != "stop":
                try:
                    with group.fail_on_error():
                        follower.run(message)
                except RankError:
                    raise
                except SpectrError:
                    continue
    except RankError:
        sys.exit(1)
    group.leave()
    sys.exit(0)
