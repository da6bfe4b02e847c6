"""What texts begin alike: which row of a lane knows most of a prompt already."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Beginnings", "common_start"]


def common_start(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens two texts have in common from the beginning.

    >>> common_start([1, 2, 3, 4], [1, 2, 9]), common_start([1, 2], [1, 2, 3])
    (2, 2)
    """
    low, high = 0, min(len(one), len(other))
    if one[:high] == other[:high]:
        return high
    while high - low > 1:  # equal up to low, and not up to high
        middle = (low + high) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle
    return low


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a row has read, and when its request ended."""

    text: list[int]
    scope: Any
    time: int


@dataclass(slots=True)
class Beginnings:
    """The texts of rows whose requests have ended."""

    least: int = 8  # tokens that are worth a copy
    kept: dict[int, _Kept] = field(default_factory=dict)
    _time: int = 0

    def __len__(self) -> int:
        """How many there are."""
        return len(self.kept)

    def keep(self, row: int, text: list[int], scope: Any) -> None:
        """A request has ended, and its row has read this much."""
        self._time += 1
        self.kept[row] = _Kept(text, scope, self._time)

    def clear(self) -> None:
        """Forget them all."""
        self.kept.clear()

    def saved(self, rows: Sequence[int], places: Iterable[int]) -> list[tuple[int, int, int]]:
        """Rows that are about to be overwritten, the places behind where their texts go, and how many tokens they have:
        free places first, then those of the texts that ended longest ago."""
        ranked = deque(sorted(places, key=lambda place: self.kept[place].time if place in self.kept else 0))
        found = []
        for row in sorted((row for row in rows if row in self.kept), key=lambda row: -self.kept[row].time):
            if not ranked or (ranked[0] in self.kept and self.kept[ranked[0]].time > self.kept[row].time):
                break
            place = ranked.popleft()
            self.kept[place] = self.kept.pop(row)
            found.append((row, place, len(self.kept[place].text)))
        return found

    def forget(self, row: int) -> None:
        """Another request has the row."""
        self.kept.pop(row, None)

    def longest(
        self,
        text: list[int],
        scope: Any,
        living: Mapping[int, tuple[list[int], Any]],
        here: int | None = None,
    ) -> tuple[int, int]:
        """The row, ended or `living`, whose text begins most like `text` and has the same `scope`, and how many of its
        tokens are the same: all but the last of the text at most. Of equals the row that is `here` already."""
        wanted, found = text[:-1], (here if here is not None else 0, 0)
        rows = {**{row: (kept.text, kept.scope) for row, kept in self.kept.items()}, **living}
        for row, (known, their_scope) in rows.items():
            if their_scope != scope:
                continue
            count = common_start(wanted, known)
            if count > found[1] or (count == found[1] and row == here):
                found = (row, count)
        return found if found[1] >= self.least else (found[0] if here is None else here, 0)
