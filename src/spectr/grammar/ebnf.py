"""Expressions of a context-free grammar over characters, and how they are written in the EBNF that xgrammar reads.

Sets of characters are ranges of code points. Surrogates belong to none: they are no characters of any text.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
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
    "cleaned",
    "optional",
    "repeated",
    "sequence",
    "unrolled",
    "written",
]

_LAST = 0x10FFFF
_SURROGATES = (0xD800, 0xDFFF)
_FEW = 8  # turns of a repetition that are written out
_TURNS = 32  # turns that get a rule of their own each
_MOST_MADE = 1_000  # rules that are made for turns


@dataclass(frozen=True, slots=True)
class Literal:
    """Exactly this text."""

    text: str


@dataclass(frozen=True, slots=True)
class Chars:
    """One character of a set: ranges of code points, both ends included, in order and apart."""

    ranges: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, *parts: str | tuple[int, int]) -> "Chars":
        """The characters of strings, and of ranges.

        >>> Chars.of("cab", (0x30, 0x39)).ranges
        ((48, 57), (97, 99))
        """
        spans = [(ord(sign), ord(sign)) for part in parts if isinstance(part, str) for sign in part]
        return cls(_joined([*spans, *(part for part in parts if not isinstance(part, str))]))

    def __or__(self, other: "Chars") -> "Chars":
        return Chars(_joined([*self.ranges, *other.ranges]))

    def __sub__(self, other: "Chars") -> "Chars":
        return Chars(_complement(_joined([*_complement(self.ranges), *other.ranges])))

    def __and__(self, other: "Chars") -> "Chars":
        return self - (EVERY - other)

    def __contains__(self, sign: str) -> bool:
        return any(first <= ord(sign) <= last for first, last in self.ranges)

    def __bool__(self) -> bool:
        return bool(self.ranges)

    @property
    def size(self) -> int:
        """How many characters."""
        return sum(last - first + 1 for first, last in self.ranges)


def _joined(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Ranges in order, those that touch as one."""
    found: list[tuple[int, int]] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(found[-1][1], last))
        else:
            found.append((first, last))
    return tuple(found)


def _complement(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """All other characters."""
    found, start = list[tuple[int, int]](), 0
    for first, last in _joined([*ranges, _SURROGATES]):
        if start < first:
            found.append((start, first - 1))
        start = last + 1
    return tuple(found) if start > _LAST else (*found, (start, _LAST))


EVERY = Chars(_complement(()))
"""All characters."""


@dataclass(frozen=True, slots=True)
class Ref:
    """Another rule, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """One after the other."""

    parts: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    options: "tuple[Expression, ...]"


@dataclass(frozen=True, slots=True)
class Repeat:
    """The same several times."""

    body: "Expression"
    least: int = 0
    most: int | None = None  # None: any number


Expression: TypeAlias = Literal | Chars | Ref | Sequence | Choice | Repeat

EMPTY = Literal("")
NOTHING = Choice(())
"""What no text matches."""


def sequence(*parts: Expression) -> Expression:
    """One after the other, without sequences in sequences; literals that meet become one."""
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
    """One of several, each once."""
    distinct = tuple(dict.fromkeys(options))
    return distinct[0] if len(distinct) == 1 else Choice(distinct)


def optional(body: Expression) -> Expression:
    """That, or nothing."""
    return body if body == EMPTY else Repeat(body, 0, 1)


def repeated(body: Expression, least: int = 0, most: int | None = None) -> Expression:
    """The same several times; any number of any number is any number.

    >>> repeated(repeated(Literal("a"), 1))
    Repeat(body=Literal(text='a'), least=0, most=None)
    """
    if isinstance(body, Repeat) and body.most is None and body.least <= 1 and most is None and least <= 1:
        return Repeat(body.body, least * body.least)
    return Repeat(body, least, most)


def cleaned(rules: Mapping[str, Expression], root: str) -> dict[str, Expression] | None:
    """The rules that can be reached from the root, without what no text matches; None if no text matches at all.

    >>> cleaned({"a": Choice((Ref("b"), Literal("x"))), "b": Ref("b")}, "a")
    {'a': Literal(text='x')}
    """
    productive = _productive(rules)
    if root not in productive:
        return None
    found, waiting = dict[str, Expression](), [root]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = _pruned(rules[name], productive)
            waiting += _names(found[name])
    return found


def _productive(rules: Mapping[str, Expression]) -> set[str]:
    """The rules that some text matches: a rule is looked at again when one that it names turns out to be one."""
    named_by = defaultdict[str, list[str]](list)
    for name, body in rules.items():
        for other in _names(body):
            named_by[other].append(name)
    found, waiting = set[str](), list(rules)
    while waiting:
        name = waiting.pop()
        if name not in found and _matches(rules[name], found):
            found.add(name)
            waiting += named_by[name]
    return found


def _matches(body: Expression, productive: set[str]) -> bool:
    """Whether some text matches, if it does for the rules in `productive`."""
    match body:
        case Literal():
            return True
        case Chars():
            return bool(body)
        case Ref(name):
            return name in productive
        case Sequence(parts):
            return all(_matches(part, productive) for part in parts)
        case Choice(options):
            return any(_matches(option, productive) for option in options)
        case Repeat(inner, least, most):
            return least == 0 or ((most is None or most >= least) and _matches(inner, productive))


def _pruned(body: Expression, productive: set[str]) -> Expression:
    """The same without options that nothing matches."""
    match body:
        case Sequence(parts):
            return sequence(*(_pruned(part, productive) for part in parts))
        case Choice(options):
            return choice(_pruned(option, productive) for option in options if _matches(option, productive))
        case Repeat(inner, least, most):
            if most == 0 or not _matches(inner, productive):
                return EMPTY
            return Repeat(_pruned(inner, productive), least, most)
        case _:
            return body


def _names(body: Expression) -> list[str]:
    match body:
        case Ref(name):
            return [name]
        case Sequence(parts) | Choice(parts):
            return [name for part in parts for name in _names(part)]
        case Repeat(inner):
            return _names(inner)
        case _:
            return []


def unrolled(rules: Mapping[str, Expression]) -> dict[str, Expression]:
    """The same texts, with repetitions of groups as rules that call themselves and then go on with what follows.

    A token that reaches beyond the end of a rule is checked against the whole text so far, each time. So there should
    be few such tokens: a repeated group alone would end after every turn.

    >>> written(unrolled({"root": Sequence((Repeat(Sequence((Chars.of("a"), Literal(","))), 1), Literal("b")))}))
    'root ::= [a] "," root-r1\\nroot-r1 ::= [a] "," root-r1 | "b"\\n'
    """
    return _Unrolling(rules).run()


class _Unrolling:
    """Rules on their way to others."""

    def __init__(self, rules: Mapping[str, Expression]) -> None:
        self.found: dict[str, Expression] = {}
        self.waiting = deque(rules.items())
        self.made = 0

    def run(self) -> dict[str, Expression]:
        """All rules, those that were made among them."""
        while self.waiting:
            name, body = self.waiting.popleft()
            self.found[name] = self._rolled_out(name, body)
        return self.found

    def _rolled_out(self, name: str, body: Expression) -> Expression:
        if isinstance(body, Choice):
            return choice(self._rolled_out(name, option) for option in body.options)
        parts = body.parts if isinstance(body, Sequence) else (body,)
        for at, part in enumerate(parts):
            if isinstance(part, Repeat) and self._is_worth_it(part):
                turns = self._turns(name.partition("-r")[0], part, sequence(*parts[at + 1 :]))
                return sequence(*parts[:at], *[part.body] * part.least, turns)
        return body

    def _is_worth_it(self, repeat: Repeat) -> bool:
        """Whether a repetition is of groups that are not empty, and comes to few rules."""
        is_group = isinstance(repeat.body, Sequence | Choice) and not _may_be_empty(repeat.body)
        is_short = repeat.least <= _FEW and (repeat.most or 0) <= _TURNS
        return is_group and is_short and self.made < _MOST_MADE

    def _turns(self, name: str, repeat: Repeat, tail: Expression) -> Ref:
        """A rule for one more turn and the next, or what follows; one for each turn where they are counted."""
        if repeat.most is None:
            again = self._fresh(name)
            self.waiting.append((again.name, choice([sequence(repeat.body, again), tail])))
            return again
        if tail != EMPTY:
            after = self._fresh(name)
            self.waiting.append((after.name, tail))
            tail = after
        turns = [self._fresh(name) for _ in range(repeat.most - repeat.least + 1)]
        for this, following in pairwise(turns):
            self.waiting.append((this.name, choice([sequence(repeat.body, following), tail])))
        self.waiting.append((turns[-1].name, tail))
        return turns[0]

    def _fresh(self, name: str) -> Ref:
        self.made += 1
        return Ref(f"{name}-r{self.made}")


def _may_be_empty(body: Expression) -> bool:
    match body:
        case Literal(text):
            return not text
        case Sequence(parts):
            return all(map(_may_be_empty, parts))
        case Choice(options):
            return any(map(_may_be_empty, options))
        case Repeat(inner, least):
            return least == 0 or _may_be_empty(inner)
        case Ref():
            return True  # it may
        case _:
            return False


def written(rules: Mapping[str, Expression]) -> str:
    """Rules as text.

    >>> written({"root": Sequence((Literal('"'), Repeat(Chars.of("ab"), 1), Choice((EMPTY, Ref("root")))))})
    'root ::= "\\\\"" [a-b]+ ("" | root)\\n'
    """
    return "".join(f"{name} ::= {_text(body)}\n" for name, body in rules.items())


def _text(body: Expression) -> str:
    match body:
        case Literal(text):
            return '"' + "".join(map(_in_literal, text)) + '"'
        case Chars(ranges):
            return "[" + "".join(_span(first, last) for first, last in ranges) + "]"
        case Ref(name):
            return name
        case Sequence(parts):
            return " ".join(f"({_text(part)})" if isinstance(part, Choice) else _text(part) for part in parts)
        case Choice(options):
            return " | ".join(map(_text, options))
        case Repeat(inner, least, most):
            group = isinstance(inner, Sequence | Choice | Repeat)
            return (f"({_text(inner)})" if group else _text(inner)) + _times(least, most)


def _times(least: int, most: int | None) -> str:
    usual = {(0, None): "*", (1, None): "+", (0, 1): "?", (1, 1): ""}
    if (least, most) in usual:
        return usual[least, most]
    return "{" + (f"{least}" if least == most else f"{least},{'' if most is None else most}") + "}"


def _in_literal(sign: str) -> str:
    if sign in '"\\':
        return "\\" + sign
    return sign if " " <= sign <= "~" else _escaped(ord(sign))


def _span(first: int, last: int) -> str:
    return _in_class(first) if first == last else f"{_in_class(first)}-{_in_class(last)}"


def _in_class(code: int) -> str:
    return chr(code) if chr(code).isascii() and chr(code).isalnum() else _escaped(code)


def _escaped(code: int) -> str:
    """Always with four or eight digits: \\x would take any digit that follows."""
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
