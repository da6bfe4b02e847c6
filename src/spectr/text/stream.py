"""Decodes tokens to text piece by piece, and finds stop strings. A tokenizer is any object with `decode`.

A token cannot be decoded alone: it may be a part of a character, and the space before it may depend on its neighbours.
So a short window of tokens is decoded for every new token, and the new text at its end is shown. If the bytes of every
token are known, those are decoded instead.
"""

import codecs
import threading
import weakref
from collections.abc import Sequence
from typing import Any, Protocol

from spectr.errors import ArgumentError
from spectr.text.token_bytes import token_bytes

__all__ = ["TextStream", "Tokenizer", "first_stop", "tokenizer_lock"]

_UNFINISHED = "\ufffd"  # what decoders return for an incomplete character
_BYTES = 3  # the most bytes of an incomplete character, and the most replacement characters for it
_WAIT = 4 * _BYTES  # tokens after which a run of replacement characters counts as invalid, and is shown
_WINDOW = 32  # tokens without a complete character after which the first are dropped


_locks: "weakref.WeakKeyDictionary[Any, threading.RLock]" = weakref.WeakKeyDictionary()


def tokenizer_lock(tokenizer: Any) -> threading.RLock:
    """Return the lock of a tokenizer: fast tokenizers cannot be used by two threads at once."""
    return _locks.setdefault(tokenizer, threading.RLock())


class Tokenizer(Protocol):
    """The method of a tokenizer that is used."""

    def decode(self, token_ids: list[int], *, skip_special_tokens: bool) -> str:
        """Return the text of tokens."""
        ...


def first_stop(text: str, stops: Sequence[str]) -> tuple[int, str] | None:
    """Return where the stop string that is complete first begins, and the stop string; the longest of those that end
    together. The result does not depend on the pieces in which a text arrives.

    >>> first_stop("one, two, three", ["three", "two, "])
    (5, 'two, ')
    """
    found = [(place + len(stop), place, stop) for stop in stops if (place := text.find(stop)) >= 0]
    return min(found)[1:] if found else None


def _held_back(text: str, stops: Sequence[str]) -> int:
    """Return the length of the longest suffix of `text` that is a proper prefix of a stop string."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    lengths = range(min(longest, len(text)), 0, -1)
    return next((length for length in lengths if any(stop.startswith(text[-length:]) for stop in stops)), 0)


def _beyond(shown: str, text: str) -> str:
    """Return the part of `text` after what was `shown` of it. If the tokenizer's clean-up has changed spaces
    meanwhile, characters other than spaces are counted."""
    if text.startswith(shown):
        return text[len(shown) :]
    left = sum(not sign.isspace() for sign in shown)
    for place, sign in enumerate(text):
        if left == 0:
            return text[place:]
        left -= not sign.isspace()
    return ""


class TextStream:
    """Turns tokens into pieces of text, which never split a character and never contain a part of a stop string.

    The pieces together are `text`, which equals what the tokenizer decodes from all tokens at once. There are two
    inherent differences: a clean-up of spaces that looks ahead cannot change text that was shown (WordPiece: "do n't"),
    and neither can an invalid byte that makes a byte-fallback decoder reject valid bytes before it. Unless the bytes of
    tokens are known, each token costs two calls of `decode` on a few tokens.
    """

    def __init__(self, tokenizer: Tokenizer, stops: Sequence[str] = ()) -> None:
        if isinstance(stops, str) or not all(isinstance(stop, str) and stop for stop in stops):
            raise ArgumentError(f"stops must be a sequence of strings that are not empty, got {stops!r}")
        self.tokenizer, self.stops = tokenizer, tuple(stops)
        self.stop: str | None = None  # the stop string that ended the text
        self._pieces: list[str] = []
        self._waiting = ""  # decoded text that is held back for stop strings
        self._window: list[int] = []
        self._context = 0  # tokens of the window that were shown and are only context
        self._base = 0  # length of their text
        self._shown = ""  # the part of the window's text that was passed on
        self._bytes = token_bytes(tokenizer)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def ended(self) -> bool:
        """Whether a stop string has appeared; text after it is not shown."""
        return self.stop is not None

    @property
    def text(self) -> str:
        """The text shown so far."""
        return "".join(self._pieces)

    @property
    def knows_bytes(self) -> bool:
        """Whether tokens are decoded by their bytes, without the tokenizer."""
        return self._bytes is not None

    def feed_all(self, tokens: Sequence[int]) -> tuple[str, int | None]:
        """Take the next tokens. Return the text that can be shown now, and how many of the tokens belong to the text
        if a stop string ends it among them."""
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
        """Take the next token, and return the text that can be shown now."""
        if self.ended:
            return ""
        if self._bytes is not None:
            return self._show(self._decoder.decode(self._bytes[token] if token < len(self._bytes) else b""))
        self._window.append(token)
        text = self._decode()
        piece = self._pass_on(text, len(text) - self._unfinished(text))
        if not text.endswith(_UNFINISHED) and len(text) > self._base:
            self._move_on()
        elif len(self._window) - self._context > _WINDOW:
            self._shorten(self._unfinished(text))
        return self._show(piece)

    def finish(self) -> str:
        """Return the text that was held back, once no more tokens follow."""
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
        """Return how many characters at the end may belong to an incomplete character. A whole run of replacement
        characters is held back for a while, since byte-fallback decoders also reject the characters before an
        incomplete one."""
        run = len(text) - len(text.rstrip(_UNFINISHED))
        return run if len(self._window) - self._context <= _WAIT else min(run, _BYTES)

    def _pass_on(self, text: str, length: int) -> str:
        """Return the new part of the first `length` characters of the window's text."""
        piece = _beyond(self._shown, text[:length])
        if piece:
            self._shown = text[:length]
        return piece

    def _move_on(self) -> None:
        """Drop the context; the rest of the window becomes the context of the next tokens."""
        self._window = self._window[self._context :]
        self._context = len(self._window)
        self._shown = self._decode()
        self._base = len(self._shown)

    def _shorten(self, unfinished: int) -> None:
        """Drop tokens without text or of invalid characters; the last ones may still become a character."""
        self._window[self._context : -_BYTES * _BYTES] = []  # the most tokens of the incomplete characters
        text = self._decode()
        self._shown = text[: max(0, len(text) - unfinished)]

    def _show(self, piece: str) -> str:
        """Add a piece and return the text that is not part of a stop string."""
        self._waiting += piece
        found = first_stop(self._waiting, self.stops)
        if found is not None:
            place, self.stop = found
        else:
            place = len(self._waiting) - _held_back(self._waiting, self.stops)
        shown, self._waiting = self._waiting[:place], self._waiting[place:]
        return self._record(shown)

    def _record(self, piece: str) -> str:
        if piece:
            self._pieces.append(piece)
        return piece
