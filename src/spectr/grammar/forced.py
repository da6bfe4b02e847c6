"""Text that a grammar leaves no choice about, as tokens to draft. A guess: how a text is split into tokens is left to
the model, and where spaces may stand or not, they are taken to stand as before."""

from typing import Any

import numpy as np
import torch

from spectr.grammar.masks import words
from spectr.grammar.vocabulary import Vocabulary

__all__ = ["forced_tokens"]

_SIGNS = 12  # characters for each token that is wanted, at most
_CONTEXT = 4  # tokens before that are split into tokens again, to see where the next one begins
_SPACES = b" \n\t\r"
_USUAL = {b":": b" ", b",": b" "}  # spaces after signs that did not come before


def forced_tokens(matcher: Any, vocabulary: Vocabulary, generated: list[int], most: int) -> list[int]:
    """At most so many tokens that should come next, given the tokens `generated` so far, behind which a matcher
    stands."""
    if vocabulary.encode is None:
        return []
    ahead, before = matcher.fork(), b"".join(vocabulary.pieces[token] for token in generated)
    text = b""
    while len(text) < _SIGNS * most:
        fresh = _jump(ahead) or _but_for_spaces(ahead, vocabulary, before + text)
        if not fresh or not ahead.accept_string(fresh):
            break
        text += fresh
    is_end = ahead.is_completed() and _must_stop(ahead, vocabulary)
    tokens = _spelled(text if is_end else text.rstrip(b" "), vocabulary, generated)
    return [*tokens, *([min(vocabulary.stops)] if is_end and (tokens or not text) else [])][:most]


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
    following = vocabulary.first_bytes(_open(matcher, vocabulary)) - set(_SPACES)
    return spaces + bytes(following) if len(following) == 1 and max(following) < 0x80 else b""


def _open(matcher: Any, vocabulary: Vocabulary) -> "np.ndarray[Any, Any]":
    """The tokens that may follow."""
    mask = torch.zeros(1, words(vocabulary.size), dtype=torch.int32)
    matcher.fill_next_token_bitmask(mask)
    return np.flatnonzero(np.unpackbits(mask.numpy().view(np.uint8), bitorder="little", count=vocabulary.size))


def _must_stop(matcher: Any, vocabulary: Vocabulary) -> bool:
    """Whether nothing but a stop token may follow."""
    return vocabulary.stops.issuperset(_open(matcher, vocabulary).tolist())


def _spelled(text: bytes, vocabulary: Vocabulary, generated: list[int]) -> list[int]:
    """The tokens that the tokenizer splits a text into behind others, if they spell it."""
    assert vocabulary.encode is not None
    if not text:
        return []
    context = generated[-_CONTEXT:]
    before = b"".join(vocabulary.pieces[token] for token in context)
    try:
        whole = vocabulary.encode((before + text).decode())
        tokens = whole[len(context) :] if whole[: len(context)] == context else vocabulary.encode(text.decode())
    except UnicodeDecodeError:  # it begins amid a character
        return []
    spelled = b"".join(vocabulary.pieces[token] for token in tokens if token < vocabulary.size)
    return tokens if spelled == text else []
