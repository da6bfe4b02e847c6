"""A vocabulary of bytes and a few longer tokens, random texts of a grammar, and a plain Python matcher of rules."""

import random
from collections.abc import Mapping
from dataclasses import dataclass

import pytest

from spectr.grammar import CompiledGrammar, GrammarCompiler
from spectr.grammar.expressions import Chars, Choice, Expression, Literal, Ref, Repeat, Sequence
from spectr.grammar.masks import allowed
from spectr.grammar.vocabulary import Vocabulary

LONGER = [
    b'": ',
    b'", "',
    b'{"',
    b'"}',
    b"[1",
    b"null",
    b"true",
    b"false",
    b"\\u00",
    "é".encode(),
    b"ab",
    b" the",
    b"\n  ",
]
STOP = 256 + len(LONGER)
BYTES = Vocabulary((*(bytes([byte]) for byte in range(256)), *LONGER, b"", b""), frozenset({STOP}))
"""Every byte, some longer tokens, a stop token, and one that is no text."""


@pytest.fixture(scope="session")
def compiler() -> GrammarCompiler:
    return GrammarCompiler(BYTES)


def ends(body: Expression, rules: Mapping[str, Expression], text: str, at: int) -> set[int]:
    """Return where matches of an expression that begin at a position of a text may end, by definition."""
    match body:
        case Literal(literal):
            return {at + len(literal)} if text.startswith(literal, at) else set()
        case Chars():
            return {at + 1} if at < len(text) and text[at] in body else set()
        case Ref(name):
            return ends(rules[name], rules, text, at)
        case Sequence(parts):
            found = {at}
            for part in parts:
                found = {end for start in found for end in ends(part, rules, text, start)}
            return found
        case Choice(options):
            return {end for option in options for end in ends(option, rules, text, at)}
        case Repeat(inner, least, most):
            found, level = ({at} if least == 0 else set()), {at}
            for turn in range(1, (len(text) - at + least if most is None else most) + 1):
                level = {end for start in level for end in ends(inner, rules, text, start)} - (
                    found if turn > least else set()
                )
                found |= level if turn >= least else set()
            return found


def matches(body: Expression, text: str, rules: Mapping[str, Expression] | None = None) -> bool:
    return len(text) in ends(body, rules or {}, text, 0)


def admits(compiled: CompiledGrammar, text: str | bytes) -> bool:
    """Return whether a grammar admits a text, byte by byte, with its end."""
    walk = compiled.walk()
    for byte in text if isinstance(text, bytes) else text.encode():
        if not allowed(walk.masks([()]), BYTES.size)[0, byte]:
            return False
        walk.commit([byte])
    return bool(allowed(walk.masks([()]), BYTES.size)[0, STOP])


@dataclass(frozen=True)
class Drawn:
    """A text drawn from a grammar, and whether it is complete."""

    text: bytes
    ended: bool


def draw(compiled: CompiledGrammar, seed: int, most: int = 250) -> Drawn:
    """Draw a random text of allowed tokens; closing tokens become likelier as the text grows."""
    chance, walk, text = random.Random(seed), compiled.walk(), b""
    for count in range(most):
        open_ = allowed(walk.masks([()]), BYTES.size)[0].nonzero()[:, 0].tolist()
        assert open_, text
        weights = [_weight(BYTES.pieces[token], count) for token in open_]
        token = chance.choices(open_, weights)[0]
        if token == STOP:
            return Drawn(text, ended=True)
        walk.commit([token])
        text += BYTES.pieces[token]
    return Drawn(text, ended=False)


def _weight(piece: bytes, count: int) -> float:
    if not piece:
        return 20.0 + count  # the end
    if piece[:1] in b'"}]':
        return 4.0 + count / 4
    if piece[0] >= 128:
        return 0.2
    return 0.1 if piece.isspace() else 1.0 if piece.isalnum() else 0.5
