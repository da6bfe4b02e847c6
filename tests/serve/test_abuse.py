"""Bodies and connections that are meant to be expensive are refused quickly, and other clients are not affected."""

import asyncio
import json
import threading
import time
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from pydantic import ValidationError
from pydantic_core import from_json

from spectr.serve import Limits, events, handler
from spectr.serve.admission import Admission
from spectr.serve.errors import ApiError
from spectr.serve.fields import as_field_error
from spectr.serve.json_text import json_bytes
from spectr.serve.protocol import ChatRequest, CompletionRequest
from spectr.serve.replies import Reply
from spectr.serve.service import Service
from spectr.serve.workers import Workers

MANY = 200_000


def problem(kind: type[CompletionRequest] | type[ChatRequest], body: bytes) -> tuple[ApiError, int]:
    """Return the error for a body, and the number of errors that were collected."""
    try:
        kind.model_validate(from_json(body))
    except ValidationError as error:
        return as_field_error(error, kind), error.error_count()
    except ApiError as error:
        return error, 1
    raise AssertionError("the body was accepted")


def many(pattern: str) -> bytes:
    """Return very many fields of JSON, in each of which # is a number."""
    return ",".join(pattern.replace("#", str(at)) for at in range(MANY)).encode()


Body = Callable[[], bytes]  # made in the test: as values, bodies of megabytes would become names of tests


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda: b'{"prompt":[' + b"0," * MANY + b'"x"]}', "prompt"),
        (lambda: b'{"prompt":[' + b"0," * 300_000 + b"0]}", "at most 262144 entries"),
        (lambda: b'{"prompt":[' + b"-1," * MANY + b"0]}", "prompt"),
        (lambda: b'{"prompt":[' + b"[]," * MANY + b"[0]]}", "at most 1024 entries"),
        (lambda: b'{"prompt":"a",' + many('"x#":1') + b"}", "at most 64 fields"),
        (lambda: b'{"prompt":"a","spectr":{' + many('"x#":1') + b"}}", "at most 64 fields"),
        (lambda: b'{"prompt":"a","logit_bias":{' + many('"#":999') + b"}}", "at most 4096"),
        (lambda: b'{"prompt":"a","stop_token_ids":[' + b"1," * MANY + b"1]}", "at most 64 entries"),
        (lambda: b'{"prompt":"a","stop":[' + b"-1," * MANY + b"1]}", "stop"),
    ],
)
def test_a_completion_of_many_errors(body: Body, words: str) -> None:
    """A body with very many errors gets a short message, and few errors are collected."""
    found, count = problem(CompletionRequest, body())
    assert words in found.message
    assert len(found.message) < 700
    assert count <= 64


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (lambda: b'{"messages":[' + b"{}," * MANY + b"{}]}", "messages.0.role"),
        (lambda: b'{"messages":[{"role":"user","content":[' + b"{}," * MANY + b"{}]}]}", "at most 4096 parts"),
        (lambda: b'{"messages":[{"role":"user","content":[{' + many('"#":1') + b"}]}]}", "64 fields"),
    ],
)
def test_a_conversation_of_many_errors(body: Body, words: str) -> None:
    """A chat request with very many errors gets a short message, and few errors are collected."""
    found, count = problem(ChatRequest, body())
    assert words in found.message
    assert count <= 64


def test_a_large_body_is_refused_soon_and_briefly(client: httpx2.Client) -> None:
    start = time.monotonic()
    found = client.post("/v1/completions", content=b'{"prompt":[' + b"[]," * 1_000_000 + b"0]}",
                        headers={"content-type": "application/json"})  # fmt: skip
    assert found.status_code == 400
    assert time.monotonic() - start < 20
    assert len(found.content) < 2000


def test_what_was_sent_is_repeated_in_part_only(client: httpx2.Client) -> None:
    """An error message quotes at most a part of a long name or value."""
    for body in ({"prompt": "a", "y" * 100_000: 1}, {"prompt": "a", "n": "z" * 100_000}, {"model": "m" * 100_000}):
        found = client.post("/v1/completions", json={"prompt": "a"} | body)
        assert found.status_code in (400, 404)
        assert len(found.content) < 2000


def test_bodies_of_other_kinds(client: httpx2.Client) -> None:
    """A compressed body is refused with status 415, and keys of logit_bias that are not token ids with 400."""
    body = json.dumps({"prompt": "one", "max_tokens": 1}).encode()
    headers = {"content-type": "application/json"}
    found = client.post("/v1/completions", content=body, headers={**headers, "content-encoding": "gzip"})
    assert found.status_code == 415
    assert client.post("/v1/completions", content=body, headers=headers).status_code == 200
    for key in ("", "٣", "1_0", " 1", "+1", "9" * 5000):
        found = client.post("/v1/completions", json={"prompt": "one", "logit_bias": {key: 1}})
        assert found.status_code == 400
        assert found.json()["error"]["param"] == "logit_bias"


def test_what_is_refused_before_it_is_tokenized(client: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that exceed a limit are refused before a worker tokenizes them."""

    async def never(*_: Any) -> None:
        raise AssertionError("a worker was used")

    monkeypatch.setattr(Service, "in_worker", never)
    last = 10_000_000
    for body, words in (
        ({"prompt": "one", "stop_token_ids": [last]}, "must lie in 0 … 319"),
        ({"prompt": "one", "stop": ["x", last]}, "must lie in 0 … 319"),
        ({"prompt": "a " * 100_000}, "characters"),
        ({"prompt": ["one"] * 65}, "may ask for 64 texts"),
        ({"prompt": ["one"] * 9, "n": 8}, "may ask for 64 texts"),
        ({"prompt": "one", "spectr": {"nodes": 65}}, "spectr.nodes must be at most 64, got 65"),
    ):
        found = client.post("/v1/completions", json=body)
        assert found.status_code == 400
        assert words in found.json()["error"]["message"]
    assert client.post("/tokenize", json={"prompt": "a " * 100_000}).status_code == 400


def test_log_probabilities_are_bounded(other: Callable[..., Any]) -> None:
    """A request may ask for at most `Limits.logprobs` log-probabilities over all of its texts and tokens."""
    client, _ = other(Limits(logprobs=200))
    asked = {"prompt": "one", "max_tokens": 8, "logprobs": 4}
    assert client.post("/v1/completions", json={**asked, "n": 5}).status_code == 200
    found = client.post("/v1/completions", json={**asked, "n": 6})
    assert found.status_code == 400
    assert found.json()["error"]["param"] == "logprobs"


def test_a_prompt_is_scored_once_for_several_texts(client: httpx2.Client) -> None:
    """With `echo`, all texts of a prompt have the log-probabilities of that prompt, whole and streamed."""
    asked = {"prompt": ["one two three", "four five"], "echo": True, "logprobs": 2, "max_tokens": 3, "seed": 4}
    alone = client.post("/v1/completions", json=asked).json()["choices"]
    several = client.post("/v1/completions", json={**asked, "n": 3}).json()["choices"]
    for at, first in enumerate(alone):
        prompt = len(first["logprobs"]["tokens"]) - 3
        for one in several[3 * at : 3 * at + 3]:
            meant = first["logprobs"]["token_logprobs"][1:prompt]
            assert one["logprobs"]["token_logprobs"][1:prompt] == pytest.approx(meant)
            assert one["logprobs"]["text_offset"][:prompt] == first["logprobs"]["text_offset"][:prompt]
    with client.stream("POST", "/v1/completions", json={**asked, "n": 3, "stream": True}) as found:
        lines = [line.removeprefix("data: ") for line in found.iter_lines() if line.startswith("data: {")]
    chunks = [choice for line in lines for choice in json.loads(line)["choices"]]
    for at in range(6):
        echoed = next(one for one in chunks if one["index"] == at)
        assert echoed["text"] == asked["prompt"][at // 3]
        assert len(echoed["logprobs"]["token_logprobs"]) > 1


def test_large_responses_are_written_in_a_worker(client: httpx2.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large response is built in a worker thread, not on the event loop, and has the same choices."""
    asked = {"prompt": "one", "max_tokens": 8, "logprobs": 3, "seed": 3, "logit_bias": {"1": -100}}
    small = client.post("/v1/completions", json=asked).json()["choices"]
    threads = set[str]()
    build = Reply.whole

    def noted(self: Reply, *given: Any) -> dict[str, Any]:
        threads.add(threading.current_thread().name)
        return build(self, *given)

    monkeypatch.setattr(Reply, "whole", noted)
    monkeypatch.setattr(handler, "_SMALL", 20)
    assert client.post("/v1/completions", json=asked).json()["choices"] == small
    assert all(name.startswith("spectr-worker") for name in threads)
    assert threads


@pytest.mark.parametrize("stream", [False, True])
def test_a_repeated_prompt_is_written_in_a_worker(
    client: httpx2.Client, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """The JSON of a long echoed prompt is written in a worker thread, not on the event loop."""
    asked = {"prompt": "one two " * 60, "echo": True, "logprobs": 3, "max_tokens": 1, "seed": 3, "stream": stream}
    threads: dict[bool, set[str]] = {False: set(), True: set()}

    def noted(data: Any) -> bytes:
        text = json_bytes(data)
        threads[len(text) > 5000].add(threading.current_thread().name)
        return text

    monkeypatch.setattr(handler, "_SMALL", 20)
    for module in (handler, events):
        monkeypatch.setattr(module, "json_bytes", noted)
    found = client.post("/v1/completions", json=asked)
    assert found.status_code == 200
    assert threads[True]
    assert all(name.startswith("spectr-worker") for name in threads[True])
    if stream:
        lines = [json.loads(line[6:]) for line in found.text.splitlines() if line.startswith("data: {")]
        assert lines[0]["choices"][0]["text"] == asked["prompt"]
        assert len(lines[0]["choices"][0]["logprobs"]["top_logprobs"]) > 100


def test_rates_count_every_post(other: Callable[..., Any]) -> None:
    """The rate limit counts every POST, including those that are refused, but not a GET."""
    client, _ = other(Limits(rate=18))
    paths = [("/tokenize", {"prompt": "one"}), ("/detokenize", {"tokens": [5]}), ("/v1/completions", {"nonsense": 1})]
    assert [client.post(path, json=body).status_code for path, body in paths] == [200, 200, 400]
    assert client.post("/v1/completions", content=b"x" * 1000).status_code == 429
    assert client.get("/v1/models").status_code == 200


def test_keys_take_turns_at_the_workers() -> None:
    """A key with many jobs does not delay the first job of another key, and has a limited number of waiting jobs."""

    async def run() -> list[str]:
        workers, order, gate = Workers(1, 5), list[str](), threading.Event()
        blocked = asyncio.ensure_future(workers.run("greedy", gate.wait))
        await asyncio.sleep(0)
        greedy = [asyncio.ensure_future(workers.run("greedy", lambda: order.append("greedy"))) for _ in range(5)]
        await asyncio.sleep(0)
        with pytest.raises(ApiError, match="wait for a worker"):
            await workers.run("greedy", lambda: None)
        modest = asyncio.ensure_future(workers.run("modest", lambda: order.append("modest")))
        greedy[0].cancel()
        await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(blocked, modest, *greedy, return_exceptions=True)
        workers.close()
        return order

    order = asyncio.run(run())
    assert order.index("modest") <= 1
    assert order.count("greedy") == 4


def test_one_key_cannot_take_all_places() -> None:
    """One key cannot fill all running places or the whole queue; another key displaces its last waiting request."""

    async def run() -> None:
        admission = Admission(Limits(running=8, queue=4), keys=2)
        assert admission.most_texts == admission.share == 7

        async def hold(tenant: str, texts: int) -> None:
            async with admission.place(tenant, texts):
                await asyncio.sleep(60)

        tasks = [asyncio.ensure_future(hold("greedy", 1)) for _ in range(11)]
        await asyncio.sleep(0.01)
        assert (admission.running, admission.waiting) == (7, 4)
        tasks.append(asyncio.ensure_future(hold("modest", 1)))
        await asyncio.sleep(0.01)
        assert (admission.running, admission.waiting) == (8, 4)
        tasks.append(asyncio.ensure_future(hold("modest", 1)))  # the queue is full: a greedy request is dropped
        await asyncio.sleep(0.01)
        assert [task.done() for task in tasks] == [False] * 10 + [True] + [False] * 2
        assert admission.waiting == 4
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert admission.running == admission.waiting == 0

    asyncio.run(run())
