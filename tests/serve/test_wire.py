"""Misused connections, and the shutdown of a server."""

import asyncio
import json
import signal
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from tests.serve.test_faults import LONG, settled, start
from tests.serve.test_gate import KEYS, raw
from uvicorn.server import ServerState

from spectr.cli.serve import read_keys
from spectr.engine.mailbox import Mailbox
from spectr.errors import ArgumentError
from spectr.serve import Limits
from spectr.serve.events import Event, EventStream
from spectr.serve.wire import MOST_HEADER_BYTES, bounded_protocol


def post(body: dict[str, Any], *headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data


def connect(url: str) -> socket.socket:
    host, port = url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), 60)


def address(client: Any) -> str:
    return str(client.base_url).rstrip("/")


def refused(got: bytes) -> tuple[int, str]:
    """Return the status of a response and the code of its error, which must have the common form of errors."""
    head, _, body = got.partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(b": ") for line in lines[1:])}
    assert headers[b"content-type"] == b"application/json"
    assert headers[b"x-request-id"].startswith(b"req-")
    error = json.loads(body)["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return int(lines[0].split()[1]), error["code"]


def test_endless_headers(other: Callable[..., Any]) -> None:
    """Headers above the limit get status 431; headers below it are accepted."""
    client, _ = other()
    with connect(address(client)) as made:
        made.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + b"X-Long: " + b"x" * (MOST_HEADER_BYTES - 100))
        made.sendall(b"x" * 200)
        got = b""
        while piece := made.recv(4096):
            got += piece
    assert refused(got) == (431, "headers_too_large")
    assert client.get("/health", headers={"x-long": "x" * 20_000}).status_code == 200
    assert client.post("/v1/completions", json={**LONG, "user": "x", "prompt": "o " * 100, "max_tokens": 1}).is_success


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x01 nonsense\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nBad Header: 1\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-A: b\r\n folded: c\r\n\r\n",
        b"GET /h\xffealth HTTP/1.1\r\nHost: localhost\r\n\r\n",
        *(
            b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
            b"Transfer-Encoding: " + coding + b"\r\n\r\n" + size + b'\r\n{"prompt":"one"}\r\n0\r\n\r\n'
            for coding, size in ((b"xchunked", b"10"), (b"chunked", b"-1"), (b"chunked", b"f" * 20))
        ),
        b"POST /tokenize HTTP/1.0\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b'Transfer-Encoding: chunked\r\n\r\n10\r\n{"prompt":"one"}\r\n0\r\n\r\n',
    ],
)
def test_bytes_that_are_no_request(client: Any, data: bytes) -> None:
    """Malformed or ambiguous HTTP gets exactly one answer with status 400."""
    got, _ = raw(address(client), data, 60)
    assert refused(got)[0] == 400
    assert got.count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize("name", [b"a\rSet-Cookie: x=1", b"a\0b", b"a%0d%0aSet-Cookie: x=1", b'a"b', b"\xff"])
def test_request_ids_cannot_add_headers(client: Any, name: bytes) -> None:
    """A request id that cannot be a header value is replaced, or its request is refused."""
    data = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: " + name + b"\r\n\r\n"
    head = raw(address(client), data, 60)[0].partition(b"\r\n\r\n")[0]
    assert b"x-request-id: req-" in head
    assert b"cookie" not in head.lower()


@pytest.mark.parametrize(
    "path",
    ["/play/../service.py", "/play/..%2fservice.py", "/play/%2e%2e/%2e%2e/etc/passwd", "/play//etc/passwd", "/play/%00",
     "/play/x%0d%0aSet-Cookie:%20a=b", "/v1/completions/", "//evil.example/v1/models"],
)  # fmt: skip
def test_paths_that_lead_elsewhere(client: Any, path: str) -> None:
    """Paths that leave the served folder, or try to add headers, get status 404 without a redirect."""
    data = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
    got = raw(address(client), data, 60)[0]
    assert refused(got)[0] == 404
    assert b"location" not in got.lower()
    assert b"cookie" not in got.partition(b"\r\n\r\n")[0].lower()


def test_headers_that_come_slowly(other: Callable[..., Any]) -> None:
    """Headers that are not complete within `header_time` get status 408."""
    client, _ = other(Limits(header_time=0.3))
    got, took = raw(address(client), b"POST /v1/comple", 60)
    assert refused(got) == (408, "timeout")
    assert took < 30


def test_bytes_that_are_no_request_amid_an_answer(other: Callable[..., Any]) -> None:
    """Invalid bytes during a response end its stream, and nothing is sent that could be taken for part of it."""
    client, service = other()
    with connect(address(client)) as made:
        made.sendall(post({**LONG, "stream": True, "n": 4}))
        got = made.recv(4096)
        made.sendall(b"\x00\x01 nonsense\r\n\r\n")
        with suppress(ConnectionError):
            while piece := made.recv(65536):
                got += piece
    assert got.startswith(b"HTTP/1.1 200")
    assert got.count(b"HTTP/1.1") == 1
    assert b"invalid_http" not in got
    settled(service, service.handler)


def test_a_request_before_the_answer_to_the_last(other: Callable[..., Any]) -> None:
    """A pipelined request leaves nothing running after the client has left."""
    client, service = other()
    with connect(address(client)) as made:
        made.sendall(post({**LONG, "n": 4}))
        time.sleep(0.2)
        made.sendall(post({**LONG, "max_tokens": 1}))
        settled(service, service.handler)


def test_clients_that_do_not_read() -> None:
    """The connection of a client that does not read its response is aborted after `write_time`."""

    async def large(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(64 << 20)})

    async def run() -> float:
        config = uvicorn.Config(large, lifespan="off", log_config=None)
        config.load()
        state, kind = ServerState(), bounded_protocol(Limits(write_time=0.3))
        made: Any = lambda: kind(config=config, server_state=state, app_state={})  # type: ignore[call-arg]  # noqa: E731
        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        with connect(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}") as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while not state.total_requests:
                await asyncio.sleep(0.01)
            start = time.monotonic()
            while state.connections and time.monotonic() < start + 30:
                await asyncio.sleep(0.01)
        server.close()
        return time.monotonic() - start

    assert 0.2 < asyncio.run(run()) < 20


def test_connections_are_bounded(other: Callable[..., Any]) -> None:
    """A connection beyond the limit gets status 503; closed connections make room."""
    client, _ = other(Limits(connections=3))
    held = [connect(address(client)) for _ in range(3)]
    assert refused(raw(address(client), b"", 60)[0]) == (503, "too_many_connections")
    for one in held:
        one.close()
    deadline = time.monotonic() + 60
    while client.get("/health").status_code != 200:
        assert time.monotonic() < deadline


def test_headers_that_are_given_twice_or_late(other: Callable[..., Any]) -> None:
    """Two Authorization headers are refused, and one in the trailers does not count."""
    client, _ = other(keys=KEYS)
    url, body = address(client), {"prompt": "one", "max_tokens": 1}
    twice = [f"Authorization: Bearer {key}" for key in KEYS]
    assert raw(url, post(body, *twice, "Connection: close"), 60)[0].startswith(b"HTTP/1.1 400")
    lines = [b"POST /tokenize HTTP/1.1", b"Host: localhost", b"Content-Type: application/json", b"Connection: close"]
    head = b"\r\n".join([*lines, b"Transfer-Encoding: chunked", b"", b""])
    late = b'10\r\n{"prompt":"one"}\r\n0\r\nAuthorization: Bearer ' + KEYS[0].encode() + b"\r\n\r\n"
    assert raw(url, head + late, 60)[0].startswith(b"HTTP/1.1 401")


def test_an_upgrade_is_not_taken(other: Callable[..., Any]) -> None:
    """An offer to upgrade is ignored for a GET and refused for a POST."""
    client, _ = other()
    offer = ("Connection: Upgrade, close", "Upgrade: h2c")
    get = "\r\n".join(["GET /health HTTP/1.1", "Host: localhost", *offer, "", ""]).encode()
    assert raw(address(client), get, 60)[0].startswith(b"HTTP/1.1 200")
    assert b"upgrade_not_supported" in raw(address(client), post({"prompt": "one"}, *offer), 60)[0]


def test_a_page_can_read_why_it_was_refused(other: Callable[..., Any]) -> None:
    """Errors have CORS headers for allowed origins."""
    client, _ = other(keys=KEYS, origins=("https://a.example",))
    found = client.get("/v1/models", headers={"origin": "https://a.example"})
    assert found.status_code == 401
    assert found.headers["access-control-allow-origin"] == "https://a.example"


@pytest.mark.parametrize("stream", [False, True])
def test_the_end_of_a_drain_is_told(other: Callable[..., Any], stream: bool) -> None:
    """A request that the shutdown cuts off gets an error that says so, with status 503 or in its stream."""
    client, service = other()
    with client.stream("POST", "/v1/completions", json={**LONG, "n": 8, "max_tokens": 8, "stream": stream}) as found:
        pass
    server_over = service.handler.shutdown

    async def end() -> None:
        server_over.begin()

    with connect(address(client)) as made:
        made.sendall(post({**LONG, "n": 16, "stream": stream}, "Connection: close"))
        if stream:
            got = made.recv(65536)
        else:
            got = b""
            time.sleep(0.1)
        loop = service.handler.shutdown.future.get_loop()
        asyncio.run_coroutine_threadsafe(end(), loop).result(5)
        while piece := made.recv(65536):
            got += piece
    assert found.status_code == 200
    assert b"draining" in got
    assert got.startswith(b"HTTP/1.1 200" if stream else b"HTTP/1.1 503")
    settled(service, service.handler)


def test_engine_failures_turn_the_server_red(other: Callable[..., Any], lm: Any, monkeypatch: Any) -> None:
    """After three engine failures in a row the server is not ready; a success makes it ready again."""
    client, service = other()
    score = type(lm.engine.target).score

    def broken(*_given: Any, **_named: Any) -> None:
        raise RuntimeError("a kernel failed")

    monkeypatch.setattr(type(lm.engine.target), "score", broken)
    for stream in (False, True, False):
        assert client.get("/ready").status_code == 200
        client.post("/v1/completions", json={**LONG, "max_tokens": 3, "stream": stream})
    assert client.get("/ready").status_code == 503
    client.post("/v1/completions", json={"prompt": ""})
    assert service.failures == 3
    monkeypatch.setattr(type(lm.engine.target), "score", score)
    assert client.post("/v1/completions", json={**LONG, "max_tokens": 3}).status_code == 200
    assert client.get("/ready").status_code == 200


def test_failures_amid_a_stream_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """An unexpected error in a stream is logged, and the client sees only that there was an internal error."""

    async def events() -> Any:
        yield Event({"a": 1})
        raise RuntimeError("a detail for the operator")

    async def run() -> bytes:
        sent = bytearray()

        async def send(message: Any) -> None:
            sent.extend(message.get("body", b""))

        over = asyncio.get_running_loop().create_future()
        stream = EventStream(events(), 10, 10, time.monotonic() + 10, over)
        await stream({}, asyncio.Event().wait, send)  # type: ignore[arg-type]
        return bytes(sent)

    said = asyncio.run(run())
    assert b"internal_error" in said
    assert b"detail" not in said
    assert "a detail for the operator" in caplog.text


def test_a_mailbox_recovers_from_a_call_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """If waking the event loop fails once, the next post delivers both messages."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        mailbox, first, second = Mailbox(loop), loop.create_future(), loop.create_future()

        def interrupted(*_: Any) -> None:
            raise BrokenPipeError

        with monkeypatch.context() as patch:
            patch.setattr(loop, "call_soon_threadsafe", interrupted)
            with pytest.raises(BrokenPipeError):
                mailbox.post(first)
        mailbox.post(second)
        await asyncio.wait_for(asyncio.gather(first, second), 5)

    asyncio.run(run())


def test_keys_that_no_header_can_carry(tmp_path: Path) -> None:
    """Keys with characters other than visible ASCII are refused; a byte order mark is ignored."""
    path = tmp_path / "keys"
    path.write_bytes(b"\xef\xbb\xbfabcdefgh1\n")
    assert read_keys(path) == ("abcdefgh1",)
    for wrong in ("schlüssel-1", "two words 1", "tab\tinside"):
        path.write_text(f"{wrong}\n", encoding="utf-8")
        with pytest.raises(ArgumentError, match="visible ASCII"):
            read_keys(path)


@pytest.mark.slow
def test_a_signal_after_nobody_reads_the_log(folder: Path) -> None:
    """A server whose stderr is closed still answers and exits with 0 after SIGTERM."""
    process, url = start(folder)
    assert process.stderr is not None
    process.stderr.close()
    with connect(url) as made:
        made.sendall(post({**LONG, "max_tokens": 50}, "Connection: close"))
        time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        got = b""
        while piece := made.recv(65536):
            got += piece
    assert got.startswith(b"HTTP/1.1 ")
    assert process.wait(60) == 0
