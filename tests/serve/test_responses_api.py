"""`/v1/responses` gives the texts and calls of `/v1/chat/completions`, as OpenAI's newer interface has them."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest

from spectr.serve.errors import ApiError
from spectr.serve.responses_api.assembly import ResponseAssembly
from spectr.serve.responses_api.fields import ResponsesRequest
from spectr.serve.responses_api.objects import ResponseEvent, ResponseObject

ASKED: dict[str, Any] = {"input": "tides rise", "max_output_tokens": 24, "seed": 4}
PICK = {"type": "object", "properties": {"x": {"enum": ["a", "b"]}}, "required": ["x"], "additionalProperties": False}
TOOL = {"type": "function", "name": "pick", "description": "Pick one.", "parameters": PICK}
PART = {"type": "input_text", "text": "a"}
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def ask(client: httpx2.Client, **more: Any) -> dict[str, Any]:
    """Return a whole response."""
    found = client.post("/v1/responses", json={**ASKED, **more})
    assert found.status_code == 200, found.text
    data: dict[str, Any] = found.json()
    assert ResponseObject.model_validate(data, strict=True).model_dump(exclude_unset=True) == data
    return data


def stream(client: httpx2.Client, **more: Any) -> list[dict[str, Any]]:
    """Return the events of a streamed response; each has its type in a line of its own."""
    text = client.post("/v1/responses", json={**ASKED, **more, "stream": True}).text
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        assert ResponseEvent.model_validate(event, strict=True).model_dump(exclude_unset=True) == event
        events.append(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def chat(client: httpx2.Client, **more: Any) -> dict[str, Any]:
    """Return the answer of the older interface."""
    body = {"messages": [{"role": "user", "content": "tides rise"}], "max_tokens": 24, "seed": 4, **more}
    choice: dict[str, Any] = client.post("/v1/chat/completions", json=body).json()["choices"][0]
    return choice


def without_times(response: dict[str, Any]) -> dict[str, Any]:
    """Return a response without ids, times and statistics, which depend on more than the text."""
    left = {name: value for name, value in response.items() if name not in ("id", "created_at", "metrics", "usage")}
    return {**left, "output": [{**item, "id": ""} for item in response["output"]]}


def test_a_text_is_that_of_the_older_interface(client: httpx2.Client) -> None:
    """The text of a seed, its log-probabilities and its end are those of a conversation."""
    found, meant = ask(client, **LOGPROBS), chat(client, logprobs=True, top_logprobs=2)
    (message,) = found["output"]
    (part,) = message["content"]
    assert part["text"] == meant["message"]["content"]
    assert [one["token"] for one in part["logprobs"]] == [one["token"] for one in meant["logprobs"]["content"]]
    assert (found["status"], found["incomplete_details"]) == ("incomplete", {"reason": "max_output_tokens"})
    assert message["status"] == "incomplete"
    assert found["usage"]["output_tokens"] == 24
    assert found["usage"]["total_tokens"] == found["usage"]["input_tokens"] + 24
    assert found["spectr"]["seed"] == 4
    stopped = ask(client, stop=[part["text"][3]])
    assert (stopped["status"], stopped["incomplete_details"]) == ("completed", None)
    assert stopped["output"][0]["content"][0]["text"] == part["text"][: part["text"].index(part["text"][3])]


def test_items_become_messages(client: httpx2.Client) -> None:
    """Instructions, messages, calls and results give the prompt that the same conversation gives."""
    call = {"type": "function_call", "call_id": "c1", "name": "pick", "arguments": '{"x": "a"}'}
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "one "}, {"type": "input_text", "text": "two"}]},
        {"type": "message", "role": "assistant", "id": "msg_1", "status": "completed",
         "content": [{"type": "output_text", "text": "three", "annotations": [], "logprobs": []}]},
        call, {**call, "call_id": "c2"},
        {"type": "function_call_output", "call_id": "c1", "output": "four"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "five"}]},
    ]  # fmt: skip
    function = {"type": "function", "function": {"name": "pick", "arguments": '{"x": "a"}'}}
    turns = [
        {"role": "system", "content": "short"},
        {"role": "user", "content": "one two"},
        {"role": "assistant", "content": "three", "tool_calls": [{"id": "c1", **function}, {"id": "c2", **function}]},
        {"role": "tool", "tool_call_id": "c1", "content": "four"},
        {"role": "tool", "tool_call_id": "c2", "content": "five"},
    ]
    found = ask(client, input=items, instructions="short", max_output_tokens=8)
    prompt = client.post("/tokenize", json={"messages": turns}).json()["tokens"]
    assert found["spectr"]["receipt"]["prompts"] == [prompt]
    assert found["instructions"] == "short"


@pytest.mark.parametrize(
    "more",
    [{}, LOGPROBS, {"tools": [TOOL], "tool_choice": "required"}, {"tools": [TOOL]},
     {"tools": [TOOL], "tool_choice": {"type": "function", "name": "pick"}, "max_output_tokens": 100},
     {"text": {"format": {"type": "json_schema", "schema": {"type": "boolean"}}}},
     {"stop": ["e"], "metadata": {"a": "b"}}],
    ids=["text", "logprobs", "calls", "tools", "one call", "schema", "stop"],
)  # fmt: skip
def test_events_add_up_to_the_response(client: httpx2.Client, more: dict[str, Any]) -> None:
    """The deltas of a stream add up to the items that end, these are the output of the last event, and that is what
    the same request gets unstreamed."""
    if "tools" in more or "text" in more:
        pytest.importorskip("xgrammar", reason="needs xgrammar: pip install 'spectr-lm[grammar]'")
    events, whole = stream(client, **more), ask(client, **more)
    last = events[-1]["response"]
    assert without_times(last) == without_times(whole)
    assert events[-1]["type"] == f"response.{whole['status']}"
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event["response"]["output"] for event in events[:2]] == [[], []]
    added = [event for event in events if event["type"] == "response.output_item.added"]
    assert [event["item"]["status"] for event in added] == ["in_progress"] * len(last["output"])
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == last["output"]
    for at, item in enumerate(last["output"]):
        own = [event for event in events if event.get("output_index") == at]
        assert {event.get("item_id", item["id"]) for event in own} == {item["id"]}
        deltas = "".join(event["delta"] for event in own if "delta" in event)
        logprobs = [one for event in own if event["type"].endswith("text.delta") for one in event["logprobs"]]
        if item["type"] == "message":
            assert item["content"] == [
                {"type": "output_text", "text": deltas, "annotations": [], "logprobs": logprobs}
            ]  # fmt: skip
        else:
            assert deltas == item["arguments"]
            assert json.loads(deltas) in ({"x": "a"}, {"x": "b"}) or item["status"] == "incomplete"


@pytest.mark.parametrize("more", [{}, {"stop": ["e"]}, {"max_output_tokens": 1}], ids=["text", "stop", "one token"])
def test_log_probabilities_are_those_of_a_conversation(client: httpx2.Client, more: dict[str, Any]) -> None:
    """All tokens have one, also those without a text: one that ends the answer, or that a stop string cuts off."""
    found = ask(client, **LOGPROBS, **more)
    given = {**ASKED, **more}
    body = {"messages": [{"role": "user", "content": given.pop("input")}], "logprobs": True, "top_logprobs": 2,
            "max_tokens": given.pop("max_output_tokens"), **given}  # fmt: skip
    chat = client.post("/v1/chat/completions", json=body).json()["choices"][0]
    (item,) = found["output"]
    assert item["content"][0]["text"] == chat["message"]["content"]
    assert item["content"][0]["logprobs"] == chat["logprobs"]["content"]
    assert len(chat["logprobs"]["content"]) == found["usage"]["output_tokens"]


def test_calls_are_items(client: httpx2.Client) -> None:
    """A named function is called once, with valid arguments, and its result can be sent back."""
    pytest.importorskip("xgrammar", reason="needs xgrammar: pip install 'spectr-lm[grammar]'")
    more: dict[str, Any] = {
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "pick"},
        "max_output_tokens": 100,
    }
    found = ask(client, **more)
    (call,) = found["output"]
    assert (found["status"], call["type"], call["name"]) == ("completed", "function_call", "pick")
    assert json.loads(call["arguments"])["x"] in ("a", "b")
    result = {"type": "function_call_output", "call_id": call["call_id"], "output": "12"}
    again = ask(client, input=[{"role": "user", "content": "tides rise"}, *found["output"], result], tools=[TOOL])
    assert again["output"][0]["type"] in ("message", "function_call")


def test_text_after_a_call_is_another_item() -> None:
    """Items keep the order of the answer, and log-probabilities belong to the text whose tokens they are of."""
    assembly = ResponseAssembly(ResponsesRequest(input="a"))
    head = {"id": "chatcmpl-1", "created": 1, "model": "tiny"}

    def chunk(logprob: Any = None, reason: Any = None, **delta: Any) -> list[str]:
        logprobs = None if logprob is None else {"content": [logprob], "refusal": None}
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": reason}
        return [event["type"] for event in assembly.events({**head, "choices": [choice]})]

    named = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{"}}
    assert chunk("A", role="assistant", content="")[-1] == "response.in_progress"
    assert chunk("B", content="one")[-1] == "response.output_text.delta"
    assert chunk("C", tool_calls=[named])[-2:] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
    ]
    for logprob, arguments in (("D", ""), ("D", "}")):
        chunk(logprob, tool_calls=[{"index": 0, "function": {"arguments": arguments}}])
    assert chunk("E", content="two", reason="tool_calls")[:2] == [
        "response.function_call_arguments.done", "response.output_item.done",
    ]  # fmt: skip
    details = {"accepted_prediction_tokens": 0, "rejected_prediction_tokens": 0}
    usage = {"prompt_tokens": 1, "prompt_tokens_details": {"cached_tokens": 0}, "completion_tokens": 5,
             "completion_tokens_details": details, "total_tokens": 6}  # fmt: skip
    *_, last = assembly.events({**head, "choices": [], "usage": usage, "metrics": {}, "spectr": {}})
    one, call, two = last["response"]["output"]
    assert (one["content"][0]["text"], one["content"][0]["logprobs"]) == ("one", ["A", "B"])
    assert (call["arguments"], call["call_id"], call["status"]) == ("{}", "call_1", "completed")
    assert (two["content"][0]["text"], two["content"][0]["logprobs"]) == ("two", ["E"])
    assert last["type"] == "response.completed"
    error = assembly.error(ApiError(503, "busy", code="draining"))
    assert (error["type"], error["message"], error["code"]) == ("error", "busy", "draining")


@pytest.mark.parametrize(
    ("more", "param", "words"),
    [
        ({"input": []}, "input", "1 or more"),
        ({"input": [{"type": "reasoning", "summary": []}]}, "input.0", "function_call_output"),
        ({"input": [{"role": "robot", "content": "a"}]}, "input.0.role", "'robot'"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input.0.content.0.type", "",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "["}]},
            "input", "a JSON object",
        ),
        (
            {"input": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}] * 129},
            "input", "at most 128",
        ),
        ({"input": [{"role": "user", "content": [PART] * 1000}] * 5}, "input", "4096 parts"),
        ({"input": [{"role": "user", "content": "a"}] * 4096, "instructions": "b"}, "input", "at most 4096"),
        ({"input": ""}, None, "must not be empty"),
        ({"input": "tides " * 400}, "input", "must have at most"),
        ({"max_output_tokens": 0}, "max_output_tokens", "at least 1"),
        ({"previous_response_id": "resp_1"}, "previous_response_id", "whole conversation"),
        ({"store": True}, "store", "stores nothing"),
        ({"messages": []}, "messages", "no field 'messages'; use input"),
        ({"max_tokens": 3}, "max_tokens", "use max_output_tokens"),
        ({"tools": [TOOL], "text": {"format": {"type": "json_object"}}}, "text.format", "text.format and tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "name": "sub"}}, "tool_choice.name", "'sub'"),
        (
            {"tools": [{**TOOL, "parameters": {"type": "array"}}], "tool_choice": "required"},
            "tools.0.parameters", '"type": "object"',
        ),
        (
            {"tools": [{**TOOL, "strict": True, "parameters": {"type": "object", "not": {}}}]},
            "tools", "tools.0.parameters",
        ),
        ({"n": 2}, "n", ""),
        ({"top_logprobs": 2}, "top_logprobs", "include"),
        ({"stream_options": {"include_obfuscation": False}}, "stream_options", "needs stream"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format.schema", "needs a schema"),
        ({"text": {"format": {"type": "json_schema", "schema": {"uniqueItems": True}}}}, "text.format", "uniqueItems"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type", ""),
        ({"tool_choice": "required"}, "tool_choice", "needs tools"),
        ({"spectr": {"resume": {"id": "cmpl-a", "created": 1, "fingerprint": "", "texts": []}}}, None, ""),
        ({"reasoning": {"effort": "low"}}, "reasoning", "not supported"),
    ],
)  # fmt: skip
def test_what_is_refused(client: httpx2.Client, more: Any, param: str | None, words: str) -> None:
    """A bad field gets status 400, with its name in this interface and a reason."""
    found = client.post("/v1/responses", json={**ASKED, **more})
    assert found.status_code == 400, found.text
    error = found.json()["error"]
    assert param is None or error["param"] == param
    assert words in error["message"]


def test_fields_that_ask_for_nothing_are_taken(client: httpx2.Client) -> None:
    """Fields are accepted whose values ask for what the server does anyway."""
    neutral = {"store": False, "background": False, "previous_response_id": None, "truncation": "disabled",
               "service_tier": "auto", "parallel_tool_calls": True, "metadata": {}, "tools": []}  # fmt: skip
    assert ask(client, **neutral)["tool_choice"] == "none"


def test_errors_and_limits(other: Callable[..., Any]) -> None:
    """A stream cannot be resumed, and a server that shuts down answers with 503."""
    client, service = other()
    found = client.post("/v1/responses", json={**ASKED, "stream": True}, headers={"Last-Event-ID": "0"})
    assert (found.status_code, found.json()["error"]["code"]) == (400, "not_resumable")
    service.is_draining = True
    assert client.post("/v1/responses", json=ASKED).status_code == 503
    service.is_draining = False
