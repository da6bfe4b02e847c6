"""Requests with tools that are meant to be expensive, or to make the server fail, are refused; what is cut off is not
taken for a whole call."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.saved import TOOL_TEMPLATE, save_model, small_llama, tokenizer
from tests.serve.test_tools import ASKED, CALLED, PICK, ask, chunks, joined

import spectr
from spectr.errors import ArgumentError
from spectr.serve import json_text

pytest.importorskip("xgrammar", reason="needs xgrammar: pip install 'spectr-lm[grammar]'")

HEADERS = {"content-type": "application/json"}
TYPED = (
    "{% for tool in tools or [] %}{{ tool.function.name }}"
    "{% for key, one in tool.function.parameters.properties.items() %}{{ key + ': ' + one.type }}{% endfor %}"
    "{% endfor %}" + TOOL_TEMPLATE.split("{% endif %}", 1)[1]
)
"""A template that writes functions by hand, and expects one type of each parameter."""


def called(arguments: str) -> list[dict[str, Any]]:
    """Return a conversation with a call."""
    call = {**CALLED, "function": {"name": "pick", "arguments": arguments}}
    return [{"role": "user", "content": "go"}, {"role": "assistant", "tool_calls": [call]}]


@pytest.mark.parametrize(
    "arguments",
    ['{"x": "\\ud800"}', '{"x": NaN}', '{"x": -Infinity}', '{"x": ' + "1" * 5000 + "}",
     *('{"x": ' + "[" * depth + "]" * depth + "}" for depth in (250, 900, 970, 30_000))],
    ids=["surrogate", "nan", "infinity", "digits", "250", "900", "970", "30000"],
)  # fmt: skip
def test_arguments_that_no_prompt_can_have(client: httpx2.Client, arguments: str) -> None:
    """Arguments that are no JSON, no Unicode or nested very deep are refused by name, and not by a failure."""
    for path in ("/v1/chat/completions", "/tokenize"):
        found = client.post(path, json={"messages": called(arguments)})
        assert found.status_code == 400, found.text
        assert found.json()["error"]["param"] == "messages.1.tool_calls.0.function.arguments"


def test_functions_that_a_template_cannot_write(tmp_path: Path, other: Callable[..., Any]) -> None:
    """A template is a program, which may fail on a schema that it does not expect. The client gets the reason."""
    folder = save_model(small_llama(0, 320), tmp_path / "model", tokenizer(template=TYPED))
    client, _ = other(model=spectr.load(str(folder), "none", dtype="float64"))

    def status(kind: Any) -> int:
        schema = {"type": "object", "properties": {"x": {"type": kind}}}
        tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
        found = client.post("/v1/chat/completions", json={**ASKED, "max_tokens": 2, "tools": [tool]})
        if found.status_code != 200:
            assert "chat template refuses messages of user with these functions" in found.json()["error"]["message"]
        return int(found.status_code)

    assert [status("string"), status(["string", "null"]), status({})] == [200, 400, 400]


def test_many_calls_are_refused_before_each_is_checked(client: httpx2.Client) -> None:
    """All messages together have a bounded number of calls."""
    call = {**CALLED, "function": {"name": "f", "arguments": ""}}
    body = {"messages": [{"role": "assistant", "tool_calls": [call] * 128}] * 300}
    found = client.post("/v1/chat/completions", json=body)
    assert found.status_code == 400
    assert "at most 4096 tool_calls together, got 38400" in found.json()["error"]["message"]


def test_large_tools_and_schemas_are_written_in_workers(client: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop does not write tools or schemas as JSON, however they are refused."""
    threads = set[str]()

    def noted(data: Any, pieces: Any = json_text._pieces) -> Any:
        threads.add(threading.current_thread().name)
        return pieces(data)

    monkeypatch.setattr(json_text, "_pieces", noted)
    large = {"type": "object", "a": [[]] * 100_000}
    tools = [{"type": "function", "function": {"name": "f", "parameters": large}}]
    form = {"type": "json_schema", "json_schema": {"schema": large}}
    for more in (
        {"tools": tools},
        {"tools": tools, "tool_choice": "required"},
        {"tools": None, "response_format": form},
    ):
        assert client.post("/v1/chat/completions", json={**ASKED, **more}).status_code == 400
    assert threads
    assert all(name.startswith("spectr-worker") for name in threads), threads


def test_numbers_that_json_does_not_have(client: httpx2.Client) -> None:
    """A number beyond the floats in tools or a schema is refused."""
    for more in (
        b'"tools": [{"type": "function", "function": {"name": "f", "parameters": {"minimum": 1e999}}}]',
        b'"response_format": {"type": "json_schema", "json_schema": {"schema": {"minimum": 1e999}}}',
    ):
        body = b'{"messages": [{"role": "user", "content": "a"}], ' + more + b"}"
        found = client.post("/v1/chat/completions", content=body, headers=HEADERS)
        assert found.status_code == 400, found.text
        assert "finite numbers" in found.json()["error"]["message"]


@pytest.mark.parametrize("stop", ['"y"', "}", "</tool_call>"])
def test_a_stop_string_that_cuts_a_call(client: httpx2.Client, stop: str) -> None:
    """An answer that a stop string cuts within arguments has not ended with calls: these would not be JSON."""
    more = {"tool_choice": {"type": "function", "function": {"name": "pick"}}, "n": 4, "stop": [stop]}
    streamed = joined(chunks(client, **more))
    for choice in ask(client, **more)["choices"]:
        (call,) = choice["message"]["tool_calls"]
        assert streamed[choice["index"]]["reason"] == choice["finish_reason"]
        if choice["finish_reason"] == "tool_calls":
            assert set(json.loads(call["function"]["arguments"])) == set(PICK["properties"])  # type: ignore[call-overload]
        else:
            assert choice["finish_reason"] == "stop"
            assert stop != "</tool_call>"


def test_a_stream_shows_every_step(client: httpx2.Client) -> None:
    """Steps whose text is not shown, because it is the end of a call, are part of the trace nevertheless."""
    more = {"tool_choice": "required", "n": 4, "spectr": {"trace": True}}
    streamed: dict[int, list[int]] = {}
    for chunk in chunks(client, **more):
        for choice in chunk["choices"]:
            shown = [token for step in chunk["spectr"]["trace"] for token in step["tokens"]]
            streamed.setdefault(choice["index"], []).extend(shown)
    for choice in ask(client, **more)["choices"]:
        assert streamed[choice["index"]] == [token for step in choice["spectr"]["trace"] for token in step["tokens"]]


def test_marks_that_are_special_tokens_are_refused(tmp_path: Path) -> None:
    """Special tokens are not part of texts, so that calls which they mark would never be found."""
    words = tokenizer()
    words.add_tokens(["<tool_call>"], special_tokens=True)
    lm = spectr.load(str(save_model(small_llama(0, len(words)), tmp_path / "model", words)), "none")
    for _ in range(2):
        with pytest.raises(ArgumentError, match="ordinary tokens"):
            _ = lm.call_form


def test_functions_of_many_indented_lines_are_refused(client: httpx2.Client) -> None:
    """Some chat templates indent functions, which makes megabytes of deep nesting. What they could write is bounded."""
    deep: Any = [0] * 10_000
    for _ in range(150):
        deep = [deep]
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "examples": deep}}}]
    found = client.post("/v1/chat/completions", json={**ASKED, "tools": tools})
    assert (found.status_code, found.json()["error"]["param"]) == (400, "tools")
    assert "at most 65536 characters" in found.json()["error"]["message"]


def test_integers_beyond_the_range_of_floats(client: httpx2.Client) -> None:
    """A bound that no float can hold is refused with its place, where a function or a schema has it."""
    number = {"type": "object", "properties": {"x": {"type": "integer", "minimum": 10**400}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": number, "strict": True}}]
    form = {"type": "json_schema", "json_schema": {"schema": number}}
    for more in ({"tools": tools}, {"tools": None, "response_format": form}):
        found = client.post("/v1/chat/completions", json={**ASKED, **more})
        assert found.status_code == 400, found.text
        assert "properties/x: minimum must be a number within the range" in found.json()["error"]["message"]
