"""Regular expressions match the same texts as Python's `re`, by the rules and by xgrammar's masks."""

import random
import re

import pytest
from tests.grammar.conftest import admits, draw, matches

from spectr.errors import ArgumentError
from spectr.grammar import Grammar, GrammarCompiler
from spectr.grammar.ebnf import prune_rules, unroll
from spectr.grammar.expressions import Repeat
from spectr.grammar.regex import full_match, search

PATTERNS = [
    "", "a", "ab|a", "(a|ab)(c|bcd)", "a*b+c?", "a{2}b{1,3}c{0,}", "(ab)*", "(a|b){2,4}", "(?:a+b)*c", "(?P<n>a)b?",
    "(?<n>a|b)*", "((a*)*)*", "(a?){3}", "a{0}b", "a{b}", "x|", "[abc]+", "[^abc]", "[a-c-]*",
    r"[\]\\^-]+", r"\d{2,3}-\w+", r"\s*\S+", r"\Dx", r"[\d.]+", r"\.\*\(\)\[\]\{\}", r"\x41\u0042",
    r"\n\t", "a.c", "é+|[à-ï]", "😀?", "(a+?)(b*?)", "^abc$", "^(a|b)$|^c$", "(^a|^b)c", r"[\b]", "a b-c_d",
]  # fmt: skip
ALPHABET = 'abcx01-.é😀 ]\\^*({[A B\n\tïà"_'


def _texts(pattern: str) -> list[str]:
    chance = random.Random(pattern)
    signs = [sign for sign in pattern if sign not in "|?+*"] + list(ALPHABET)
    return ["", *("".join(chance.choices(signs, k=chance.randint(1, 6))) for _ in range(300))]


def _python(pattern: str) -> "re.Pattern[str]":
    """Compile the pattern in Python, with the grammar's ASCII classes."""
    return re.compile(re.sub(r"\(\?<(\w)", r"(?P<\1", pattern), re.ASCII)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_matches_what_python_matches(pattern: str) -> None:
    rules = {"root": full_match(pattern)}
    rolled = unroll(prune_rules(rules, "root") or {})
    want = _python(pattern)
    texts = _texts(pattern)
    found = [matches(rules["root"], text) for text in texts]
    assert found == [want.fullmatch(text) is not None for text in texts]
    assert [matches(rolled["root"], text, rolled) for text in texts] == found


@pytest.mark.parametrize("pattern", PATTERNS)
def test_masks_admit_what_matches(pattern: str, compiler: GrammarCompiler) -> None:
    """Drawn texts match, and random texts are admitted if and only if they match."""
    compiled, want = compiler.compile(Grammar.regex(pattern)), _python(pattern)
    for seed in range(20):
        drawn = draw(compiled, seed, 40)
        assert not drawn.ended or want.fullmatch(drawn.text.decode()), drawn.text
    for text in _texts(pattern)[:40]:
        assert admits(compiled, text) == (want.fullmatch(text) is not None), text


@pytest.mark.parametrize("pattern", ["a", "^a", "a$", "^ab*$", "^a|b$", "a|^b", "(a|b)c$", "^(a|b)", "", r"\d@\d"])
def test_search_finds_what_python_finds(pattern: str) -> None:
    body, want = search(pattern), re.compile(pattern)
    for text in _texts("ab@01c" + pattern):
        if "\n" not in text:
            assert matches(body, text) == (want.search(text) is not None), text


REFUSED = {
    "plain groups": ["(?=a)b", "(?!a)b", "(?<=a)b", "(?<!a)b", "(?i)a", "(?P=n)", "(?>a)"],
    "must not have": [r"(a)\1", r"\bword\b", r"\p{L}", r"\k<n>", r"\Aa\Z"],
    "must not end": ["a(b", "[a", "\\", "(?", "(?:a"],
    "must close the name": ["(?<name"],
    "without a": ["a)b", ")"],
    "before . to repeat": ["*a", "a|+", "(?:?a)"],
    "repeat a repetition": ["a**", "a{2}{3}", "a*+", "a+{2}"],
    "at most as often": ["a{3,2}"],
    "must give a minimum": ["a{,3}"],
    "at its beginning": ["a^b", "a$b", "(^a)*", "(?:a$)+b"],
    "must not repeat an anchor": ["^*", "a$?"],
    "ranges": ["[b-a]", r"[\d-z]", r"[a-\w]"],
    "by their number": [r"\012"],
    "nested groups": ["(" * 200 + ")" * 200],
    "empty set": [r"[^\x00-\U0010ffff]"],
    "in a set as": ["[]a]", "[^]a]", "[]"],
}


@pytest.mark.parametrize(("pattern", "said"), [(text, said) for said, texts in REFUSED.items() for text in texts])
def test_what_is_no_regular_language_is_refused(pattern: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        Grammar.regex(pattern)


def test_a_regex_that_nothing_matches() -> None:
    assert prune_rules({"root": Repeat(full_match("a"), 3, 2)}, "root") is None
    with pytest.raises(ArgumentError, match="must be a string"):
        Grammar.regex(7)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="at most 262144 bytes"):
        Grammar.regex("a" * 300_000)
    with pytest.raises(ArgumentError, match="lone surrogate"):
        Grammar.regex("\ud800")


@pytest.mark.parametrize("letter", "dwsDWS")
def test_classes_are_those_on_which_dialects_agree(letter: str) -> None:
    """Python matches every character of the class, both with ASCII and with Unicode classes."""
    body = full_match(f"\\{letter}")
    signs = [chr(code) for code in (*range(0x300), 0x660, 0x966, 0x2003, 0x2028, 0x3000, 0xFEFF, 0x1D7CE, 0x1F600)]
    found = [sign for sign in signs if matches(body, sign)]
    for flag in (re.ASCII, re.UNICODE):
        assert all(re.fullmatch(f"\\{letter}", sign, flag) for sign in found)
    assert {sign for sign in found if sign.isascii()} >= {
        sign for sign in signs[:128] if re.fullmatch(f"\\{letter}", sign) and not 0x1C <= ord(sign) <= 0x1F
    }
