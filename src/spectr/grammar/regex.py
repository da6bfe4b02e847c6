"""Converts regular expressions to grammars: the common syntax, as far as it describes a regular language.

Character classes are restricted to what ECMAScript and Python agree on: `\\d`, `\\w` and `\\s` are ASCII, and `\\D`,
`\\W` and `\\S` match only characters that both exclude from the positive class. Lookaround, back references, word
boundaries, flags and Unicode properties are refused.
"""

import sys
import unicodedata
from functools import cache
from itertools import groupby

from spectr.errors import ArgumentError
from spectr.grammar.expressions import (
    EMPTY,
    EVERY,
    Chars,
    Choice,
    Expression,
    Ref,
    Repeat,
    Sequence,
    choice,
    repeated,
    sequence,
)

__all__ = ["full_match", "search"]

_START, _END = Ref("^"), Ref("$")  # placeholders; no rule has such a name
_DEEPEST = 100  # nested groups
_DIGIT = Chars.of((0x30, 0x39))
_WORD = _DIGIT | Chars.of("_", (0x41, 0x5A), (0x61, 0x7A))
_SPACE = Chars.of(" \t\n\r\f\v")
_ANY_SPACE = _SPACE | Chars.of("\x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000\ufeff", (0x1C, 0x1F), (0x2000, 0x200A))
_DOT = EVERY - Chars.of("\n\r\u2028\u2029")
_ASCII = Chars.of((0x00, 0x7F))
_SIGNS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v", "0": "\0", "a": "\a"}
_HEX = {"x": 2, "u": 4, "U": 8}
_QUANTIFIERS = {"*": (0, None), "+": (1, None), "?": (0, 1)}


@cache
def _digits() -> Chars:
    """Return the digits of all scripts."""
    codes = [code for code in range(sys.maxunicode + 1) if unicodedata.category(chr(code)) == "Nd"]
    runs = [list(run) for _, run in groupby(enumerate(codes), key=lambda pair: pair[1] - pair[0])]
    return Chars.of(*((run[0][1], run[-1][1]) for run in runs))


def _class(letter: str) -> Chars | None:
    """Return the character class of an escaped letter, or None if it is not one."""
    if letter == "D":
        return EVERY - _digits()
    return {"d": _DIGIT, "w": _WORD, "s": _SPACE, "W": _ASCII - _WORD, "S": EVERY - _ANY_SPACE}.get(letter)


def full_match(pattern: str, what: str = "regex") -> Expression:
    """Return the grammar of the texts that match as a whole.

    Anchors at the beginning and the end have no effect; elsewhere nothing could match, so they are refused."""
    return _without_anchors(_Parser(pattern, what).parse(), pattern, what)


def search(pattern: str, what: str = "pattern") -> Expression:
    """Return the grammar of the texts that contain a match."""
    parsed = _Parser(pattern, what).parse()
    options = parsed.options if isinstance(parsed, Choice) else (parsed,)
    anything = Repeat(EVERY)
    searches = []
    for option in options:
        is_first, is_last = _is_anchored(option, _START, pattern, what), _is_anchored(option, _END, pattern, what)
        inner = _without_anchors(option, pattern, what)
        searches.append(sequence(EMPTY if is_first else anything, inner, EMPTY if is_last else anything))
    return choice(searches)


def _is_anchored(body: Expression, anchor: Ref, pattern: str, what: str) -> bool:
    """Return whether a match must be at that end; the options of a group must agree."""
    if isinstance(body, Sequence):
        return _is_anchored(body.parts[0 if anchor == _START else -1], anchor, pattern, what)
    if isinstance(body, Choice):
        answers = {_is_anchored(option, anchor, pattern, what) for option in body.options}
        if len(answers) > 1:
            raise ArgumentError(
                f"{what} must anchor all options of a group or none, got {pattern!r}; move the options to the top level"
            )
        return answers.pop()
    return body == anchor


def _without_anchors(body: Expression, pattern: str, what: str, *, first: bool = True, last: bool = True) -> Expression:
    """Remove anchors at the ends and refuse others; `first` and `last` say whether the body is at an end."""
    if body in (_START, _END):
        if (body == _START and first) or (body == _END and last):
            return EMPTY
        raise ArgumentError(f"{what} must have ^ only at its beginning and $ only at its end, got {pattern!r}")
    if isinstance(body, Sequence):
        ends = len(body.parts) - 1
        return sequence(*(
            _without_anchors(part, pattern, what, first=first and at == 0, last=last and at == ends)
            for at, part in enumerate(body.parts)
        ))  # fmt: skip
    if isinstance(body, Choice):
        return choice(_without_anchors(option, pattern, what, first=first, last=last) for option in body.options)
    if isinstance(body, Repeat):
        inner = _without_anchors(body.body, pattern, what, first=False, last=False)
        return repeated(inner, body.least, body.most)
    return body


class _Parser:
    """A recursive-descent parser of one pattern."""

    def __init__(self, pattern: str, what: str) -> None:
        self.pattern, self.what, self.at, self.depth = pattern, what, 0, 0

    def parse(self) -> Expression:
        """Parse the whole pattern."""
        found = self._options()
        if self.at < len(self.pattern):
            raise self._error("has a ) without a (")
        return found

    def _error(self, sentence: str) -> ArgumentError:
        return ArgumentError(f"{self.what} {sentence}, at character {self.at + 1} of {self.pattern!r}")

    def _peek(self, count: int = 1) -> str:
        return self.pattern[self.at : self.at + count]

    def _take(self, what: str) -> str:
        """Consume and return the next character; raise if there is none."""
        sign = self._peek()
        if not sign:
            raise self._error(f"must not end before {what}")
        self.at += 1
        return sign

    def _options(self) -> Expression:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self._error(f"must have at most {_DEEPEST} nested groups")
        options = [self._branch()]
        while self._peek() == "|":
            self.at += 1
            options.append(self._branch())
        self.depth -= 1
        return choice(options)

    def _branch(self) -> Expression:
        parts = list[Expression]()
        while self._peek() and self._peek() not in "|)":
            parts.append(self._quantified())
        return sequence(*parts)

    def _quantified(self) -> Expression:
        body = self._atom()
        times = self._times()
        if times is None:
            return body
        if body in (_START, _END):
            raise self._error("must not repeat an anchor")
        if self._peek() == "?":  # lazy: matches the same texts
            self.at += 1
        if self._peek() == "+" or self._times() is not None:
            raise self._error("must not repeat a repetition; put it into a group, (?:…)")
        least, most = times
        return repeated(body, least, most)

    def _times(self) -> tuple[int, int | None] | None:
        """Parse a quantifier, if one comes next, into its bounds."""
        sign = self._peek()
        if sign and sign in _QUANTIFIERS:
            self.at += 1
            return _QUANTIFIERS[sign]
        end = self.pattern.find("}", self.at)
        if sign != "{" or end < 0:
            return None
        first, comma, last = self.pattern[self.at + 1 : end].partition(",")
        if not first and last.isdigit():
            raise self._error("must give a minimum, as in {0,…}: dialects differ in the meaning of {,…}")
        if not (first.isascii() and first.isdigit() and (not last or (last.isascii() and last.isdigit()))):
            return None
        least, most = int(first), int(last) if last else None if comma else int(first)
        if most is not None and most < least:
            raise self._error(f"must repeat at most as often as at least, got {{{least},{most}}}")
        self.at = end + 1
        return least, most

    def _atom(self) -> Expression:
        sign = self._take("something to match")
        if sign == "(":
            return self._group()
        if sign == "[":
            return self._set()
        if sign == "\\":
            return self._escape()
        if sign in "*+?":
            self.at -= 1
            raise self._error(f"must have something before {sign} to repeat")
        if sign == ".":
            return _DOT
        return {"^": _START, "$": _END}[sign] if sign in "^$" else Chars.of(sign)

    def _group(self) -> Expression:
        if self._peek() == "?":
            self.at += 1
            kind = self._take("the kind of a group")
            if kind == "P":
                kind = self._take("the name of a group")
            if kind == "<" and self._peek() not in ("=", "!"):
                end = self.pattern.find(">", self.at)
                if end < 0:
                    raise self._error("must close the name of a group")
                self.at = end + 1
            elif kind != ":":
                raise self._error(
                    "must have plain groups, (…), (?:…) or (?<name>…): no lookaround, flags or references"
                )
        found = self._options()
        if self._take("the ) of a group") != ")":
            raise self._error("must close its groups")
        return found

    def _escape(self) -> Chars:
        letter = self._take("what \\ stands before")
        if (found := _class(letter)) is not None:
            return found
        if letter in _HEX and all(sign in "0123456789abcdefABCDEF" for sign in self._peek(_HEX[letter])):
            digits = self._peek(_HEX[letter])
            if len(digits) == _HEX[letter] and int(digits, 16) <= sys.maxunicode:
                self.at += len(digits)
                return Chars.of((int(digits, 16), int(digits, 16))) & EVERY
        if letter == "0" and self._peek().isdigit():
            raise self._error("must write characters by their number as \\xhh")
        if letter in _SIGNS:
            return Chars.of(_SIGNS[letter])
        if letter.isascii() and letter.isalnum():
            raise self._error(f"must not have \\{letter}: no word boundaries, references or Unicode properties")
        return Chars.of(letter)

    def _set(self) -> Chars:
        """Parse a set between brackets."""
        negated = self._peek() == "^"
        self.at += negated
        if self._peek() == "]":
            raise self._error("must write ] in a set as \\]: dialects differ in its meaning there")
        found = Chars(())
        while self._peek() != "]":
            found |= self._range()
        self.at += 1
        found = EVERY - found if negated else found
        if not found:
            raise self._error("must not have an empty set")
        return found

    def _range(self) -> Chars:
        """Parse one character of a set, a class, or a range."""
        low = self._member()
        if self._peek() != "-" or self._peek(2) in ("-]", "-"):
            return low
        self.at += 1
        high = self._member()
        bounds = [part.ranges[0] for part in (low, high) if len(part.ranges) == 1]
        if len(bounds) < 2 or any(first != last for first, last in bounds) or bounds[0] > bounds[1]:
            raise self._error("must have ranges from one character to a later one")
        return Chars.of((bounds[0][0], bounds[1][1])) & EVERY

    def _member(self) -> Chars:
        sign = self._take("the ] of a set")
        if sign != "\\":
            return Chars.of(sign)
        if self._peek() == "b":  # a backspace, only in sets
            self.at += 1
            return Chars.of("\b")
        return self._escape()
