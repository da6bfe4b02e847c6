"""Authentication, and limits on the share of a server that one client can use."""

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest

from spectr.cli.serve import read_keys
from spectr.errors import ArgumentError
from spectr.serve import Limits, ServerSettings
from spectr.serve.admission import Admission
from spectr.serve.errors import ApiError
from spectr.serve.gate import Keys
from spectr.serve.run import bind, check_address

KEYS = ("first-secret-key", "second-secret-key")
ASKED = {"prompt": "one two", "max_tokens": 4}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_a_server_with_keys_refuses_other_requests(other: Callable[..., Any], caplog: pytest.LogCaptureFixture) -> None:
    """Without a valid key all endpoints but health and readiness answer 401; keys and prompts are not logged."""
    caplog.set_level("INFO")
    client, _ = other(keys=KEYS)
    for path in ("/v1/models", "/metrics"):
        assert client.get(path).status_code == 401
        assert client.get(path, headers=bearer("wrong")).status_code == 401
        assert client.get(path, headers={"authorization": KEYS[0]}).status_code == 401
        assert all(client.get(path, headers=bearer(key)).status_code == 200 for key in KEYS)
    refused = client.post("/v1/completions", json=ASKED)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"] == "Bearer"
    assert refused.json()["error"]["code"] == "invalid_api_key"
    assert client.get("/health").status_code == client.get("/ready").status_code == 200
    assert client.post("/v1/completions", json=ASKED, headers=bearer(KEYS[1])).status_code == 200
    assert not any(key in caplog.text for key in (*KEYS, "wrong"))
    assert "one two" not in caplog.text


def test_beginnings_are_not_shared_between_keys(other: Callable[..., Any]) -> None:
    """The prefix cache is separate for each key, so that no key can find out what others sent."""
    client, _ = other(keys=KEYS)
    asked = {"prompt": "seven eight nine ten " * 6, "max_tokens": 2, "seed": 1}

    def cached(key: str) -> int:
        found = client.post("/v1/completions", json=asked, headers=bearer(key)).json()
        return int(found["usage"]["prompt_tokens_details"]["cached_tokens"])

    assert [cached(key) > 0 for key in (KEYS[0], KEYS[1], KEYS[0], KEYS[1])] == [False, False, True, True]


def test_a_name_that_is_not_our_own(client: httpx2.Client, other: Callable[..., Any]) -> None:
    """A server without keys refuses a foreign Host header, against DNS rebinding; a server with keys does not."""
    evil = {"host": "evil.example:8000"}
    assert client.get("/v1/models", headers=evil).status_code == 403
    assert client.get("/v1/models", headers={"host": "localhost:1"}).status_code == 200
    assert client.get("/v1/models", headers={"host": "LocalHost:1"}).status_code == 200  # names have no case
    keyed, _ = other(keys=KEYS)
    assert keyed.get("/v1/models", headers={**evil, **bearer(KEYS[0])}).status_code == 200


def test_pages_of_others_may_not_call(client: httpx2.Client, other: Callable[..., Any]) -> None:
    """CORS preflights are granted only to the configured origins."""
    preflight = {"origin": "https://a.example", "access-control-request-method": "POST"}
    assert "access-control-allow-origin" not in client.options("/v1/completions", headers=preflight).headers
    open_one, _ = other(origins=("https://a.example",))
    found = open_one.options("/v1/completions", headers=preflight)
    assert found.headers["access-control-allow-origin"] == "https://a.example"


def test_request_ids(client: httpx2.Client) -> None:
    """A valid request id is returned as it was sent, and an invalid one is replaced."""
    assert client.get("/health", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    ids = {client.get("/health", headers={"x-request-id": bad}).headers["x-request-id"] for bad in ("a b", "x" * 65)}
    assert len(ids) == 2
    assert all(one.startswith("req-") for one in ids)


def test_large_bodies(other: Callable[..., Any]) -> None:
    """Bodies above `body_bytes` are refused with status 413, with a length and in chunks."""
    client, _ = other(Limits(body_bytes=2000))
    assert client.post("/v1/completions", json={**ASKED, "user": "x" * 400}).status_code == 200
    assert client.post("/v1/completions", json={"prompt": "a" * 3000}).status_code == 413

    def pieces() -> Any:
        yield from (b"x" * 500 for _ in range(9))

    chunked = client.post("/v1/completions", content=pieces(), headers={"content-type": "application/json"})
    assert chunked.status_code == 413
    assert client.post("/v1/completions", json=ASKED).status_code == 200


def raw(url: str, data: bytes, most: float) -> tuple[bytes, float]:
    """Return the server's answer to raw bytes until it closes the connection, and the seconds that it took."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), most) as made:
        made.sendall(data)
        start, got = time.monotonic(), b""
        while piece := made.recv(65536):
            got += piece
        return got, time.monotonic() - start


def test_slow_clients(other: Callable[..., Any]) -> None:
    """A client that sends its headers or body too slowly gets status 408 and is disconnected."""
    client, _ = other(Limits(header_time=0.5, body_time=0.5, idle_time=1))
    url = str(client.base_url).rstrip("/")
    assert raw(url, b"POST /v1/comple", 60)[0].startswith(b"HTTP/1.1 408")
    assert raw(url, b"", 60)[0] == b""
    lines = [b"POST /v1/completions HTTP/1.1", b"Host: localhost", b"Content-Type: application/json"]
    head = b"\r\n".join([*lines, b"Content-Length: 50", b"", b""])
    answer, took = raw(url, head + b'{"prompt"', 60)
    assert answer.startswith(b"HTTP/1.1 408")
    assert took < 30
    assert b"400" in raw(url, b"\x00\x01\x02 nonsense\r\n\r\n", 60)[0][:20]
    assert client.get("/health").status_code == 200


def test_rates(other: Callable[..., Any]) -> None:
    """A key that exceeds its rate gets status 429 with Retry-After; other keys are not affected."""
    client, _ = other(Limits(rate=12), keys=KEYS)
    found = [client.post("/v1/completions", json=ASKED, headers=bearer(KEYS[0])) for _ in range(3)]
    assert [one.status_code for one in found] == [200, 200, 429]
    assert 1 <= int(found[2].headers["retry-after"]) <= 5
    assert client.post("/v1/completions", json=ASKED, headers=bearer(KEYS[1])).status_code == 200


def test_a_full_queue(other: Callable[..., Any]) -> None:
    """A request that does not fit into the queue gets status 429; after the others have ended it is served."""
    client, service = other(Limits(running=2, queue=1))
    long = {"prompt": "one", "max_tokens": 400, "logit_bias": {"1": -100}, "stream": True, "n": 2}
    with client.stream("POST", "/v1/completions", json=long) as running:
        lines = running.iter_lines()
        next(lines)
        with client.stream("POST", "/v1/completions", json=long) as refused:
            assert refused.status_code == 429
            assert "retry-after" in refused.headers
    deadline = time.monotonic() + 20
    while service.lm.engine.load.running and time.monotonic() < deadline:
        time.sleep(0.05)
    assert client.post("/v1/completions", json=ASKED).status_code == 200


def test_fair_shares() -> None:
    """A key with few running texts is served before one with many, however many requests of that key wait."""

    async def run() -> list[str]:
        admission, order = Admission(Limits(running=2, queue=100)), list[str]()

        async def request(tenant: str, texts: int = 1) -> None:
            async with admission.place(tenant, texts):
                order.append(tenant)
                await asyncio.sleep(0.01)

        greedy = [asyncio.ensure_future(request("greedy")) for _ in range(8)]
        await asyncio.sleep(0)
        await asyncio.gather(request("modest"), request("large", 5), *greedy)
        assert admission.running == admission.waiting == 0
        return order

    order = asyncio.run(run())
    assert order.index("modest") <= 3
    assert order.index("large") <= 5


def test_places_are_given_back_by_those_who_leave() -> None:
    """A request that is cancelled at any point of its admission releases its place."""

    async def run() -> None:
        admission = Admission(Limits(running=1, queue=10))

        async def request() -> None:
            async with admission.place("a", 1):
                await asyncio.sleep(10)

        for delay in (0, 1, 2, 3):  # before it waits, while it waits, when it is admitted, and after
            holder, waiter = asyncio.ensure_future(request()), asyncio.ensure_future(request())
            for _ in range(delay):
                await asyncio.sleep(0)
            holder.cancel()
            waiter.cancel()
            await asyncio.gather(holder, waiter, return_exceptions=True)
            assert admission.running == admission.waiting == 0
        async with admission.place("b", 1):
            assert admission.running == 1

    asyncio.run(run())


def test_a_key_is_compared_whole() -> None:
    """Only the complete key identifies a tenant; without keys all clients are one tenant."""
    keys = Keys(KEYS)
    assert keys.tenant(KEYS[1]) == "key-1"
    assert [keys.tenant(wrong) for wrong in (None, "", KEYS[0][:-1], KEYS[0] + "x", "\udcff")] == [None] * 5
    assert Keys(()).tenant(None) == "all"


def test_key_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys come from a file with one per line and from the environment; errors do not contain a key."""
    path = tmp_path / "keys"
    path.write_text("# ours\nabcdefgh1\n\nabcdefgh2\n")
    assert read_keys(path) == ("abcdefgh1", "abcdefgh2")
    monkeypatch.setenv("SPECTR_API_KEYS", "abcdefgh3, abcdefgh1")
    assert set(read_keys(path)) == {"abcdefgh1", "abcdefgh2", "abcdefgh3"}
    path.write_text("short\n")
    with pytest.raises(ArgumentError, match="at least 8 characters") as raised:
        read_keys(path)
    assert "short" not in str(raised.value).replace("fewer", "")
    with pytest.raises(ArgumentError, match="must be a file"):
        read_keys(tmp_path / "missing")


def test_addresses() -> None:
    """Without keys only loopback addresses are allowed, unless `insecure` is set; a port in use is an error."""
    for host in ("0.0.0.0", "::", "192.168.0.1", "example.org"):
        with pytest.raises(ArgumentError, match="no API key"):
            check_address(ServerSettings(host=host))
        check_address(ServerSettings(host=host, keys=KEYS))
        check_address(ServerSettings(host=host, insecure=True))
    for host in ("127.0.0.1", "localhost", "::1"):
        check_address(ServerSettings(host=host))
    with bind(ServerSettings(port=0)) as taken:
        taken.listen()
        with pytest.raises(ArgumentError, match="choose another --port"):
            bind(ServerSettings(port=taken.getsockname()[1]))


def test_too_many_requests_are_counted_by_text() -> None:
    """A full queue refuses another request of the same key, but a key without waiting requests displaces one."""

    async def run() -> None:
        admission = Admission(Limits(running=1, queue=2))
        async with admission.place("a", 1):
            waiting = [asyncio.ensure_future(admission._enter("a", 1)) for _ in range(2)]
            await asyncio.sleep(0)
            with pytest.raises(ApiError, match="as many as this server takes"):
                async with admission.place("a", 1):
                    pass
            late = asyncio.ensure_future(admission._enter("b", 1))  # of a key with no waiting requests
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert [task.done() for task in (*waiting, late)] == [False, True, False]
            waiting.append(late)
            for task in waiting:
                task.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(run())
