"""Shared prefixes: which row of a lane already has the beginning of a prompt in its cache."""

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["PrefixCache", "common_prefix"]


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens two texts have in common from the beginning.

    >>> common_prefix([1, 2, 3, 4], [1, 2, 9]), common_prefix([1, 2], [1, 2, 3])
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
class _Prefix:
    """The tokens that a row has cached, and when its request ended."""

    text: list[int]
    scope: Any
    time: int


@dataclass(slots=True)
class PrefixCache:
    """The texts of rows whose requests have ended."""

    min_tokens: int = 8  # shorter prefixes are not worth a copy
    kept: dict[int, _Prefix] = field(default_factory=dict)  # by row
    _time: int = 0

    def __len__(self) -> int:
        """The number of rows whose texts are kept."""
        return len(self.kept)

    def keep(self, row: int, text: list[int], scope: Any) -> None:
        """Keep the cached text of a row whose request has ended."""
        self._time += 1
        self.kept[row] = _Prefix(text, scope, self._time)

    def drop(self, row: int) -> None:
        """Forget the text of a row."""
        self.kept.pop(row, None)

    def clear(self) -> None:
        """Forget the texts of all rows."""
        self.kept.clear()

    def relocate(self, rows: Sequence[int], places: Iterable[int]) -> list[tuple[int, int, int]]:
        """Assign new places to the texts of rows that are about to be overwritten, and return (row, place, tokens)
        for each. Free places are used first, then those of the texts that ended longest ago. A text for which no place
        is left is not moved."""
        ranked = deque(sorted(places, key=lambda place: self.kept[place].time if place in self.kept else 0))
        moves = []
        for row in sorted((row for row in rows if row in self.kept), key=lambda row: -self.kept[row].time):
            if not ranked or (ranked[0] in self.kept and self.kept[ranked[0]].time > self.kept[row].time):
                break
            place = ranked.popleft()
            self.kept[place] = self.kept.pop(row)
            moves.append((row, place, len(self.kept[place].text)))
        return moves

    def longest_match(
        self,
        text: list[int],
        scope: Any,
        active: Mapping[int, tuple[list[int], Any]],
        here: int | None = None,
    ) -> tuple[int, int]:
        """Return the row, kept or `active`, that shares the longest prefix with `text` and has the same `scope`, and
        the length of the prefix, at most all but the last token of `text`. Row `here`, which needs no copy, wins ties.
        The length is 0 if no prefix is worth a copy."""
        wanted, best = text[:-1], (here if here is not None else 0, 0)
        rows = {**{row: (kept.text, kept.scope) for row, kept in self.kept.items()}, **active}
        for row, (known, their_scope) in rows.items():
            if their_scope != scope:
                continue
            count = common_prefix(wanted, known)
            if count > best[1] or (count == best[1] and row == here):
                best = (row, count)
        return best if best[1] >= self.min_tokens else (best[0] if here is None else here, 0)
