"""Tools: the model calls functions of the client, as OpenAI's interface has it."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.saved import TEMPLATE, save_model, small_llama, tokenizer

import spectr
from spectr.lm import LM
from spectr.serve.text_responses import ChatChunk, ChatResponse

pytest.importorskip("xgrammar", reason="needs xgrammar: pip install 'spectr-lm[grammar]'")

PICK = {"type": "object", "properties": {"x": {"enum": ["a", "b"]}, "y": {"type": "boolean"}}, "required": ["x", "y"],
        "additionalProperties": False}  # fmt: skip
TOOLS = [
    {"type": "function", "function": {"name": "pick", "description": "Pick one.", "parameters": PICK}},
    {"type": "function", "function": {"name": "now"}},
]
ASKED = {"messages": [{"role": "user", "content": "go"}], "tools": TOOLS, "max_tokens": 120, "seed": 4}
CALLED = {"id": "call_1", "type": "function", "function": {"name": "pick", "arguments": '{"x": "a"}'}}


def ask(client: httpx2.Client, **more: Any) -> dict[str, Any]:
    """Return the whole response to a request with tools."""
    found = client.post("/v1/chat/completions", json={**ASKED, **more})
    assert found.status_code == 200, found.text
    data: dict[str, Any] = found.json()
    assert ChatResponse.model_validate(data, strict=True).model_dump(exclude_unset=True) == data
    return data


def chunks(client: httpx2.Client, **more: Any) -> list[dict[str, Any]]:
    """Return the chunks of a streamed response."""
    text = client.post("/v1/chat/completions", json={**ASKED, **more, "stream": True}).text
    found = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: {")]
    for chunk in found:
        assert ChatChunk.model_validate(chunk, strict=True).model_dump(exclude_unset=True) == chunk
    return found


def joined(parts: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the messages that the chunks of a stream add up to, as clients add them up."""
    found: dict[int, dict[str, Any]] = {}
    for choice in [choice for chunk in parts for choice in chunk["choices"]]:
        own = found.setdefault(choice["index"], {"content": None, "calls": {}, "reason": None})
        if (text := choice["delta"].get("content")) is not None:
            own["content"] = (own["content"] or "") + text
        for part in choice["delta"].get("tool_calls", []):
            call = own["calls"].setdefault(part["index"], {"id": None, "name": None, "arguments": ""})
            call["id"] = part.get("id", call["id"])
            call["name"] = part["function"].get("name", call["name"])
            call["arguments"] += part["function"]["arguments"]
        own["reason"] = choice["finish_reason"] or own["reason"]
    return found


def check(call: dict[str, Any]) -> None:
    """Fail unless a call is of one of the tools, with valid arguments."""
    found = json.loads(call["arguments"])
    if call["name"] == "now":
        assert found == {}
    else:
        assert call["name"] == "pick"
        assert found in [{"x": x, "y": y} for x in "ab" for y in (False, True)]


def test_required_tools_are_called_with_valid_arguments(client: httpx2.Client) -> None:
    """Where calls are required, every answer that ends by itself consists of valid calls."""
    answers = ask(client, tool_choice="required", n=12)["choices"]
    assert {"tool_calls"} <= {choice["finish_reason"] for choice in answers} <= {"tool_calls", "length"}
    seen = set()
    for choice in answers:
        message = choice["message"]
        if choice["finish_reason"] == "length":
            continue
        assert message["content"] is None
        for call in message["tool_calls"]:
            check(call["function"])
            seen.add(call["function"]["name"])
        assert len({call["id"] for call in message["tool_calls"]}) == len(message["tool_calls"])
    assert seen == {"pick", "now"}


def test_one_tool_can_be_named(client: httpx2.Client) -> None:
    """A named function is called exactly once; without parallel calls the same holds of any."""
    named = {"type": "function", "function": {"name": "pick"}}
    for more in ({"tool_choice": named}, {"tool_choice": "required", "parallel_tool_calls": False}):
        for choice in ask(client, n=6, **more)["choices"]:
            (call,) = choice["message"]["tool_calls"]
            check(call["function"])
            assert choice["finish_reason"] == "tool_calls"
            assert "parallel_tool_calls" in more or call["function"]["name"] == "pick"


@pytest.mark.parametrize("choice", ["required", "auto", "none"])
def test_a_stream_adds_up_to_the_whole_answer(client: httpx2.Client, choice: str) -> None:
    """The chunks of a stream add up to what the same request gets unstreamed."""
    more = {"tool_choice": choice, "n": 3}
    streamed = joined(chunks(client, **more))
    for whole in ask(client, **more)["choices"]:
        own = streamed[whole["index"]]
        calls = [call["function"] for call in whole["message"].get("tool_calls", [])]
        assert [{"name": one["name"], "arguments": one["arguments"]} for one in own["calls"].values()] == calls
        assert all(call["id"].startswith("call_") for call in own["calls"].values())
        assert (own["content"] or None) == (whole["message"]["content"] or None)
        assert own["reason"] == whole["finish_reason"]


def test_the_model_may_answer_without_a_call(client: httpx2.Client) -> None:
    """With `auto` the text is the one of the same prompt without grammar, and with `none` the model sees no tools."""
    plain = client.post("/v1/chat/completions", json={key: ASKED[key] for key in ("messages", "max_tokens", "seed")})
    none, auto = ask(client, tool_choice="none"), ask(client)
    assert none["choices"][0]["message"] == plain.json()["choices"][0]["message"]
    assert auto["usage"]["prompt_tokens"] > none["usage"]["prompt_tokens"] == plain.json()["usage"]["prompt_tokens"]
    strict = [{"type": "function", "function": {**tool["function"], "strict": True}} for tool in TOOLS]  # type: ignore[dict-item]
    free = ask(client, tools=strict)["choices"][0]
    assert free["message"]["content"]


def test_calls_in_a_text_that_may_have_some(tmp_path: Path, other: Callable[..., Any]) -> None:
    """With `auto` and `strict` a mark is followed by a valid call. The mark is one token here, as in many models, and a
    bias makes it likely."""
    words = tokenizer()
    words.add_tokens(["<tool_call>"])
    folder = save_model(small_llama(0, len(words)), tmp_path / "model", words)
    client, _ = other(model=spectr.load(str(folder), "lookup", dtype="float64"))
    tools = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]  # type: ignore[dict-item]
    more = {"tools": tools, "logit_bias": {str(len(words) - 1): 3}, "n": 16}
    messages = [choice["message"] for choice in ask(client, **more)["choices"]]
    assert any(message["content"] for message in messages)
    calls = [call["function"] for message in messages for call in message.get("tool_calls", [])]
    assert len(calls) >= 4
    for message in messages:
        for call in message.get("tool_calls", [])[:-1]:  # the last may break off
            check(call["function"])
    single = [choice["message"] for choice in ask(client, **more, parallel_tool_calls=False)["choices"]]
    assert {len(message.get("tool_calls", [])) for message in single} <= {0, 1}
    assert any(message.get("tool_calls") for message in single)


def test_results_of_calls_are_part_of_the_conversation(client: httpx2.Client, lm: LM) -> None:
    """Calls and their results are written by the chat template; a response's message can be sent back."""
    turns = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [CALLED], "refusal": None},
        {"role": "tool", "tool_call_id": "call_1", "content": "12"},
    ]
    tokens = client.post("/tokenize", json={"messages": turns}).json()["tokens"]
    text = lm.tokenizer.decode(tokens)
    assert '<assistant><tool_call>\n{"name": "pick", "arguments": {"x": "a"}}\n</tool_call></s>' in text
    assert "12</s><assistant>" in text
    answer = ask(client, messages=turns, tool_choice="required")["choices"][0]["message"]
    again = [*turns, answer, *({"role": "tool", "tool_call_id": call["id"], "content": ""}
                               for call in answer["tool_calls"])]  # fmt: skip
    ask(client, messages=again, max_tokens=4)


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"tools": [TOOLS[1], TOOLS[1]]}, "tools", "'now' is there twice"),
        ({"tools": None, "tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"tool_choice": {"type": "function", "function": {"name": "sub"}}}, "tool_choice.function.name", "got 'sub'"),
        ({"tool_choice": "sometimes"}, "tool_choice", "sometimes"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", "function"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name", "a b"),
        ({"response_format": {"type": "json_object"}}, "response_format", "cannot both be given"),
        ({"structured_outputs": {"regex": "a"}}, "structured_outputs", "cannot both be given"),
        (
            {"tool_choice": "required", "tools": [
                {"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}]},
            "tools.0.function.parameters", '"type": "object"',
        ),
        (
            {"tool_choice": "required", "tools": [TOOLS[1], {"type": "function", "function": {
                "name": "f", "parameters": {"type": "object", "properties": {"a": {"uniqueItems": True}}}}}]},
            "tools", "tools.1.function.parameters/properties/a",
        ),
        ({"messages": [{"role": "user", "content": None}]}, "messages.0.content", "must have a content"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.tool_call_id", "must have a tool_call_id"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [CALLED]}]}, "messages.0.tool_calls", "user"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [
                {**CALLED, "function": {"name": "pick", "arguments": "[1]"}}]}]},
            "messages.0.tool_calls.0.function.arguments", "must be a JSON object",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_together_is_refused(client: httpx2.Client, more: Any, param: str, words: str) -> None:
    """Tools, choices and messages that do not fit together get status 400, the field's name and a reason."""
    found = client.post("/v1/chat/completions", json={**ASKED, **more})
    assert found.status_code == 400, found.text
    assert found.json()["error"]["param"] == param
    assert words in found.json()["error"]["message"]


def test_a_template_without_tools_is_refused(tmp_path: Path, other: Callable[..., Any]) -> None:
    """A model whose chat template shows no functions cannot use tools, and what they said is not left out silently."""
    words = tokenizer(template=TEMPLATE)
    model = spectr.load(str(save_model(small_llama(0, 320), tmp_path / "model", words)), "none", dtype="float64")
    client, _ = other(model=model)
    found = client.post("/v1/chat/completions", json=ASKED)
    assert (found.status_code, found.json()["error"]["param"]) == (400, "tools")
    assert "does not show functions" in found.json()["error"]["message"]
    turns = [*ASKED["messages"], {"role": "assistant", "tool_calls": [CALLED]}]  # type: ignore[misc]
    found = client.post("/v1/chat/completions", json={"messages": turns})
    assert found.status_code == 400, found.text
    assert ask(client, tool_choice="none")["choices"][0]["message"]["content"]
