"""Text that a grammar leaves no choice about, as tokens to draft. A guess: how a text is split into tokens is left to
the model, and where spaces may stand or not, they are taken to stand as before."""

import math
import re
import time
from collections import OrderedDict
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from spectr.grammar.grammar import Grammar
from spectr.grammar.masks import words
from spectr.grammar.vocabulary import Vocabulary

__all__ = ["Spellings", "forced_text", "forces_little"]

_CONTEXT = 4  # tokens before that are split into tokens again, to see where the next one begins
_SPACES = b" \n\t\r"
_USUAL = {b":": b" ", b",": b" "}  # spaces after signs that did not come before
_REMEMBERED = 4096  # texts whose spellings are remembered
_MANY = 4096  # allowed tokens that surely do not all begin alike
_PATIENCE = 0.01  # seconds to look for forced text in
_MOST_FORCED = 4096  # repetitions in a grammar whose forced texts xgrammar may return at once
_LEAST_COUNT = re.compile(r"\{(\d{1,20})")  # the least number of repetitions


@lru_cache(maxsize=256)
def forces_little(grammar: Grammar) -> bool:
    """Whether text that a grammar forces is short. A grammar of users may force an endless text (`root ::= "a" root`),
    and a regex `a{1000000}` a long one: xgrammar would return all of it at once."""
    least = math.prod(max(1, int(count)) for count in _LEAST_COUNT.findall(grammar.text))
    return grammar.kind != "ebnf" and least <= _MOST_FORCED


def forced_text(
    matcher: Any, vocabulary: Vocabulary, before: bytes, most: int, *, is_short: bool = True
) -> tuple[bytes, bool]:
    """What comes next if there is no choice but about spaces, about as far as `most` bytes, and whether the text ends
    with it. A matcher stands behind the text `before`. Unless all forced texts of the grammar are short, they are found
    byte by byte."""
    ahead, text = matcher.fork(), b""
    late = time.perf_counter() + _PATIENCE
    while len(text) < most and time.perf_counter() < late:
        fresh = (_jump(ahead) if is_short else b"") or _but_for_spaces(ahead, vocabulary, before + text)
        if not fresh or not ahead.accept_string(fresh):
            break
        text += fresh
    if ahead.is_completed() and set(ahead.stop_token_ids).issuperset(_open(ahead, vocabulary).tolist()):
        return text, True
    return text.rstrip(b" "), False  # a space belongs to the token after it, mostly


def _jump(matcher: Any) -> bytes:
    """What surely comes next; xgrammar stumbles over the first byte of a character whose last is open."""
    try:
        return str(matcher.find_jump_forward_string()).encode()
    except UnicodeDecodeError as error:
        return bytes(error.object[: error.start])


def _but_for_spaces(matcher: Any, vocabulary: Vocabulary, text: bytes) -> bytes:
    """The same where nothing but spaces is open: those that came after the same sign the last time, and what follows
    them."""
    last = text[-1:]
    place = text.rfind(last, 0, len(text) - 1) if last else -1
    after = text[place + 1 :]
    spaces = after[: len(after) - len(after.lstrip(_SPACES))] if place >= 0 else _USUAL.get(last, b"")
    if spaces:
        matcher = matcher.fork()
        if not matcher.accept_string(spaces):
            return b""
    if matcher.is_completed():
        return b""  # it may also end here
    open_ = _open(matcher, vocabulary)
    following = vocabulary.first_bytes(open_) - set(_SPACES) if len(open_) < _MANY else set()
    return spaces + bytes(following) if len(following) == 1 and max(following) < 0x80 else b""


def _open(matcher: Any, vocabulary: Vocabulary) -> "np.ndarray[Any, Any]":
    """The tokens that may follow."""
    mask = torch.zeros(1, words(vocabulary.size), dtype=torch.int32)
    matcher.fill_next_token_bitmask(mask)
    return np.flatnonzero(np.unpackbits(mask.numpy().view(np.uint8), bitorder="little", count=vocabulary.size))


class Spellings:
    """How forced texts were split into tokens when they came before, in this text or in others.

    A model often has a way of its own: `{` and `"` where the tokenizer has `{"`. What was seen more often than all else
    is what comes next time.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self._seen: OrderedDict[bytes, tuple[tuple[int, ...], int]] = OrderedDict()  # tokens, and how much is for them

    def learn(self, text: bytes, tokens: list[int]) -> None:
        """A forced text was to come, and these tokens came."""
        used = tuple(self._within(text, tokens)) if text else ()
        if not used:
            return
        known, weight = self._seen.get(text, (used, 0))
        weight += 1 if known[: len(used)] == used[: len(known)] else -1
        self._seen[text] = (max(known, used, key=len), weight) if weight > 0 else (used, 1)
        self._seen.move_to_end(text)
        if len(self._seen) > _REMEMBERED:
            self._seen.popitem(last=False)

    def _within(self, text: bytes, tokens: list[int]) -> list[int]:
        """The first tokens that spell a part of a text; the last may go beyond it."""
        used, spelled = list[int](), b""
        for token in tokens:
            piece = self.vocabulary.pieces[token]
            spelled += piece
            if not piece or not (text.startswith(spelled) or spelled.startswith(text)):
                break
            used.append(token)
            if len(spelled) >= len(text):
                break
        return used

    def split(self, text: bytes, generated: list[int], most: int) -> list[int]:
        """At most so many tokens for a text behind others: as they came before, and else as the tokenizer has it."""
        found = list[int]()
        while text and len(found) < most:
            known, _ = self._seen.get(text, ((), 0))
            fresh = list(known) or self._usual(text, [*generated, *found])[:1]
            if not fresh:
                break
            found += fresh
            text = text[sum(len(self.vocabulary.pieces[token]) for token in fresh) :]
        return found[:most]

    def _usual(self, text: bytes, before: list[int]) -> list[int]:
        """The tokens that the tokenizer splits a text into behind others, if they spell it."""
        encode, pieces = self.vocabulary.encode, self.vocabulary.pieces
        if encode is None:
            return []
        context = before[-_CONTEXT:]
        try:
            whole = encode((b"".join(pieces[token] for token in context) + text).decode())
            tokens = whole[len(context) :] if whole[: len(context)] == context else encode(text.decode())
        except UnicodeDecodeError:  # it begins amid a character
            return []
        return tokens if b"".join(pieces[token] for token in tokens if token < len(pieces)) == text else []
