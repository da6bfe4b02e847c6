"""Text that a grammar determines completely, as tokens to draft.

The tokens are a guess: the model may split a text into other tokens, and optional spaces are assumed to be as
before."""

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

_CONTEXT = 4  # preceding tokens that are tokenised again together with a text
_SPACES = b" \n\t\r"
_USUAL = {b":": b" ", b",": b" "}  # spaces assumed after characters that did not occur before
_REMEMBERED = 4096  # texts whose spellings are kept
_MANY = 4096  # this many allowed tokens surely do not all begin with the same byte
_PATIENCE = 0.01  # limit on the processor time for finding forced text, in seconds
_MOST_FORCED = 4096  # repetitions in a grammar whose forced texts xgrammar may return at once
_LEAST_COUNT = re.compile(r"\{(\d{1,20})")  # the minimum number of repetitions


@lru_cache(maxsize=256)
def forces_little(grammar: Grammar) -> bool:
    """Return whether all text that a grammar forces is short.

    A grammar written by a user may force an endless text (`root ::= "a" root`), and a regex `a{1000000}` a long one;
    xgrammar would return all of it at once."""
    least = math.prod(max(1, int(count)) for count in _LEAST_COUNT.findall(grammar.text))
    return grammar.kind != "ebnf" and least <= _MOST_FORCED


def forced_text(
    matcher: Any, vocabulary: Vocabulary, before: bytes, most: int, *, is_short: bool = True
) -> tuple[bytes, bool]:
    """Return the text that must come next except for spaces, about `most` bytes, and whether the output ends with it.

    `matcher` has consumed the text `before`. Unless `is_short`, forced text is found byte by byte."""
    ahead, text = matcher.fork(), b""
    late = time.thread_time() + _PATIENCE
    while len(text) < most and time.thread_time() < late:
        following = (_jump(ahead) if is_short else b"") or _jump_over_spaces(ahead, vocabulary, before + text)
        if not following or not ahead.accept_string(following):
            break
        text += following
    if ahead.is_completed() and set(ahead.stop_token_ids).issuperset(_open(ahead, vocabulary).tolist()):
        return text, True
    return text.rstrip(b" "), False  # a space usually belongs to the token after it


def _jump(matcher: Any) -> bytes:
    """Return the text that must come next; xgrammar fails on the first byte of a character whose last is
    undetermined."""
    try:
        return str(matcher.find_jump_forward_string()).encode()
    except UnicodeDecodeError as error:
        return bytes(error.object[: error.start])


def _jump_over_spaces(matcher: Any, vocabulary: Vocabulary, text: bytes) -> bytes:
    """Return the text that must come next if spaces are optional: the spaces that followed the same character the last
    time, and the text after them."""
    last = text[-1:]
    place = text.rfind(last, 0, len(text) - 1) if last else -1
    after = text[place + 1 :]
    spaces = after[: len(after) - len(after.lstrip(_SPACES))] if place >= 0 else _USUAL.get(last, b"")
    if spaces:
        matcher = matcher.fork()
        if not matcher.accept_string(spaces):
            return b""
    if matcher.is_completed():
        return b""  # the text may also end here
    open_ = _open(matcher, vocabulary)
    following = vocabulary.first_bytes(open_) - set(_SPACES) if len(open_) < _MANY else set()
    return spaces + bytes(following) if len(following) == 1 and max(following) < 0x80 else b""


def _open(matcher: Any, vocabulary: Vocabulary) -> "np.ndarray[Any, Any]":
    """Return the ids of the tokens that may follow."""
    mask = torch.zeros(1, words(vocabulary.size), dtype=torch.int32)
    matcher.fill_next_token_bitmask(mask)
    return np.flatnonzero(np.unpackbits(mask.numpy().view(np.uint8), bitorder="little", count=vocabulary.size))


class Spellings:
    """Records how forced texts were split into tokens before, in this text or in others.

    A model may split a text differently from the tokenizer, such as `{` and `"` in place of `{"`. The majority of the
    splits seen so far is used the next time.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        # Tokens, and their lead in the majority vote.
        self._seen: OrderedDict[bytes, tuple[tuple[int, ...], int]] = OrderedDict()

    def learn(self, text: bytes, tokens: list[int]) -> None:
        """Record that the forced text `text` was generated as these tokens."""
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
        """Return the leading tokens that spell a prefix of a text; the last may extend beyond it."""
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
        """Split a text that follows `generated` into at most `most` tokens: as seen before, or else as the tokenizer
        does."""
        tokens = list[int]()
        while text and len(tokens) < most:
            known, _ = self._seen.get(text, ((), 0))
            new = list(known) or self._usual(text, [*generated, *tokens])[:1]
            if not new:
                break
            tokens += new
            text = text[sum(len(self.vocabulary.pieces[token]) for token in new) :]
        return tokens[:most]

    def _usual(self, text: bytes, before: list[int]) -> list[int]:
        """Return the tokenizer's tokens for a text that follows `before`, if they spell it."""
        encode, pieces = self.vocabulary.encode, self.vocabulary.pieces
        if encode is None:
            return []
        context = before[-_CONTEXT:]
        try:
            whole = encode((b"".join(pieces[token] for token in context) + text).decode())
            tokens = whole[len(context) :] if whole[: len(context)] == context else encode(text.decode())
        except UnicodeDecodeError:  # the text begins inside a character
            return []
        return tokens if b"".join(pieces[token] for token in tokens if token < len(pieces)) == text else []
