"""Baselines: transformers on the same requests, and an OpenAI-compatible server with a real model."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import torch

import spectr
from spectr.bench.writers import open_endpoint
from spectr.errors import ArgumentError, SpectrError
from spectr.models.baselines import TransformersBaseline
from spectr.models.hf import open_model

Measure = Callable[..., dict[str, Any]]
GREEDY = {"temperature": 0.0, "max_new_tokens": 20}


@pytest.fixture(scope="module")
def opened(target: str) -> Any:
    return open_model(target)


@pytest.fixture(scope="module")
def assistant(near: str) -> Any:
    return open_model(near).target.model


@pytest.mark.parametrize("way", ["plain", "assistant", "lookup"])
def test_greedy_texts_are_spectrs(opened: Any, assistant: Any, target: str, way: str) -> None:
    more = {"plain": {}, "assistant": {"assistant": assistant}, "lookup": {"lookup": 10}}[way]
    baseline = TransformersBaseline(opened.target.model, opened.stops, **more)
    lm = spectr.load(target, "none")
    prompt = lm.encode("one two one two one two")
    found = baseline.write(prompt, 0, GREEDY)
    assert found.tokens == lm.generate("one two one two one two", 20, temperature=0).tokens
    assert found.seconds > found.target > 0
    assert (found.draft > 0) == (way == "assistant")
    assert found.calls == len(found.tokens) if way == "plain" else found.calls <= len(found.tokens)


def test_the_models_own_settings_are_left_alone_and_not_listened_to(opened: Any) -> None:
    net = opened.target.model
    net.generation_config.repetition_penalty = 5.0
    try:
        config = net.generation_config
        with_penalty = TransformersBaseline(net, opened.stops).write([5, 6, 7], 0, GREEDY).tokens
        assert net.generation_config is config
    finally:
        net.generation_config.repetition_penalty = None
    assert with_penalty == TransformersBaseline(net, opened.stops).write([5, 6, 7], 0, GREEDY).tokens


def test_sampling_is_of_the_law_and_of_the_seed(opened: Any) -> None:
    """First tokens follow the model's law: a chi-square of six cells above 60 has probability 1e-11."""
    net, prompt = opened.target.model, [9, 40, 41]
    with torch.no_grad():
        law = (net(torch.tensor([prompt])).logits[0, -1] / 0.5).softmax(-1)
    baseline = TransformersBaseline(net, opened.stops)
    settings = {"temperature": 0.5, "max_new_tokens": 1}
    draws = [baseline.write(prompt, seed, settings).tokens[0] for seed in range(300)]
    top = law.topk(5).indices.tolist()
    counts = [*(draws.count(token) for token in top), sum(draw not in top for draw in draws)]
    chances = [*law[top].tolist(), 1 - float(law[top].sum())]
    assert sum((count - 300 * p) ** 2 / (300 * p) for count, p in zip(counts, chances, strict=True)) < 60
    assert draws[:5] == [baseline.write(prompt, seed, settings).tokens[0] for seed in range(5)]


class Server(BaseHTTPRequestHandler):
    """The part of the protocol that is needed, with a real model."""

    lm: spectr.LM
    seen: list[tuple[str, dict[str, Any]]]
    broken = False

    def _answer(self, code: int, data: Any) -> None:
        body = json.dumps(data).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        self._answer(200, {"data": [{"id": "tiny"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.seen.append((self.path, body))
        if self.broken:
            self._answer(503, {"error": "busy"})
            return
        raw = "prompt" in body
        ask = body["prompt"] if raw else body["messages"][-1]["content"]
        out = self.lm.generate(ask, body["max_tokens"], body["seed"], temperature=body["temperature"], raw=raw)
        choice = {"text": out.text} if raw else {"message": {"content": out.text}}
        self._answer(200, {"choices": [choice], "usage": {"completion_tokens": len(out.tokens)}})

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(target: str) -> Iterator[str]:
    Server.lm, Server.seen, Server.broken = spectr.load(target, "none"), [], False
    made = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=made.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    thread.join()
    made.server_close()


def test_an_endpoint_takes_part(measure: Measure, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPECTR_ENDPOINT_KEY", raising=False)
    found = measure(methods=("plain", "race"), endpoints=(server,))
    row = found["results"][-1]
    assert row["method"] == server.removeprefix("http://")
    assert (row["drafter"], row["block_efficiency"], row["identical"]) == ("tiny", None, None)
    assert row["speed_up"]["count"] == 2
    assert row["tokens"] == found["results"][0]["tokens"]  # the same model, seeds and prompts
    chat, raw = (
        next(body for path, body in Server.seen if path.endswith(end)) for end in ("/chat/completions", "1/completions")
    )
    assert chat["messages"][0] == {"role": "user", "content": "I want to learn to swim at fifty. Is it too late?"}
    assert raw["prompt"].startswith("The harbour authority")


def test_an_endpoint_that_fails_loses_nothing(measure: Measure, server: str) -> None:
    Server.broken = True
    with pytest.raises(SpectrError, match="answered 503"):
        measure(methods=("plain",), endpoints=(f"{server}/v1#tiny",))
    Server.broken = False
    assert measure(methods=("plain",), endpoints=(f"{server}/v1#tiny",))["cells_missing"] == 0


def test_invalid_endpoints_are_refused() -> None:
    with pytest.raises(ArgumentError, match="must be an address such as"):
        open_endpoint("localhost:8000")
    with pytest.raises(SpectrError, match="must answer with JSON"):
        open_endpoint("http://127.0.0.1:9")
    assert open_endpoint("http://host/api#m").client.base == "http://host/api/v1"
