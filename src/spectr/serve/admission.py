"""The queue of requests: a bounded number of texts run at once, others wait, and every key gets its share.

A request for several texts takes several places. Of the keys that wait, the one with the fewest texts running is next;
of equals, the one that was admitted longest ago, with its oldest request. It stays next until it fits, so that others
cannot overtake a large request for ever.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from spectr.serve.errors import ApiError
from spectr.serve.settings import Limits

__all__ = ["Admission"]

_BURST = 10.0  # seconds' worth of requests that may come at once


@dataclass(slots=True)
class _Bucket:
    """A token bucket: the requests that a key may make now."""

    left: float
    at: float


@dataclass(slots=True)
class _Tenant:
    """The texts of one key that run and wait."""

    running: int = 0
    served: int = 0  # the turn in which it was last admitted
    waiting: deque[tuple["asyncio.Future[None]", int]] = field(default_factory=deque)

    @property
    def count(self) -> int:
        """How many texts wait."""
        return sum(texts for _, texts in self.waiting)


class Admission:
    """Places for texts. All calls are from the event loop. Where there are several keys, one cannot take all places."""

    def __init__(self, limits: Limits, keys: int = 1) -> None:
        self.limits = limits
        reserve = max(1, limits.running // 8) if keys > 1 else 0
        self.share = max(1, limits.running - reserve)  # places that one key can have
        self.most_texts = limits.texts if keys <= 1 else min(limits.texts, self.share)  # of one request
        self.running = 0
        self.waiting = 0
        self._turn = 0
        self._tenants: defaultdict[str, _Tenant] = defaultdict(_Tenant)
        self._buckets: dict[str, _Bucket] = {}

    @asynccontextmanager
    async def place(self, tenant: str, texts: int) -> AsyncIterator[None]:
        """Wait for places for the texts of one request, and hold them while the block runs."""
        texts = min(texts, self.share)
        await self._enter(tenant, texts)
        try:
            yield
        finally:
            self._tenants[tenant].running -= texts
            self.running -= texts
            self._admit()

    def count(self, tenant: str) -> None:
        """Count a request, and refuse it if its key exceeds the rate."""
        if self.limits.rate is None:
            return
        rate, now = self.limits.rate / 60, time.monotonic()
        most = max(1.0, _BURST * rate)
        bucket = self._buckets.setdefault(tenant, _Bucket(most, now))
        bucket.left, bucket.at = min(most, bucket.left + (now - bucket.at) * rate), now
        if bucket.left < 1:
            wait = (1 - bucket.left) / rate
            raise ApiError(
                429, f"a key may make {self.limits.rate:g} requests a minute, {int(most)} of them at once; retry in "
                f"{wait:.1f} seconds",
                code="rate_limit_exceeded", wait=wait,
            )  # fmt: skip
        bucket.left -= 1

    async def _enter(self, tenant: str, texts: int) -> None:
        if self._is_full(texts) and not self._make_room(tenant, texts):
            raise ApiError(
                429, f"{self.running} texts run and {self.waiting} wait, which is as many as this server takes; "
                "retry later", code="queue_full", wait=1 + self.waiting / max(1, self.limits.running),
            )  # fmt: skip
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (granted, texts)
        self._tenants[tenant].waiting.append(entry)
        self.waiting += texts
        self._admit()
        try:
            await granted
        except asyncio.CancelledError:
            if granted.cancelled():
                if entry in self._tenants[tenant].waiting:
                    self._tenants[tenant].waiting.remove(entry)
                    self.waiting -= texts
            elif granted.exception() is None:  # it was admitted, and cancelled at once
                self._tenants[tenant].running -= texts
                self.running -= texts
            self._admit()
            raise

    def _may(self, tenant: _Tenant) -> bool:
        """Whether a key would stay within its share with the next of its requests."""
        granted, texts = tenant.waiting[0]
        return granted.done() or tenant.running + texts <= self.share

    def _is_full(self, texts: int) -> bool:
        return self.waiting + texts > self.limits.queue and self.running + texts > self.limits.running

    def _make_room(self, tenant: str, texts: int) -> bool:
        """Refuse the latest requests of the key that has most texts waiting, in favour of a key that has fewer."""
        own = self._tenants[tenant].count + texts if tenant in self._tenants else texts
        more = sum(max(0, one.count - own) for one in self._tenants.values())  # that others have waiting beyond that
        if texts > self.limits.queue or more < self.waiting + texts - self.limits.queue:
            return False
        while self._is_full(texts):
            greedy = max(self._tenants.values(), key=lambda one: one.count)
            granted, count = greedy.waiting.pop()
            self.waiting -= count
            if not granted.done():
                granted.set_exception(
                    ApiError(429, "the queue is full, and this key has most of it; retry later", code="queue_full",
                             wait=1 + self.waiting / max(1, self.limits.running))
                )  # fmt: skip
        return True

    def _admit(self) -> None:
        """Admit requests in order, as long as there are places."""
        while waiting := [one for one in self._tenants.values() if one.waiting and self._may(one)]:
            tenant = min(waiting, key=lambda one: (one.running, one.served))
            granted, texts = tenant.waiting[0]
            if not granted.done() and self.running + texts > self.limits.running:
                return
            tenant.waiting.popleft()
            self.waiting -= texts
            if granted.done():  # its client has disconnected
                continue
            self._turn += 1
            tenant.served = self._turn
            tenant.running += texts
            self.running += texts
            granted.set_result(None)
        for name in [name for name, tenant in self._tenants.items() if not (tenant.running or tenant.waiting)]:
            del self._tenants[name]
