"""The client of OpenAI-compatible endpoints: addresses, keys, and invalid answers."""

import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest

from spectr.endpoint import EndpointClient, turns_of
from spectr.errors import ArgumentError, MissingExtraError, SpectrError


class Server(BaseHTTPRequestHandler):
    """Answers every request with what was prepared for its path, and records the headers."""

    answers: ClassVar[dict[str, tuple[int, bytes]]] = {}
    seen: ClassVar[list[dict[str, str]]] = []

    def do_GET(self) -> None:
        self.do_POST()

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append(dict(self.headers.items()))
        code, body = self.answers[self.path]
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    Server.seen.clear()
    Server.answers.clear()
    made = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()
    thread.join()


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://host:8000", "http://host:8000/v1/completions"),
        ("https://host/api/v1/", "https://host/api/v1/completions"),
        ("http://host/openai/completions", "http://host/openai/completions"),
        ("http://host/v1/chat/completions", "http://host/v1/chat/completions"),
    ],
)
def test_addresses(url: str, address: str) -> None:
    assert EndpointClient(url).address == address


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host/v1", "http:///v1", ""])
def test_invalid_addresses_are_refused(url: str) -> None:
    with pytest.raises(ArgumentError, match="must be an address such as"):
        EndpointClient(url)


def test_bodies_choose_the_path_and_keys_are_sent(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTR_ENDPOINT_KEY", "secret")
    Server.answers = {
        "/v1/completions": (200, b'{"kind": "text"}'),
        "/v1/chat/completions": (200, b'{"kind": "chat"}'),
        "/v1/models": (200, json.dumps({"data": [{"id": "a"}, {"id": "b"}]}).encode()),
    }
    client = EndpointClient(server, {"X-More": "1"})
    assert client.complete({"prompt": "x"}) == {"kind": "text"}
    assert client.complete({"messages": turns_of("x")}) == {"kind": "chat"}
    assert client.models() == ["a", "b"]
    assert all(one["authorization"] == "Bearer secret" for one in map(_lower, Server.seen))
    assert all(one["x-more"] == "1" for one in map(_lower, Server.seen))


def _lower(headers: dict[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}


@pytest.mark.parametrize(
    ("code", "body", "sentence"),
    [
        (503, b"busy", "answered 503: busy"),
        (404, b"", "answered 404: Not Found"),
        (200, b"<html>", "must answer with JSON"),
        (200, b"[1]", "must answer with a JSON object, got list"),
    ],
)
def test_invalid_answers_are_refused(server: str, code: int, body: bytes, sentence: str) -> None:
    Server.answers = {"/v1/completions": (code, body)}
    with pytest.raises(SpectrError, match=sentence):
        EndpointClient(server).complete({"prompt": "x"})


def test_an_unreachable_server_is_reported() -> None:
    with pytest.raises(SpectrError, match="is the server running"):
        EndpointClient("http://127.0.0.1:9").complete({"prompt": "x"})


def test_turns_alternate_between_user_and_assistant() -> None:
    assert [turn["role"] for turn in turns_of("a", "b", "c")] == ["user", "assistant", "user"]


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx2", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'spectr-lm\[endpoint\]'"):
        EndpointClient("http://host")
