"""Calls are read from a text, and what is read does not depend on how the text is cut."""

import json
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spectr.calls import CallForm, CallReader

TAGS = CallForm("<tool_call>\n", "\n</tool_call>", "arguments", "\n")
BARE = CallForm("", "", "parameters", None)
OPEN = CallForm("<|call|>", "", "arguments", "")
NAMES = ["add", "get-it"]


@dataclass
class Read:
    """The text and the calls that the parts of a reader add up to."""

    text: str = ""
    calls: list[list[str]] = field(default_factory=list)


def read(form: CallForm, pieces: list[str]) -> Read:
    """Feed a reader with pieces, and add up what it returns."""
    reader, found = CallReader(form, NAMES), Read()
    for piece in [*map(reader.feed, pieces), reader.finish()]:
        found.text += piece.text
        assert len({call.number for call in piece.calls}) == len(piece.calls)
        for call in piece.calls:
            if call.name is not None:
                assert call.number == len(found.calls)
                found.calls.append([call.name, ""])
            assert call.number == len(found.calls) - 1
            found.calls[-1][1] += call.arguments
    assert reader.count == len(found.calls)
    return found


def call(name: str, arguments: Any, form: CallForm = TAGS) -> str:
    return f'{form.begin}{{"name": "{name}", "{form.key}": {json.dumps(arguments)}}}{form.end}'


def test_text_and_calls() -> None:
    """Text around calls is kept without the white space before them; arguments are passed on as they are written."""
    tricky = {"a": '}"\\</tool_call><tool_call>', "b": [{"c": {}}]}
    text = f"Let me see.\n{call('add', tricky)}\n{call('get-it', {})}"
    assert read(TAGS, [text]) == Read("Let me see.", [["add", json.dumps(tricky)], ["get-it", "{}"]])
    spaced = '<tool_call> { "name" : "add" ,\n"arguments" : {"a" :1} } </tool_call>Done.'
    assert read(TAGS, [spaced]) == Read("Done.", [["add", '{"a" :1}']])
    assert read(OPEN, [call("add", {"a": 1}, OPEN) + call("add", {}, OPEN)]).calls == [
        ["add", '{"a": 1}'],
        ["add", "{}"],
    ]


def test_a_call_without_marks_is_the_whole_answer() -> None:
    """Without marks only an answer that begins with a call is one."""
    assert read(BARE, ["\n", call("add", {"a": 1}, BARE), " \n"]) == Read("", [["add", '{"a": 1}']])
    for text in ('The answer is {"name": "add", "parameters": {}}', '{"name": "sub", "parameters": {}}', "{}", '{"na'):
        assert read(BARE, [text]) == Read(text)


@pytest.mark.parametrize(
    "text",
    [
        "", "  \n", "no call < here", "<tool_call>", "<tool_ca", "a\n<tool_call>\n[1]</tool_call>\n",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', '<tool_call>{"name": "add", "arguments": 3}',
        '<tool_call>{"arguments": {}, "name": "add"}</tool_call>', '<tool_call>\n{"name": "add", "arg',
        "<tool_call>" + " " * 600 + '{"name": "add", "arguments": {}}</tool_call>', "<<tool_call<tool_call x",
    ],
)  # fmt: skip
def test_what_is_no_call_is_text(text: str) -> None:
    """Text that looks like a call of a known function and is none is passed on unchanged."""
    assert read(TAGS, [text]) == Read(text)


def test_a_call_that_breaks_off() -> None:
    """Of a call that breaks off, or goes on with something that is no JSON, the arguments so far are passed on."""
    assert read(TAGS, ['<tool_call>{"name": "add", "arguments": {"a": "x']) == Read("", [["add", '{"a": "x']])
    wrong = '<tool_call>{"name": "add", "arguments": {"a": 1</tool_call> and ' + call("get-it", {})
    assert read(TAGS, [wrong]) == Read(" and", [["add", '{"a": 1'], ["get-it", "{}"]])
    unended = '<tool_call>{"name": "add", "arguments": {}, "more": 3 ' + call("get-it", {})
    assert read(TAGS, [unended]) == Read("", [["add", "{}"], ["get-it", "{}"]])


SCRAPS = st.sampled_from([
    "<tool_call>", "</tool_call>", "<tool_", "call>", "\n", " ", "{", "}", '"', "\\", '{"name": "add", "arguments": ',
    '{"name": "add", "parameters": ', '{"name": "get-it"', '{"a": [1, "x"]}', "}", "text", "é🙂", "<|call|>", "<", "|",
    call("add", {"a": "}</tool_call>"}), call("get-it", {}, OPEN), call("add", {"b": 2}, BARE),
])  # fmt: skip


@given(st.lists(SCRAPS, max_size=12).map("".join), st.sampled_from([TAGS, BARE, OPEN]), st.data())
def test_no_cut_changes_what_is_read(text: str, form: CallForm, data: st.DataObject) -> None:
    """A text in any pieces, whole or character by character, gives the same text and calls."""
    whole = read(form, [text])
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    assert read(form, [text[start:end] for start, end in pairwise([0, *cuts, len(text)])]) == whole
    assert read(form, list(text)) == whole
    if not whole.calls:
        assert whole.text == text
