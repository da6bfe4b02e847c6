"""Grammars over the twelve tokens of the tests' small models, and the same grammars as functions of the text."""

from collections.abc import Callable
from dataclasses import replace

import torch

from spectr.engine import Request
from spectr.grammar import CompiledGrammar, Grammar, GrammarCompiler
from spectr.grammar.masks import allowed
from spectr.grammar.vocabulary import Vocabulary

__all__ = ["ENDS", "GRAMMARS", "LETTERS", "as_hook", "compiled", "hooked"]

_PIECES = (b"a", b"b", b"c", b"ab", b"[", b"]", b",", b"ca", b"1", b"\xc3", b"\xa9", b"")


def encode(text: str) -> list[int]:
    """Encode a text with the longest tokens first; characters that no token spells are left out."""
    left, found = text.encode(), list[int]()
    while left:
        best = max(
            (t for t, piece in enumerate(_PIECES) if piece and left.startswith(piece)), key=_length, default=None
        )
        found += [] if best is None else [best]
        left = left[1 if best is None else _length(best) :]
    return found


def _length(token: int) -> int:
    return len(_PIECES[token])


LETTERS = Vocabulary(_PIECES, frozenset({11}), encode)
"""Tokens that spell one another's texts, and both halves of é; the last ends a text."""
ENDS = frozenset({11})

GRAMMARS = {
    "letters": Grammar.regex("[abc]{3,40}"),
    "pairs": Grammar.regex("(ab|ca|1)*b?"),
    "lists": Grammar.ebnf('root ::= "[" (item ("," item)*)? "]"\nitem ::= root | [abc1é]{1,4}'),
    "words": Grammar.choice(["abcab1", "abca", "cab1,cab", "é,é,é", "[a]"]),
    "free": Grammar.regex("[abc1,]*"),
    "anything": Grammar.regex("[abc1,é]*"),
    "tags": Grammar.ebnf('root ::= TagDispatch(("[", call), loop_after_dispatch=true)\ncall ::= [abc1]{1,3} "]"'),
    "forced": Grammar.ebnf('root ::= "abca" item "1,1,1" item "bcab"\nitem ::= [abc] | "[" item "]"'),
}

_COMPILER = GrammarCompiler(LETTERS)


def compiled(name: str) -> CompiledGrammar:
    return _COMPILER.compile(GRAMMARS[name])


def as_hook(grammar: CompiledGrammar, prompt: int) -> Callable[[list[int]], torch.Tensor]:
    """Return a function of the text that gives the tokens which may follow, by a new walk over what was generated
    after a prompt of `prompt` tokens."""

    def hook(text: list[int]) -> torch.Tensor:
        return allowed(grammar.walk(text[prompt:]).masks([()]), grammar.vocabulary.size)[0]

    return hook


def hooked(request: Request) -> Request:
    """Return the request with its grammar as a function."""
    assert request.grammar is not None
    hook = as_hook(request.grammar, len(request.prompt))
    return replace(request, grammar=None, policy=replace(request.policy, allowed=hook))
