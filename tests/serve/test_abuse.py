"""Bodies and connections that are made to cost the server much: each is refused soon, and others do not notice."""

import json
import time

import httpx2
import pytest
from pydantic import ValidationError
from pydantic_core import from_json

from spectr.serve.problems import ApiError
from spectr.serve.protocol import ChatRequest, CompletionRequest, as_problem

MANY = 200_000


def problem(kind: type[CompletionRequest] | type[ChatRequest], body: bytes) -> tuple[ApiError, int]:
    """What is said of a body, and how many errors were collected."""
    try:
        kind.model_validate(from_json(body))
    except ValidationError as error:
        return as_problem(error, kind), error.error_count()
    except ApiError as error:
        return error, 1
    raise AssertionError("the body was taken")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"prompt":[' + b"0," * MANY + b'"x"]}', "prompt"),
        (b'{"prompt":[' + b"0," * 300_000 + b"0]}", "at most 262144 items"),
        (b'{"prompt":[' + b"-1," * MANY + b"0]}", "prompt"),
        (b'{"prompt":[' + b"[]," * MANY + b"[0]]}", "at most 1024 items"),
        (json.dumps({"prompt": "a", **{f"x{at}": 1 for at in range(MANY)}}).encode(), "at most 64 fields"),
        (json.dumps({"prompt": "a", "spectr": {f"x{at}": 1 for at in range(MANY)}}).encode(), "at most 64 fields"),
        (json.dumps({"prompt": "a", "logit_bias": {str(at): 999 for at in range(MANY)}}).encode(), "at most 4096"),
        (b'{"prompt":"a","stop_token_ids":[' + b"1," * MANY + b"1]}", "at most 64 items"),
        (b'{"prompt":"a","stop":[' + b"-1," * MANY + b"1]}", "stop"),
    ],
)
def test_a_completion_of_many_errors(body: bytes, words: str) -> None:
    found, count = problem(CompletionRequest, body)
    assert words in found.message
    assert len(found.message) < 700
    assert count <= 64


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"messages":[' + b"{}," * MANY + b"{}]}", "messages.0.role"),
        (b'{"messages":[{"role":"user","content":[' + b"{}," * MANY + b"{}]}]}", "at most 4096 parts"),
        (b'{"messages":[{"role":"user","content":[{' + b",".join(b'"%d":1' % at for at in range(MANY)) + b"}]}]}",
         "64 fields"),
    ],
)  # fmt: skip
def test_a_conversation_of_many_errors(body: bytes, words: str) -> None:
    found, count = problem(ChatRequest, body)
    assert words in found.message
    assert count <= 64


def test_others_are_answered_while_a_large_body_is_refused(client: httpx2.Client) -> None:
    start = time.monotonic()
    found = client.post("/v1/completions", content=b'{"prompt":[' + b"[]," * 1_000_000 + b"0]}",
                        headers={"content-type": "application/json"})  # fmt: skip
    assert found.status_code == 400
    assert time.monotonic() - start < 3
    assert len(found.content) < 2000


def test_what_was_sent_is_repeated_in_part_only(client: httpx2.Client) -> None:
    for body in ({"prompt": "a", "y" * 100_000: 1}, {"prompt": "a", "n": "z" * 100_000}, {"model": "m" * 100_000}):
        found = client.post("/v1/completions", json={"prompt": "a"} | body)
        assert found.status_code in (400, 404)
        assert len(found.content) < 2000


def test_bodies_of_other_kinds(client: httpx2.Client) -> None:
    body = json.dumps({"prompt": "one", "max_tokens": 1}).encode()
    headers = {"content-type": "application/json"}
    found = client.post("/v1/completions", content=body, headers={**headers, "content-encoding": "gzip"})
    assert found.status_code == 415
    assert client.post("/v1/completions", content=body, headers=headers).status_code == 200
    for key in ("", "٣", "1_0", " 1", "+1", "9" * 5000):
        found = client.post("/v1/completions", json={"prompt": "one", "logit_bias": {key: 1}})
        assert found.status_code == 400
        assert found.json()["error"]["param"] == "logit_bias"
