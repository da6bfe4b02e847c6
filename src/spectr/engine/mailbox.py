"""Wakes coroutines of an event loop from other threads, for handles that are awaited."""

import asyncio
import weakref
from collections import deque

__all__ = ["Mailbox"]


class Mailbox:
    """Resolves futures of one event loop from other threads. A step of many rows makes one call to the loop, not one
    per row."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._futures: deque[asyncio.Future[None]] = deque()
        self._is_called = False

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> "Mailbox":
        """Return the mailbox of a loop."""
        if loop not in _mailboxes:
            _mailboxes[loop] = cls(loop)
        return _mailboxes[loop]

    def post(self, future: "asyncio.Future[None]") -> None:
        """Resolve a future soon. May be called from any thread."""
        self._futures.append(future)
        loop = self._loop()
        if not self._is_called and loop is not None:
            self._is_called = True
            try:
                loop.call_soon_threadsafe(self._resolve)
            except BaseException as error:
                self._is_called = False  # a call that failed must not keep later posts from making one
                if not isinstance(error, RuntimeError):  # the loop was closed meanwhile, so no coroutine waits
                    raise

    def _resolve(self) -> None:
        self._is_called = False  # before the futures are taken: later posts make another call
        while self._futures:
            future = self._futures.popleft()
            if not future.done():
                future.set_result(None)


_mailboxes: "weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Mailbox]" = weakref.WeakKeyDictionary()
