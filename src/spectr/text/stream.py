"""Tokens to text, piece by piece, and stop strings. A tokenizer is anything with `decode`; knows no model.

A token alone is no text: it may be part of a character, and the space before it may depend on its neighbours. So a
short window of tokens is decoded again and again, and what is new at its end is shown. Where the bytes of every token
are known, they are decoded in place of that.
"""

import codecs
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from spectr.errors import ArgumentError
from spectr.text.token_bytes import token_bytes

__all__ = ["TextStream", "Tokenizer", "first_stop", "tokenizer_lock"]

_UNFINISHED = "\ufffd"  # what decoders show for the bytes of a character that lacks its end
_BYTES = 3  # most bytes such a character has, and most signs that decoders show for it
_WAIT = 4 * _BYTES  # tokens after which a run of such signs is taken for what it is: broken, and shown
_PATIENCE = 32  # tokens without an end of a character after which the first are forgotten


_locks: "weakref.WeakKeyDictionary[Any, threading.RLock]" = weakref.WeakKeyDictionary()


def tokenizer_lock(tokenizer: Any) -> threading.RLock:
    """A lock to hold while a tokenizer is used: fast ones refuse to be used by two threads at once."""
    return _locks.setdefault(tokenizer, threading.RLock())


class Tokenizer(Protocol):
    """What is asked of a tokenizer."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """The text of tokens."""
        ...


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Where the stop string begins that is complete first, and which; of those that end together, the longest.

    Thus it does not matter in which pieces a text comes.

    >>> first_stop("one, two, three", ["three", "two, "])
    (5, 'two, ')
    """
    found = [(place + len(stop), place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    return min(found)[1:] if found else None


def _held(text: str, stops: Sequence[str]) -> int:
    """Length of the longest end of `text` that begins a stop string without completing it."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    lengths = range(min(longest, len(text)), 0, -1)
    return next((length for length in lengths if any(stop.startswith(text[-length:]) for stop in stops)), 0)


def _beyond(shown: str, text: str) -> str:
    """What `text` has after what was `shown` of it. Clean-up may have moved spaces in between: then whatever stands
    after as many other characters."""
    if text.startswith(shown):
        return text[len(shown) :]
    left = sum(not sign.isspace() for sign in shown)
    for place, sign in enumerate(text):
        if left == 0:
            return text[place:]
        left -= not sign.isspace()
    return ""


class TextStream:
    """Text from tokens as they come: never half a character, never a part of what may become a stop string.

    The pieces together are `text`, and `text` is what the tokenizer decodes from all tokens at once. Two differences
    are inherent: a clean-up of spaces that looks ahead comes too late for what was shown (WordPiece: "do n't"), and so
    does an invalid byte by which a byte-fallback decoder disowns valid ones before it. Unless the bytes of tokens are
    known, each token costs two calls of `decode` on a few tokens.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise ArgumentError(f"stops must be a sequence of strings that are not empty, got {stops!r}")
        self.tokenizer, self.stops = tokenizer, tuple(stops)
        self.stop: str | None = None  # the stop string that ended the text
        self._pieces: list[str] = []
        self._waiting = ""  # decoded, and held back for stop strings
        self._window: list[int] = []
        self._context = 0  # tokens of the window that are there for their neighbours only
        self._base = 0  # length of their text
        self._shown = ""  # what was passed on of the window's text
        self._bytes = token_bytes(tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def ended(self) -> bool:
        """Whether a stop string has appeared; what comes after it is not shown."""
        return self.stop is not None

    @property
    def text(self) -> str:
        """Everything shown so far."""
        return "".join(self._pieces)

    @property
    def knows_bytes(self) -> bool:
        """Whether the tokenizer is not asked."""
        return self._bytes is not None

    def feed_all(self, tokens: Sequence[int]) -> tuple[str, int | None]:
        """The text that is safe to show once these tokens are there, and how many of them belong to the text, if a stop
        string ends it among them."""
        if self._bytes is not None and not self.stops:
            table = self._bytes
            data = b"".join([table[token] for token in tokens if token < len(table)])
            return self._record(self._decoder.decode(data)), None
        pieces = []
        for count, token in enumerate(tokens, start=1):
            pieces.append(self.feed(token))
            if self.ended:
                return "".join(pieces), count
        return "".join(pieces), None

    def feed(self, token: int) -> str:
        """The text that is safe to show once this token is there; often more or less than its own."""
        if self.ended:
            return ""
        if self._bytes is not None:
            return self._show(self._decoder.decode(self._bytes[token] if token < len(self._bytes) else b""))
        self._window.append(token)
        text = self._decode()
        piece = self._pass_on(text, len(text) - self._unfinished(text))
        if not text.endswith(_UNFINISHED) and len(text) > self._base:
            self._move_on()
        elif len(self._window) - self._context > _PATIENCE:
            self._shorten(self._unfinished(text))
        return self._show(piece)

    def finish(self) -> str:
        """What was held back, once no token follows."""
        if self.ended:
            return ""
        if self._bytes is not None:
            shown = self._show(self._decoder.decode(b"", final=True))
        else:
            text = self._decode()
            shown = self._show(self._pass_on(text, len(text)))
        rest, self._waiting = self._waiting, ""
        return shown + self._record("" if self.ended else rest)

    def _decode(self) -> str:
        return self.tokenizer.decode(self._window, skip_special_tokens=True)

    def _unfinished(self, text: str) -> int:
        """How many signs at the end may be a character that lacks its end. The whole run waits for a while, since
        byte-fallback decoders disown the characters before such a one as well, until it is complete."""
        run = len(text) - len(text.rstrip(_UNFINISHED))
        return run if len(self._window) - self._context <= _WAIT else min(run, _BYTES)

    def _pass_on(self, text: str, length: int) -> str:
        """What is new in the first `length` characters of the window's text."""
        piece = _beyond(self._shown, text[:length])
        if piece:
            self._shown = text[:length]
        return piece

    def _move_on(self) -> None:
        """Forget the context: what came after it is the context of what follows."""
        self._window = self._window[self._context :]
        self._context = len(self._window)
        self._shown = self._decode()
        self._base = len(self._shown)

    def _shorten(self, unfinished: int) -> None:
        """Forget tokens without text, or of broken characters; the last may still become one."""
        self._window[self._context : -_BYTES * _BYTES] = []  # so many tokens may lie behind so many signs
        text = self._decode()
        self._shown = text[: max(0, len(text) - unfinished)]

    def _show(self, piece: str) -> str:
        """Pass a piece through the stop strings."""
        self._waiting += piece
        found = first_stop(self._waiting, self.stops)
        if found is not None:
            place, self.stop = found
        else:
            place = len(self._waiting) - _held(self._waiting, self.stops)
        shown, self._waiting = self._waiting[:place], self._waiting[place:]
        return self._record(shown)

    def _record(self, piece: str) -> str:
        if piece:
            self._pieces.append(piece)
        return piece
