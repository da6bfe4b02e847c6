"""Grammars of calls admit valid calls and nothing else, and what they admit is read as calls."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest

from spectr.calls import CallForm, CallReader, Function, call_grammar
from spectr.errors import ArgumentError
from spectr.grammar import Grammar, GrammarCompiler
from spectr.grammar.vocabulary import Vocabulary

pytest.importorskip("xgrammar", reason="needs xgrammar: pip install 'spectr-lm[grammar]'")

TAGS = CallForm("<tool_call>\n", "\n</tool_call>", "arguments", "\n")
BARE = CallForm("", "", "parameters", None)
CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/name"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"name": {"enum": ["Oslo", "Rome"]}},
}
WEATHER, NOW, FREE = Function("weather", CITY, True), Function("now", None, True), Function("free", CITY, False)
END = 256
COMPILER = GrammarCompiler(Vocabulary((*(bytes([byte]) for byte in range(256)), b""), frozenset({END})))


def call(name: str, arguments: Any, form: CallForm = TAGS) -> str:
    return f'{form.begin}{{"name": "{name}", "{form.key}": {json.dumps(arguments)}}}{form.end}'


def admits(grammar: Grammar, text: str) -> bool:
    """Return whether a text may be written to its end."""
    walk = COMPILER.compile(grammar).walk()
    try:
        walk.commit([*text.encode(), END])
    except ArgumentError:  # it does not match
        return False
    return walk.has_ended


OSLO, ROME = call("weather", {"city": "Oslo"}), call("weather", {"city": "Rome", "days": 3})
WRONG = [call("weather", {"city": "Bonn"}), call("weather", {}), call("now", {"a": 1}), call("other", {})]


def test_required_calls() -> None:
    """Where calls are required the text consists of them, and their arguments are valid."""
    grammar = call_grammar(TAGS, [WEATHER, NOW, FREE], is_required=True, several=True)
    for text in (OSLO, ROME, call("now", {}), f"{OSLO}\n{call('now', {})}\n{ROME}", call("free", {"x": [1]})):
        assert admits(grammar, text), text
    for text in ("", "Hello", f"Hello {OSLO}", f"{OSLO}{ROME}", f"{OSLO} bye", OSLO[:-3], *WRONG):
        assert not admits(grammar, text), text
    one = call_grammar(TAGS, [WEATHER, NOW], is_required=True, several=False)
    assert admits(one, OSLO)
    assert not admits(one, f"{OSLO}\n{ROME}")


def test_optional_calls() -> None:
    """Where calls are optional any text may stand around them, and a mark must be followed by a valid call."""
    grammar = call_grammar(TAGS, [WEATHER, NOW], is_required=False, several=True)
    for text in (
        "",
        "Hello <tool",
        "é🙂 </tool_call>",
        OSLO,
        f"Let me see.\n{OSLO}\n{call('now', {})} So",
        f"{OSLO}{ROME}",
    ):
        assert admits(grammar, text), text
    for text in ("<tool_call>", "a <tool_call> b", OSLO[:-3], *WRONG, f"{OSLO} {WRONG[0]}"):
        assert not admits(grammar, text), text
    one = call_grammar(TAGS, [WEATHER], is_required=False, several=False)
    assert admits(one, f"Let me see. {OSLO}")
    assert not admits(one, f"{OSLO}\n{ROME}")


def test_a_form_without_marks() -> None:
    """A call without marks can be required, and cannot be told from text in advance."""
    grammar = call_grammar(BARE, [WEATHER], is_required=True, several=True)
    assert admits(grammar, call("weather", {"city": "Rome"}, BARE))
    assert not admits(grammar, call("weather", {"city": "Rome"}, BARE) * 2)
    with pytest.raises(ArgumentError, match="tool_choice required"):
        call_grammar(BARE, [WEATHER], is_required=False, several=True)


def test_errors_of_a_schema_name_the_function() -> None:
    """A schema that a grammar cannot keep is refused with its place among the tools."""
    bad = replace(WEATHER, name="bad", parameters={"type": "object", "properties": {"a": {"uniqueItems": True}}})
    with pytest.raises(ArgumentError, match=r"tools\.1\.function\.parameters/properties/a"):
        call_grammar(TAGS, [WEATHER, bad], is_required=True, several=True)


def test_references_stay_within_their_schema() -> None:
    """References are moved with their schema; names of properties and data that look like keywords are not."""
    schema = {
        "type": "object",
        "properties": {"enum": {"$ref": "#/$defs/const"}, "$ref": {"const": {"$ref": "#"}}},
        "required": ["enum", "$ref"],
        "$defs": {"const": {"type": "boolean"}},
    }
    grammar = call_grammar(TAGS, [NOW, Function("f", schema, True)], is_required=True, several=False)
    assert admits(grammar, call("f", {"enum": True, "$ref": {"$ref": "#"}}))
    assert not admits(grammar, call("f", {"enum": 1, "$ref": {"$ref": "#"}}))


def test_what_a_grammar_admits_is_read_as_calls() -> None:
    """A text that is written at random under a grammar of required calls is read as calls with valid arguments."""
    compiled = COMPILER.compile(call_grammar(TAGS, [WEATHER, NOW, FREE], is_required=True, several=True))
    for seed in range(20):
        draw, tokens, walk = random.Random(seed), list[int](), compiled.walk()
        while not walk.has_ended and len(tokens) < 2000:
            mask = walk.masks([()])[0].tolist()
            open_ = [token for token in range(END + 1) if mask[token // 32] >> token % 32 & 1]
            likely = [token for token in open_ if chr(token) in '"}],' or token == END]
            tokens.append(draw.choice(likely if likely and draw.random() < 0.7 else open_))
            walk.commit(tokens[-1:])
        if not walk.has_ended:
            continue
        text, reader = bytes(tokens[:-1]).decode(), CallReader(TAGS, ["weather", "now", "free"])
        piece = reader.feed(text)
        assert (piece.text, reader.finish().text) == ("", "")
        assert reader.count == text.count('<tool_call>\n{"name": ') >= 1
        for made in piece.calls:
            found = json.loads(made.arguments)
            assert made.name != "weather" or found["city"] in ("Oslo", "Rome")
            assert made.name != "now" or found == {}
