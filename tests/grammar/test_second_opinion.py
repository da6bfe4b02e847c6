"""The masks agree with those of another implementation, llguidance, after the same texts.

For forced text, llguidance's mask has only the tokens into which its tokenizer would split it, although it accepts
others: so each token that its mask lacks is tried individually.
"""

import random
from typing import Any

import llguidance
import llguidance.numpy
import numpy as np
import pytest
import torch
from tests.grammar.conftest import BYTES, STOP
from tests.grammar.test_regex import PATTERNS

from spectr.grammar import CompiledGrammar, Grammar, GrammarCompiler
from spectr.grammar.masks import allowed


class _Bytes:
    """The test vocabulary in llguidance's form."""

    eos_token_id, bos_token_id, special_token_ids = STOP, None, [STOP, STOP + 1]
    tokens = [piece or b"<%d>" % token for token, piece in enumerate(BYTES.pieces)]  # noqa: RUF012

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes()), n_vocab=BYTES.size)


class Other:
    """The state of a text in llguidance."""

    def __init__(self, grammar: str) -> None:
        self.matcher: Any = llguidance.LLMatcher(TOKENIZER, grammar, log_level=0)
        assert not self.matcher.is_error(), self.matcher.get_error()

    def mask(self) -> torch.Tensor:
        bits = llguidance.numpy.allocate_token_bitmask(1, BYTES.size)
        llguidance.numpy.fill_next_token_bitmask(self.matcher, bits)
        return torch.from_numpy(np.unpackbits(bits.view(np.uint8), bitorder="little", count=BYTES.size)).bool()

    def takes(self, token: int) -> bool:
        return bool(self.matcher.validate_tokens([token]) == 1)

    def commit(self, token: int) -> None:
        assert self.matcher.consume_token(token)


def compare(compiled: CompiledGrammar, grammar: str, seed: int, length: int = 25) -> int:
    """Walk both along one random text, compare the masks after each token, and return the number of tokens."""
    chance, ours, theirs = random.Random(seed), compiled.walk(), Other(grammar)
    for count in range(length):
        found, want = allowed(ours.masks([()]), BYTES.size)[0], theirs.mask()
        assert not (want & ~found).any(), count
        lacking = (found & ~want).nonzero()[:, 0].tolist()
        assert all(theirs.takes(token) for token in lacking), (count, lacking)
        assert not lacking or int(want.sum()) == 1
        open_ = [token for token in found.nonzero()[:, 0].tolist() if token != STOP]
        if not open_:
            return count
        weights = [0.3 if len(BYTES.pieces[token]) == 1 and BYTES.pieces[token][0] >= 128 else 1.0 for token in open_]
        token = chance.choices(open_, weights)[0]
        ours.commit([token])
        theirs.commit(token)
    return length


SHARED = [pattern for pattern in PATTERNS if not set(pattern) & {"^", "$", "é", "😀", "à"} and "\\" not in pattern]


@pytest.mark.parametrize(
    "pattern", [pattern for pattern in SHARED if pattern and "(?<" not in pattern and pattern != "a{b}"]
)
def test_regular_expressions(pattern: str, compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(Grammar.regex(pattern))
    other = llguidance.LLMatcher.grammar_from_regex(pattern.replace(".", r"[^\n\r\u{2028}\u{2029}]"))
    for seed in range(4):
        compare(compiled, other, seed)


LARK = {
    'root ::= "[" (root root?)? "]"': 'start: "[" (start start?)? "]"',
    'root ::= a ("," a)*\na ::= [ab]+ | "(" root ")"': 'start: a ("," a)*\na: /[ab]+/ | "(" start ")"',
    'root ::= "é" [à-ï]{1,3} "x"?': 'start: "é" /[à-ï]{1,3}/ "x"?',
}


@pytest.mark.parametrize("text", LARK)
def test_context_free_grammars(text: str, compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(Grammar.ebnf(text))
    for seed in range(6):
        compare(compiled, llguidance.LLMatcher.grammar_from_lark(LARK[text]), seed)


CLOSED = {"additionalProperties": False, "type": "object"}
SCHEMAS: list[Any] = [
    {"type": "boolean"}, {"enum": ["a", "abc", None]}, {"type": "integer", "minimum": -13, "maximum": 112},
    {"type": "integer", "minimum": 7, "maximum": 1234},
    {"type": "array", "items": {"type": "null"}, "minItems": 1, "maxItems": 3},
    {**CLOSED, "properties": {"a": {"type": "boolean"}, "b": {"enum": [1, 2]}}, "required": ["a", "b"]},
    {**CLOSED, "properties": {"a": {"type": "null"}, "b": {"type": "boolean"}}, "required": ["b"]},
    {"anyOf": [{"type": "null"}, {"type": "array", "prefixItems": [{"type": "boolean"}], "items": False}]},
    {"type": "string", "pattern": "^[a-c]{2,3}-[0-9]$"},
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=repr)
def test_schemas(schema: Any, compiler: GrammarCompiler) -> None:
    """Only schemas that both interpret alike: without arbitrary strings, whose escapes differ."""
    style: Any = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    other = llguidance.LLMatcher.grammar_from_json_schema(schema, overrides=style)
    compiled = compiler.compile(Grammar.json_schema(schema, layout="line"))
    for seed in range(6):
        assert compare(compiled, other, seed) > 0
