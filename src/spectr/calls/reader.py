"""Reads calls of functions from a text, piece by piece. What is read does not depend on how the text is cut."""

import re
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import Enum, auto

from spectr.calls.form import CallForm

__all__ = ["CallPart", "CallReader", "Piece"]

_LONGEST_HEAD = 512  # characters before the arguments of a call
_SPACE = r"[ \t\r\n]*"
_JSON = frozenset('{}[],:"+-. \t\r\n0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ')
"""Characters of JSON outside of its strings."""


@dataclass(slots=True)
class CallPart:
    """The next part of a call."""

    number: int  # of the call in its text, from 0
    name: str | None  # of the function; in the first part of a call only
    arguments: str  # the next part of the arguments' JSON


@dataclass(slots=True)
class Piece:
    """What was read from a piece of a text: text outside of calls, and at most one part of each call."""

    text: str = ""
    calls: list[CallPart] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.text or self.calls)


class _Place(Enum):
    """Where in a text the reader is."""

    TEXT = auto()  # where a call may begin
    HEAD = auto()  # in a call, before its arguments
    ARGUMENTS = auto()
    TAIL = auto()  # in a call, behind its arguments
    REST = auto()  # where no call can begin


class CallReader:
    """Splits a text into calls of some functions and other text. What begins like a call is text if the function is
    unknown or the object has another form. White space before a call is left out."""

    def __init__(self, form: CallForm, names: Collection[str]) -> None:
        self.form, self.names = form, frozenset(names)
        self.count = 0  # calls so far
        self._place = _Place.TEXT if form.marker else _Place.HEAD
        self._waiting = ""  # text of which it is not yet known whether it belongs to a call
        self._before = ""  # white space and marker before the call that may be beginning
        self._depth, self._in_string, self._is_escaped = 0, False, False
        atoms = _head_atoms(form.key)
        self._head = re.compile("".join(atoms))
        self._head_beginning = re.compile("".join(f"(?:{atom}" for atom in atoms) + ")?" * len(atoms))

    @property
    def is_within_call(self) -> bool:
        """Whether the text so far ends within the arguments of a call."""
        return self._place is _Place.ARGUMENTS

    def feed(self, text: str) -> Piece:
        """Take the next piece of the text, and return what has become certain by it."""
        self._waiting += text
        piece = Piece()
        while self._advance(piece):
            pass
        return piece

    def finish(self) -> Piece:
        """Return the text that was held back, at the end of the text."""
        piece, waiting = Piece(), self._waiting
        if self._place is _Place.HEAD:
            waiting = self._before + waiting
        if self._place in (_Place.TEXT, _Place.HEAD, _Place.REST) and (waiting.strip() or not self.count):
            piece.text = waiting
        self._waiting = self._before = ""
        return piece

    def _advance(self, piece: Piece) -> bool:
        """Read on from one place of the text; return whether the next place was reached."""
        match self._place:
            case _Place.TEXT:
                return self._read_text(piece)
            case _Place.HEAD:
                return self._read_head(piece)
            case _Place.ARGUMENTS:
                return self._read_arguments(piece)
            case _Place.TAIL:
                return self._read_tail()
            case _Place.REST:
                shown = self._waiting.rstrip() if self.count else self._waiting
                piece.text += shown
                self._waiting = self._waiting[len(shown) :]
                return False

    def _read_text(self, piece: Piece) -> bool:
        """Pass on text up to the marker of a call; white space that may stand before a marker is held back."""
        marker, waiting = self.form.marker, self._waiting
        place = waiting.find(marker)
        end = place if place >= 0 else len(waiting) - _overlap(waiting, marker)
        shown = waiting[:end].rstrip()
        piece.text += shown
        if place < 0:
            self._waiting = waiting[len(shown) :]
            return False
        self._before = waiting[len(shown) : place + len(marker)]
        self._waiting = waiting[place + len(marker) :]
        self._place = _Place.HEAD
        return True

    def _read_head(self, piece: Piece) -> bool:
        """Read up to the arguments of a call. If this turns out to be no call, pass it on as text."""
        waiting = self._waiting
        found = self._head.match(waiting)
        end = len(waiting) if found is None else found.end()
        if end == len(waiting) and end <= _LONGEST_HEAD and self._head_beginning.fullmatch(waiting):
            return False
        if found is not None and waiting[end : end + 1] == "{" and end <= _LONGEST_HEAD and found[1] in self.names:
            piece.calls.append(CallPart(self.count, found[1], ""))
            self.count += 1
            self._waiting, self._before = waiting[end:], ""
            self._place, self._depth = _Place.ARGUMENTS, 0
            return True
        piece.text += self._before
        self._before = ""
        self._place = _Place.TEXT if self.form.marker else _Place.REST
        return True

    def _read_arguments(self, piece: Piece) -> bool:
        """Pass on the arguments up to their end, or up to a character that cannot belong to them."""
        if not (waiting := self._waiting):
            return False
        end, is_over = self._scan(waiting)
        if not piece.calls or piece.calls[-1].number != self.count - 1:
            piece.calls.append(CallPart(self.count - 1, None, ""))
        piece.calls[-1].arguments += waiting[:end]
        if not piece.calls[-1].arguments and piece.calls[-1].name is None:
            piece.calls.pop()
        self._waiting = waiting[end:]
        if is_over:
            self._place, self._in_string, self._is_escaped = _Place.TAIL, False, False
        return is_over

    def _scan(self, text: str) -> tuple[int, bool]:
        """Return how many characters belong to the arguments, and whether these are over."""
        for place, character in enumerate(text):
            if self._in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif character == "\\":
                    self._is_escaped = True
                elif character == '"':
                    self._in_string = False
            elif character not in _JSON:
                return place, True
            elif character == '"':
                self._in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth == 0:
                    return place + 1, True
        return len(text), False

    def _read_tail(self) -> bool:
        """Skip what follows the arguments, up to the end of the call or the beginning of the next one."""
        ends = [self.form.closing or "}", *filter(None, [self.form.marker])]
        found = min(((at, end) for end in ends if (at := self._waiting.find(end)) >= 0), default=None)
        if found is None:
            longest = max(_overlap(self._waiting, end) for end in ends)
            self._waiting = self._waiting[len(self._waiting) - longest :]
            return False
        place, end = found
        self._waiting = self._waiting[place + (len(end) if end != self.form.marker else 0) :]
        self._place = _Place.TEXT if self.form.marker else _Place.REST
        return True


def _head_atoms(key: str) -> list[str]:
    """Return the parts of a call before its arguments, as regular expressions that are matched one after the other."""
    name = [*'"name"', _SPACE, ":", _SPACE, '"', r'([^"\\]{0,64})', '"']
    return [_SPACE, r"\{", _SPACE, *name, _SPACE, ",", _SPACE, *f'"{key}"', _SPACE, ":", _SPACE]


def _overlap(text: str, marker: str) -> int:
    """Return the length of the longest end of a text that is a beginning of the marker, but not the whole marker."""
    lengths = range(min(len(marker) - 1, len(text)), 0, -1)
    return next((length for length in lengths if marker.startswith(text[-length:])), 0)
