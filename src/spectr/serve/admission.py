"""Who comes next: at most so many texts run at once, the others wait, and every key gets its share.

A request that asks for several texts takes several places. Of the keys that wait, the one with the fewest texts running
is next, of equals the one that was let in longest ago, with its oldest request. It stays next until it fits, so that a
large request is not overtaken for ever.
"""

import asyncio
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from spectr.serve.problems import ApiError
from spectr.serve.settings import Limits

__all__ = ["Admission"]

_BURST = 10.0  # seconds' worth of requests that may come at once


@dataclass(slots=True)
class _Bucket:
    """Requests that a key may make now."""

    left: float
    at: float


@dataclass(slots=True)
class _Tenant:
    """What one key has running and waiting."""

    running: int = 0
    served: int = 0  # the turn in which it was last let in
    waiting: deque[tuple["asyncio.Future[None]", int]] = field(default_factory=deque)


class Admission:
    """Places for texts. All calls are from the event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.running = 0
        self.waiting = 0
        self._turn = 0
        self._tenants: defaultdict[str, _Tenant] = defaultdict(_Tenant)
        self._buckets: dict[str, _Bucket] = {}

    @asynccontextmanager
    async def place(self, tenant: str, texts: int) -> AsyncIterator[None]:
        """Places for the texts of one request, as long as the block runs; waits for them if need be."""
        self._count(tenant)
        texts = min(texts, self.limits.running)
        await self._enter(tenant, texts)
        try:
            yield
        finally:
            self._tenants[tenant].running -= texts
            self.running -= texts
            self._admit()

    def _count(self, tenant: str) -> None:
        """Refuse a key that asks too often."""
        if self.limits.rate is None:
            return
        rate, now = self.limits.rate / 60, time.monotonic()
        most = max(1.0, _BURST * rate)
        bucket = self._buckets.setdefault(tenant, _Bucket(most, now))
        bucket.left, bucket.at = min(most, bucket.left + (now - bucket.at) * rate), now
        if bucket.left < 1:
            wait = (1 - bucket.left) / rate
            raise ApiError(
                429, f"a key may make {self.limits.rate:g} requests a minute; come again in {wait:.1f} seconds",
                code="rate_limit_exceeded", wait=wait,
            )  # fmt: skip
        bucket.left -= 1

    async def _enter(self, tenant: str, texts: int) -> None:
        if self.waiting + texts > self.limits.queue and self.running + texts > self.limits.running:
            raise ApiError(
                429, f"{self.running} texts run and {self.waiting} wait, which is as many as this server takes; come "
                "again later", code="queue_full", wait=1 + self.waiting / max(1, self.limits.running),
            )  # fmt: skip
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        entry = (granted, texts)
        self._tenants[tenant].waiting.append(entry)
        self.waiting += texts
        self._admit()
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():  # it was let in, and cancelled at once
                self._tenants[tenant].running -= texts
                self.running -= texts
            elif entry in self._tenants[tenant].waiting:
                self._tenants[tenant].waiting.remove(entry)
                self.waiting -= texts
            self._admit()
            raise

    def _admit(self) -> None:
        """Let in those that come next, as long as there are places."""
        while waiting := [tenant for tenant in self._tenants.values() if tenant.waiting]:
            tenant = min(waiting, key=lambda one: (one.running, one.served))
            granted, texts = tenant.waiting[0]
            if not granted.done() and self.running + texts > self.limits.running:
                return
            tenant.waiting.popleft()
            self.waiting -= texts
            if granted.done():  # whoever waited has gone
                continue
            self._turn += 1
            tenant.served = self._turn
            tenant.running += texts
            self.running += texts
            granted.set_result(None)
        for name in [name for name, tenant in self._tenants.items() if not tenant.running]:
            del self._tenants[name]
