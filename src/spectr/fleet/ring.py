"""Chooses the replica of a request: requests with a common prefix go to one replica, which has it in its cache, unless
that one has more than its share of the load.

The replicas stand on a ring by hashes of their names, each many times; a request goes to the first behind the hash of
its prefix. A replica that comes or goes moves its own share of the requests and no others. One that has reached the
bound passes requests on to the next (consistent hashing with bounded loads, Mirrokni, Thorup and Zadimoghaddam 2018),
so that a prefix that everybody uses spreads over as many replicas as it needs.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from hashlib import blake2b
from typing import Any

__all__ = ["Ring", "choose", "prefix_key"]

_POINTS = 64  # of each replica on the ring
_SLACK = 1.25  # times the mean load that a replica takes before it passes requests on
_CHARACTERS = 256  # of a prefix: about one block of 64 tokens, the least that the prefix cache shares
_TOKENS = 64


def _hash(text: str) -> int:
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


class Ring:
    """Replicas in the order in which a request asks them.

    >>> order = list(Ring(["a", "b", "c"]).order("a common beginning"))
    >>> sorted(order), [name for name in order if name != "b"] == list(Ring(["a", "c"]).order("a common beginning"))
    (['a', 'b', 'c'], True)
    """

    def __init__(self, names: Collection[str]) -> None:
        self.names = frozenset(names)
        points = sorted((_hash(f"{name}#{number}"), name) for name in self.names for number in range(_POINTS))
        self._places = [place for place, _ in points]
        self._owners = [name for _, name in points]

    def order(self, key: str) -> Iterator[str]:
        """All replicas, the one that the key belongs to first."""
        start, seen = bisect_right(self._places, _hash(key)), set[str]()
        for step in range(len(self._owners)):
            name = self._owners[(start + step) % len(self._owners)]
            if name not in seen:
                seen.add(name)
                yield name
            if len(seen) == len(self.names):
                return


def choose(ring: Ring, key: str, loads: Mapping[str, int], slack: float = _SLACK) -> str | None:
    """The replica that a request goes to, of those that have an entry in `loads`; None if there is none. No load goes
    beyond the mean times `slack`, rounded up.

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
    """The key that requests with the same prefix share: the first characters of a prompt, or of a conversation up to
    its first message of a user, so that later turns go where the first went.

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
