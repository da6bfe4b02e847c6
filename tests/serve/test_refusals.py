"""Invalid requests are refused with the right status, the name of the field, and a message that says what is wrong."""

from typing import Any

import httpx2
import pytest

CHAT = {"messages": [{"role": "user", "content": "tides"}]}
DEEP = b'{"prompt": "a", "spectr": ' + b"[" * 5000 + b"]" * 5000 + b"}"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": "a", "max_tokns": 5}, "max_tokns", "did you mean max_tokens"),
        ({"prompt": "a", "tools": [{"type": "function"}]}, "tools", "not supported"),
        ({"prompt": "a", "best_of": 3}, "best_of", "not supported"),
        ({"prompt": "a", "suffix": "end"}, "suffix", "not supported"),
        ({}, "prompt", "missing"),
        ({"prompt": ""}, "prompt", "must not be empty"),
        ({"prompt": []}, "prompt", "must not be empty"),
        ({"prompt": [[]]}, "prompt", "must not be empty"),
        ({"prompt": [400]}, None, "0 … 319"),
        ({"prompt": "a", "temperature": -1}, "temperature", "temperature must be at least 0, got -1"),
        ({"prompt": "a", "temperature": "hot"}, "temperature", "temperature must be a number, got 'hot'"),
        ({"prompt": "a", "n": True}, "n", "n must be a whole number, got True"),
        ({"prompt": "a", "n": 0}, "n", "n must be at least 1, got 0"),
        ({"prompt": "a", "n": 65}, "n", "64 texts"),
        ({"prompt": "a", "seed": 1 << 70}, "seed", "must be less than"),
        ({"prompt": "a", "max_tokens": 0}, "max_tokens", "at least 1"),
        ({"prompt": "a", "max_tokens": -4}, "max_tokens", "max_tokens must be at least 0, got -4"),
        ({"prompt": 5}, "prompt", "prompt must be a string or a list, got 5"),
        ({"prompt": ["a", 1]}, "prompt.1", "prompt.1 must be a string, got 1"),
        ({"prompt": [1, "a"]}, "prompt.1", "prompt.1 must be a whole number, got 'a'"),
        ({"prompt": [-1]}, "prompt.0", "prompt.0 must be at least 0, got -1"),
        ({"prompt": "a", "max_tokens": 100000}, "max_tokens", "512 positions"),
        ({"prompt": "a " * 600}, "prompt", "at most 511 tokens"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", "logprobs must be at most 20, got 21"),
        ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias", "token ids"),
        ({"prompt": "a", "logit_bias": {"400": 1}}, None, "400"),
        ({"prompt": "a", "stop": ["x"] * 17}, "stop", "16 entries"),
        ({"prompt": "a", "stop": [""]}, "stop", "1 to 1024 characters"),
        ({"prompt": "a", "stream_options": {"include_usage": True}}, "stream_options", "needs stream"),
        ({"prompt": "a", "stream": 5}, "stream", "stream must be true or false, got 5"),
        (
            {"prompt": "a", "stream": True, "stream_options": {"include_usage": 3}},
            "stream_options.include_usage",
            "must be true or false, got 3",
        ),
        ({"prompt": "a", "spectr": {"rule": "rase"}}, "spectr.rule", "did you mean race"),
        ({"prompt": "a", "spectr": {"rule": "lenience"}}, "spectr.rule", "lossy"),
        ({"prompt": "a", "spectr": {"drafter": "/etc/passwd"}}, "spectr.drafter", "one of auto"),
        ({"prompt": "a", "spectr": {"depth": 3}}, "spectr.depth", "no field"),
        ({"prompt": "a", "spectr": {"rule": "optimal", "drafter": "lookup"}}, None, "use rule race or match"),
        ({"prompt": "a", "user": 5}, "user", "user must be a string, got 5"),
        ({"prompt": "a", "user": "x" * 600}, "user", "user must have at most 512 characters, got 600"),
    ],
)
def test_a_bad_field_is_named(client: httpx2.Client, body: Any, param: str | None, words: str) -> None:
    """A completion with a bad field gets status 400; the error names the field and says what is wrong."""
    found = client.post("/v1/completions", json=body)
    assert found.status_code == 400, found.text
    error = found.json()["error"]
    assert error["param"] == param
    assert words in error["message"]
    assert error["type"] == "invalid_request_error"


def test_a_body_of_a_wrong_type_is_described(client: httpx2.Client) -> None:
    """Messages that are no list, or no objects, are answered with what they must be."""

    def said(path: str, body: Any) -> str:
        return str(client.post(path, json=body).json()["error"]["message"])

    words = "messages must be a list of objects with role, got 'hello'"
    assert said("/v1/chat/completions", {"messages": "hello"}) == words
    assert said("/tokenize", {"messages": "hello"}) == words
    assert said("/v1/chat/completions", {"messages": ["hello"]}) == "messages.0 must be an object, got 'hello'"
    assert said("/v1/chat/completions", {"messages": []}) == "messages must have 1 or more entries, got 0"
    assert said("/v1/completions", [1]) == "the body must be a JSON object, got [1]"
    role = "messages.0.role must be 'system', 'developer', 'user', 'assistant' or 'tool', got 'robot'"
    assert said("/v1/chat/completions", {"messages": [{"role": "robot", "content": "a"}]}) == role


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "messages.0.role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages.0.content.0.type",
        ),
        ({"messages": [{"role": "user", "content": "a", "name": "bob"}]}, "messages.0.name"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"max_tokens": 3, "max_completion_tokens": 4}, "max_tokens"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
    ],
)
def test_a_bad_field_of_a_conversation_is_named(client: httpx2.Client, more: Any, param: str | None) -> None:
    """A chat request with a bad field gets status 400, and the error names the field."""
    found = client.post("/v1/chat/completions", json={**CHAT, **more})
    assert found.status_code == 400, found.text
    if param is not None:
        assert found.json()["error"]["param"] == param


def test_fields_that_ask_for_nothing_are_taken(client: httpx2.Client) -> None:
    """Unsupported fields are accepted if their value asks for nothing."""
    neutral = {"tools": [], "tool_choice": None, "store": False, "service_tier": "auto", "parallel_tool_calls": True}
    found = client.post("/v1/chat/completions", json={**CHAT, **neutral, "max_tokens": 2, "user": "somebody"})
    assert found.status_code == 200, found.text


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"null", b"[]", b'"text"', b'{"prompt": "\xff\xfe"}', b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": "a", "temperature": Infinity}', b'{"prompt": "a", "seed": 1' + b"0" * 5000 + b"}", DEEP,
        b'{"prompt": "a", "temperature": 1e999}', b'{"prompt": "\\ud800", "max_tokens": 2}',
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_object(client: httpx2.Client, body: bytes) -> None:
    """Bodies that are not valid JSON objects get status 400 and a message."""
    found = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert found.status_code == 400, found.text
    assert found.json()["error"]["message"]


def test_other_bodies(client: httpx2.Client) -> None:
    """A wrong content type gets 415, an unknown model or path 404, and a wrong method 405."""
    found = client.post("/v1/completions", content=b'{"prompt": "a"}', headers={"content-type": "text/plain"})
    assert found.status_code == 415
    assert client.post("/v1/completions", json={"prompt": "a", "model": "gpt-9"}).status_code == 404
    assert client.get("/v1/completions").status_code == 405
    assert client.get("/nothing").status_code == 404
    assert client.get("/nothing").json()["error"]["message"] == "there is no page '/nothing'"


def test_a_wrong_address_is_answered_with_the_nearest(client: httpx2.Client) -> None:
    """A mistyped path is answered with the nearest page, and a wrong method with the right one."""
    found = client.post("/v1/chat/completion", json=CHAT)
    words = "there is no page '/v1/chat/completion'; did you mean /v1/chat/completions?"
    assert (found.status_code, found.json()["error"]["message"]) == (404, words)
    assert client.get("/v1/completions").json()["error"]["message"] == "/v1/completions takes POST, got GET"
