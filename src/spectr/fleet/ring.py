"""Chooses the replica for a request. Requests with a common prefix go to the same replica, which has the prefix in its
cache, unless that replica has more than its share of the load.

Each replica is placed on a ring at many points, the hashes of its name and a number. A request goes to the replica at
the first point after the hash of its prefix. Adding or removing a replica therefore moves only the requests of that
replica. A replica that has reached the load bound is skipped for the next one on the ring (consistent hashing with
bounded loads, Mirrokni, Thorup and Zadimoghaddam 2018), so that a popular prefix spreads over as many replicas as it
needs.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b
from typing import Any

__all__ = ["Ring", "choose", "prefix_key"]

_POINTS = 64  # per replica on the ring
_SLACK = 1.25  # load bound, as a multiple of the mean load
_CHARACTERS = 256  # length of a prefix: about 64 tokens, one block, the smallest unit that the prefix cache shares
_TOKENS = 64  # length of a prefix that is given as tokens


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


class Ring:
    """A ring of replicas, which gives for every key the order in which to try them.

    >>> order = list(Ring(["a", "b", "c"]).order("a common beginning"))
    >>> sorted(order), [name for name in order if name != "b"] == list(Ring(["a", "c"]).order("a common beginning"))
    (['a', 'b', 'c'], True)
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        points = sorted((_hash(f"{name}#{number}"), name) for name in self.names for number in range(_POINTS))
        self._hashes = [point for point, _ in points]
        self._owners = [name for _, name in points]

    def order(self, key: str) -> Iterator[str]:
        """Yield all replicas, beginning with the one that the key maps to."""
        start, seen = bisect_right(self._hashes, _hash(key)), set[str]()
        for step in range(len(self._owners)):
            name = self._owners[(start + step) % len(self._owners)]
            if name not in seen:
                seen.add(name)
                yield name
            if len(seen) == len(self.names):
                return


def choose(ring: Ring, key: str, loads: Mapping[str, int], slack: float = _SLACK) -> str | None:
    """Return the replica for a request, one of those in `loads`, or None if `loads` is empty. No load exceeds the mean
    load times `slack`, rounded up.

    >>> ring = Ring(["a", "b", "c"])
    >>> first, second, _ = ring.order("x")
    >>> idle = dict.fromkeys("abc", 0)
    >>> choose(ring, "x", idle) == first, choose(ring, "x", idle | {first: 2}) == second
    (True, True)
    """
    if not loads:
        return None
    bound = math.ceil(slack * (sum(loads.values()) + 1) / len(loads))
    return next((name for name in ring.order(key) if name in loads and loads[name] < bound), None)


def prefix_key(body: Mapping[str, Any]) -> str:
    """Return the key by which a request is routed, the same for requests with the same prefix: the first characters of
    its prompt, or of its conversation up to the first user message, so that later turns go to the same replica.

    >>> prefix_key({"prompt": "a" * 1000}) == "a" * 256, prefix_key({"prompt": [1, 2]})
    (True, '[1, 2]')
    """
    messages = body.get("messages")
    if isinstance(messages, list):
        return _opening(messages)[:_CHARACTERS]
    prompt: Any = body.get("prompt", "")
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompt = prompt[0]
    return (
        prompt[:_CHARACTERS] if isinstance(prompt, str) else str(prompt[:_TOKENS] if isinstance(prompt, list) else "")
    )


def _opening(messages: list[Any]) -> str:
    parts = []
    for message in messages:
        parts.append(json.dumps(message, sort_keys=True)[: 2 * _CHARACTERS])
        if isinstance(message, dict) and message.get("role") == "user":
            break
    return "".join(parts)
