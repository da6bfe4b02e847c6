"""Expressions of a context-free grammar over characters: literals, sets of characters, sequences, choices, repetitions.

Sets of characters are ranges of code points without surrogates, which are not characters of any text.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

__all__ = [
    "EMPTY",
    "EVERY",
    "NOTHING",
    "Chars",
    "Choice",
    "Expression",
    "Literal",
    "Ref",
    "Repeat",
    "Sequence",
    "choice",
    "optional",
    "repeated",
    "sequence",
]

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)


@dataclass(frozen=True, slots=True)
class Literal:
    """Matches exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """Matches one character of a set: sorted, disjoint ranges of code points, both ends included."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, *parts: str | tuple[int, int]) -> "Chars":
        """Return the set of the characters of strings and ranges.

        >>> Chars.of("cab", (0x30, 0x39)).ranges
        ((48, 57), (97, 99))
        """
        spans = [(ord(sign), ord(sign)) for part in parts if isinstance(part, str) for sign in part]
        return cls(_join_ranges([*spans, *(part for part in parts if not isinstance(part, str))]))

    def __or__(self, other: "Chars") -> "Chars":
        return Chars(_join_ranges([*self.ranges, *other.ranges]))

    def __sub__(self, other: "Chars") -> "Chars":
        return Chars(_complement(_join_ranges([*_complement(self.ranges), *other.ranges])))

    def __and__(self, other: "Chars") -> "Chars":
        return self - (EVERY - other)

    def __contains__(self, sign: str) -> bool:
        return any(first <= ord(sign) <= last for first, last in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    @property
    def size(self) -> int:
        """The number of characters."""
        return sum(last - first + 1 for first, last in self.ranges)


def _join_ranges(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Sort ranges and join those that touch."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    return tuple(joined)


def _complement(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """Return the ranges of all other characters."""
    others, start = list[tuple[int, int]](), 0
    for first, last in _join_ranges([*ranges, _SURROGATES]):
        if start < first:
            others.append((start, first - 1))
        start = last + 1
    return tuple(others) if start > _LAST else (*others, (start, _LAST))


EVERY = Chars(_complement(()))
"""All characters."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Matches what the rule of this name matches."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """Matches the parts one after the other."""

    parts: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    """Matches one of several options."""

    options: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """Matches the body repeatedly."""

    body: "Expression"
    least: int = 0
    most: int | None = None  # None: any number


Expression: TypeAlias = Literal | Chars | Ref | Sequence | Choice | Repeat

EMPTY = Literal("")
NOTHING = Choice(())
"""Matches no text."""


def sequence(*parts: Expression) -> Expression:
    """Return a sequence of parts; nested sequences are flattened and adjacent literals joined."""
    flat = [one for part in parts for one in (part.parts if isinstance(part, Sequence) else (part,)) if one != EMPTY]
    joined = list[Expression]()
    for part in flat:
        last = joined[-1] if joined else None
        if isinstance(part, Literal) and isinstance(last, Literal):
            joined[-1] = Literal(last.text + part.text)
        else:
            joined.append(part)
    return EMPTY if not joined else joined[0] if len(joined) == 1 else Sequence(tuple(joined))


def choice(options: Iterable[Expression]) -> Expression:
    """Return a choice of distinct options."""
    distinct = tuple(dict.fromkeys(options))
    return distinct[0] if len(distinct) == 1 else Choice(distinct)


def optional(body: Expression) -> Expression:
    """Return an expression that matches the body or the empty text."""
    return body if body == EMPTY else Repeat(body, 0, 1)


def repeated(body: Expression, least: int = 0, most: int | None = None) -> Expression:
    """Return a repetition; nested unbounded repetitions are merged.

    >>> repeated(repeated(Literal("a"), 1))
    Repeat(body=Literal(text='a'), least=0, most=None)
    """
    if isinstance(body, Repeat) and body.most is None and body.least <= 1 and most is None and least <= 1:
        return Repeat(body.body, least * body.least)
    return Repeat(body, least, most)
