"""Masks of trees equal those of single texts for any tree; and forced text is drafted."""

import random
import time
from collections.abc import Sequence

import pytest
import torch
from tests.grammar.conftest import BYTES, STOP

from spectr.errors import ArgumentError
from spectr.grammar import CompiledGrammar, Grammar, GrammarCompiler
from spectr.grammar.forced import Spellings
from spectr.grammar.masks import allowed, keep_allowed, packed, words
from spectr.grammar.vocabulary import Vocabulary

GRAMMARS = [
    Grammar.json(), Grammar.regex("[a-c]{2,5}(é|ab)*"), Grammar.choice(["ab", "abc", "é", "è", "null"]),
    Grammar.ebnf('root ::= "[" (root root?)? "]" | [^a-z]{2}'),
    Grammar.json_schema({"type": "array", "items": {"type": ["integer", "null"]}, "maxItems": 3}),
    Grammar.ebnf('root ::= TagDispatch(("ab", call), loop_after_dispatch=true)\ncall ::= [a-c]{2} "é"'),
]  # fmt: skip


def mask(compiled: CompiledGrammar, text: Sequence[int]) -> torch.Tensor:
    return allowed(compiled.walk(text).masks([()]), BYTES.size)[0]


def texts(compiled: CompiledGrammar, count: int) -> list[list[int]]:
    """Return random prefixes that a grammar admits."""
    chance, found = random.Random(3), list[list[int]]()
    while len(found) < count:
        text = list[int]()
        for _ in range(chance.randint(0, 9)):
            open_ = [token for token in mask(compiled, text).nonzero()[:, 0].tolist() if token != STOP]
            if not open_:
                break
            text.append(chance.choice(open_))
        found.append(text)
    return found


@pytest.mark.parametrize("grammar", GRAMMARS, ids=repr)
def test_a_mask_has_the_tokens_that_may_follow(grammar: Grammar, compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(grammar)
    for text in texts(compiled, 6):
        found = mask(compiled, text)
        for token in range(BYTES.size):
            try:
                compiled.walk([*text, token])
                follows = True
            except ArgumentError:
                follows = False
            assert bool(found[token]) == follows, (text, token)


@pytest.mark.parametrize("grammar", GRAMMARS, ids=repr)
def test_masks_of_a_tree_are_those_of_its_texts(grammar: Grammar, compiler: GrammarCompiler) -> None:
    """Nodes may be in any order, repeated, or below tokens that are not allowed or end the text; the walk is
    unchanged."""
    compiled, chance = compiler.compile(grammar), random.Random(5)
    for text in texts(compiled, 8):
        paths = [[chance.choice([*range(256), STOP]) for _ in range(chance.randint(0, 3))] for _ in range(12)]
        for _ in range(12):
            path = list[int]()
            for _ in range(chance.randint(1, 4)):
                open_ = mask(compiled, [*text, *path]).nonzero()[:, 0].tolist() if STOP not in path else []
                path += [chance.choice(open_)] if open_ else []
            paths += [path, path[:-1]]
        chance.shuffle(paths)
        walk = compiled.walk(text)
        found = allowed(walk.masks(paths), BYTES.size)
        for path, row in zip(paths, found, strict=True):
            try:
                want = allowed(compiled.walk([*text, *path]).masks([()]), BYTES.size)[0]
            except ArgumentError:
                want = torch.zeros(BYTES.size, dtype=torch.bool)
            assert torch.equal(row, want), path
        assert torch.equal(walk.masks([()])[0], compiled.walk(text).masks([()])[0])


def test_no_surrogates_are_admitted(compiler: GrammarCompiler) -> None:
    """xgrammar admits surrogates, which UTF-8 does not have, where a grammar excludes some characters."""
    compiled = compiler.compile(Grammar.ebnf("root ::= [^a]+"))
    assert mask(compiled, []).nonzero()[:, 0].tolist().count(0xED) == 1
    after = mask(compiled, [0xED])
    assert [token for token in range(256) if after[token]] == list(range(0x80, 0xA0))
    inside = allowed(compiled.walk([0x20]).masks([[0xED], [0x20, 0xED]]), BYTES.size)
    assert torch.equal(inside[0], after)
    assert torch.equal(inside[1], after)
    pieces = Vocabulary((b"\xed\xa0\x80", b"\xed\x9f\xbf", b"x", b""), frozenset({3}))
    assert pieces.pieces[0]  # `Vocabulary.of` would drop these tokens


def test_packed_masks_and_logits() -> None:
    chance = torch.Generator().manual_seed(3)
    for size in (1, 31, 32, 33, 64, 100):
        bits = torch.rand(2, 3, size, generator=chance) < 0.5
        bits[0, 0], bits[1, 1] = False, True
        numbers = packed(bits)
        assert numbers.shape == (2, 3, words(size))
        assert torch.equal(allowed(numbers, size), bits)
        logits = torch.randn(2, 3, size, generator=chance)
        found = keep_allowed(logits, numbers)
        assert torch.equal(found.isinf(), ~bits & bits.any(-1, keepdim=True))
        assert torch.equal(found[~found.isinf()], logits[~found.isinf()])


def test_texts_that_leave_their_grammar(compiler: GrammarCompiler) -> None:
    compiled = compiler.compile(Grammar.choice(["ab"]))
    with pytest.raises(ArgumentError, match="token 99 at index 1 of"):
        compiled.walk([97, 99])
    with pytest.raises(ArgumentError, match="does not"):
        compiled.walk([97, STOP])
    walk = compiled.walk([97, 98, STOP])
    assert walk.has_ended
    assert not walk.masks([(), [97]]).any()
    assert walk.forced(9) == []


def test_a_grammar_that_gets_slower_with_each_token(compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """A highly ambiguous text ends with an error, and no mask takes forever."""
    monkeypatch.setattr("spectr.grammar.walk._PATIENCE", 0.05)
    walk = compiler.compile(Grammar.ebnf('root ::= s\ns ::= s s | "a" | ""')).walk()
    start = time.perf_counter()
    for _ in range(5_000):
        walk.masks([(), [97], [97, 97]])
        walk.forced(8)
        if walk.error is not None:
            break
        walk.commit([97])
    assert str(walk.error).startswith("a grammar must determine the next tokens within 0.05 seconds")
    assert not walk.masks([()]).any()
    assert walk.forced(8) == []
    assert time.perf_counter() - start < 60


# Text that is forced


def _encode(text: str) -> list[int]:
    """Encode greedily by the longest tokens."""
    left, found = text.encode(), list[int]()
    while left:
        found.append(
            max((t for t, p in enumerate(BYTES.pieces) if p and left.startswith(p)), key=lambda t: len(BYTES.pieces[t]))
        )
        left = left[len(BYTES.pieces[found[-1]]) :]
    return found


SPELLING = Vocabulary(BYTES.pieces, BYTES.stops, _encode)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer", "maximum": 9, "minimum": 0}},
    "required": ["name", "age"],
}


def forced(grammar: Grammar, text: str, most: int = 40) -> tuple[str, bool]:
    """Return the drafted text, and whether it ends there."""
    compiled = GrammarCompiler(SPELLING).compile(grammar)
    tokens = compiled.walk(_encode(text)).forced(most)
    return b"".join(SPELLING.pieces[token] for token in tokens).decode(), STOP in tokens


@pytest.mark.parametrize(
    ("layout", "text", "want"),
    [
        ("line", "", '{"name": "'), ("line", '{"na', 'me": "'), ("line", '{"name": "x', ""),
        ("line", '{"name": "x"', ', "age":'), ("compact", '{"name":"x"', ',"age":'), ("any", "", '{"name": "'),
        ("any", '{\n  "name":"x",', ' "age":'), ("any", '{"name":"x"', ', "age":'),
        ("any", '{\n "name": "a,b",\n ', '"age":'), ("any", '{\n "name":"a,b",', '"age":'),
    ],
)  # fmt: skip
def test_text_that_is_forced(layout: str, text: str, want: str) -> None:
    assert forced(Grammar.json_schema(SCHEMA, layout=layout), text) == (want, False)  # type: ignore[arg-type]


def test_optional_spaces_are_drafted_as_before() -> None:
    """If only spaces are undetermined, they are drafted as they were after the same character before."""
    grammar = Grammar.json_schema({"type": "array", "items": {"const": "abcd"}, "minItems": 9, "maxItems": 9})
    assert forced(grammar, '["abcd",')[0].startswith(' "abcd"')
    assert forced(grammar, '["abcd","abcd",')[0].startswith('"abcd","abcd"')
    assert forced(grammar, '[\n  "abcd",\n  "abcd",')[0].startswith('\n  "abcd",\n  "abcd"')


def test_an_end_that_is_forced() -> None:
    assert forced(Grammar.json_schema(SCHEMA, layout="line"), '{"name": "x", "age": 3') == ("}", True)
    assert forced(Grammar.json_schema(SCHEMA, layout="line"), '{"name": "x", "age": 3}') == ("", True)
    assert forced(Grammar.choice(["abc", "abcde"]), "") == ("abc", False)
    assert forced(Grammar.choice(["abc"]), "", most=2) == ("abc", False)
    assert forced(Grammar.choice(["abc"]), "a") == ("bc", True)


def test_characters_that_begin_alike() -> None:
    """Only their first byte is forced, which is not text."""
    assert forced(Grammar.choice(["né", "nè"]), "") == ("n", False)
    assert forced(Grammar.choice(["é", "è"]), "") == ("", False)


def test_spellings_are_learnt() -> None:
    """A text is drafted in the tokens that the model used the last time, also in another text."""
    compiled = GrammarCompiler(SPELLING).compile(Grammar.json_schema(SCHEMA, layout="line"))
    walk = compiled.walk()
    quote, name = ord('"'), [ord(sign) for sign in "name"]
    assert walk.forced(9)[0] == SPELLING.pieces.index(b'{"')
    walk.commit([ord("{")])
    assert walk.forced(9)[:2] == [quote, ord("n")]
    walk.commit([quote, *name[:2]])
    walk.forced(9)
    walk.commit([*name[2:], quote, ord(":")])
    again = compiled.walk()
    assert again.forced(9)[:6] == [ord("{"), quote, *name]
    for _ in range(3):  # the second split must be seen more often than the first
        other = compiled.walk()
        other.forced(9)
        other.commit([SPELLING.pieces.index(b'{"')])
    assert compiled.walk().forced(9)[0] == SPELLING.pieces.index(b'{"')


def test_a_token_that_goes_beyond_forced_text() -> None:
    spellings = Spellings(SPELLING)
    quote = SPELLING.pieces.index(b'": ')
    spellings.learn(b'x"', [ord("x"), quote, 7])
    assert spellings.split(b'x"', [], 9) == [ord("x"), quote]
    spellings.learn(b"", [1, 2, 3])
    spellings.learn(b"xy", [ord("z")])
    assert spellings.split(b"xy", [], 9) == [ord("x"), ord("y")]
    for number in range(5_000):
        spellings.learn(str(number).encode(), [ord(str(number)[0])])
    assert len(spellings._seen) == 4096


def test_without_a_tokenizer_nothing_is_forced(compiler: GrammarCompiler) -> None:
    assert compiler.compile(Grammar.choice(["abc"])).walk().forced(9) == []
