"""Clients that disconnect, never read or send half a request, and failures of the engine, do not affect others."""

import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch

from spectr.cli import main
from spectr.lm import LM
from spectr.models import memory
from spectr.serve import Limits
from spectr.serve.service import Service

LONG = {"prompt": "one two", "max_tokens": 400, "logit_bias": {"1": -100}, "seed": 1}
RESPONSE = {"input": "one two", "max_output_tokens": 400, "logit_bias": {"1": -100}, "seed": 1}


def settled(service: Service, handler: Any, most: float = 60) -> None:
    """Wait until no request is running or waiting; fail if some are left after `most` seconds."""
    deadline = time.monotonic() + most
    while time.monotonic() < deadline:
        load = service.lm.engine.load
        if not (
            load.running or load.prefilling or load.waiting or handler.admission.running or handler.admission.waiting
        ):
            return
        time.sleep(0.02)
    raise AssertionError(f"{service.lm.engine.load} and {handler.admission.running} places were not released")


def abandon(url: str, rng: random.Random, body: dict[str, Any]) -> None:
    """Request a text, and disconnect at a random moment."""
    host, port = url.removeprefix("http://").split(":")
    data = json.dumps(body).encode()
    path = "/v1/responses" if "input" in body else "/v1/completions"
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    whole = "\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data
    with socket.create_connection((host, int(port)), 20) as made:
        made.sendall(whole if rng.random() < 0.9 else whole[: rng.randrange(len(whole))])
        if rng.random() < 0.8:
            made.settimeout(rng.random() * 0.05 + 0.001)
            try:
                for _ in range(rng.randrange(5)):
                    made.recv(4096)
            except TimeoutError:
                pass
        if rng.random() < 0.3:  # reset the connection instead of closing it
            made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_disconnects_leak_nothing(other: Callable[..., Any], count: int) -> None:
    """After many clients have disconnected at random moments, nothing is left running, and texts are the same."""
    client, service = other(Limits(body_time=5, header_time=5, queue=10_000, running=8))
    url = str(client.base_url).rstrip("/")
    handler = service.handler
    meant = client.post("/v1/completions", json={**LONG, "max_tokens": 20}).json()["choices"]

    def work(first: int) -> None:
        rng = random.Random(first)
        for _ in range(count // 4):
            body = RESPONSE if rng.random() < 0.3 else {**LONG, "n": rng.choice([1, 3])}
            abandon(url, rng, {**body, "stream": rng.random() < 0.7})

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    settled(service, handler)
    gc.collect()
    assert client.post("/v1/completions", json={**LONG, "max_tokens": 20}).json()["choices"] == meant
    settled(service, handler)


def test_a_client_that_leaves_frees_its_row(other: Callable[..., Any]) -> None:
    client, service = other()
    with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as found:
        lines = found.iter_lines()
        next(lines)
        assert service.lm.engine.load.running == 1
    settled(service, service.handler)


def test_a_client_that_never_reads(other: Callable[..., Any]) -> None:
    """A client that never reads its stream is disconnected after `write_time`, and others are served meanwhile."""
    client, service = other(Limits(write_time=0.3))
    host, port = str(client.base_url).removeprefix("http://").rstrip("/").split(":")
    body = {**LONG, "stream": True, "n": 8, "logprobs": 20}
    data = json.dumps(body).encode()
    with socket.socket() as made:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        made.connect((host, int(port)))
        lines = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        made.sendall("\r\n".join([*lines, f"Content-Length: {len(data)}", "", ""]).encode() + data)
        assert client.post("/v1/completions", json={**LONG, "max_tokens": 5}).status_code == 200
        settled(service, service.handler)
    assert client.get("/health").status_code == 200


def test_a_text_that_takes_too_long(other: Callable[..., Any]) -> None:
    """A request that exceeds `request_time` gets status 504, and a stream ends with a timeout error."""
    client, service = other(Limits(request_time=0.1))
    found = client.post("/v1/completions", json={**LONG, "n": 16})
    assert found.status_code == 504
    with client.stream("POST", "/v1/completions", json={**LONG, "n": 16, "stream": True}) as stream:
        lines = [line for line in stream.iter_lines() if line]
    assert json.loads(lines[-2].removeprefix("data: "))["error"]["code"] == "timeout"
    assert lines[-1] == "data: [DONE]"
    settled(service, service.handler)


def test_memory_that_is_short(other: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A request for which there is no memory is refused with status 503; a running text is not affected."""
    client, service = other()
    asked = {**LONG, "max_tokens": 200}
    meant = client.post("/v1/completions", json=asked).json()["choices"]
    settled(service, service.handler)  # or this request may still count as running
    found = dict[str, Any]()

    def work() -> None:
        found["other"] = client.post("/v1/completions", json=asked).json()["choices"]

    thread = threading.Thread(target=work)
    thread.start()
    while not service.lm.engine.load.running and thread.is_alive():
        time.sleep(0.005)
    monkeypatch.setattr(memory, "available", lambda _: 1)
    service.lm.engine.scheduler.close()
    with httpx2.Client(base_url=client.base_url, timeout=60) as second:
        refused = second.post(
            "/v1/completions", json={"prompt": "one two", "max_tokens": 3, "spectr": {"drafter": "none"}}
        )
    thread.join()
    monkeypatch.undo()
    assert refused.status_code == 503, refused.text
    assert refused.json()["error"]["code"] == "out_of_memory"
    assert found["other"] == meant
    assert client.post("/v1/completions", json=asked).json()["choices"] == meant


def test_a_model_that_breaks(other: Callable[..., Any], lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the model gives status 500 without its details, and later requests work."""
    client, service = other()
    target = lm.engine.target
    score = type(target).score

    def broken(self: Any, *rest: Any, **more: Any) -> torch.Tensor:
        if state["is_broken"]:
            raise RuntimeError("a kernel failed: secret detail")
        return score(self, *rest, **more)

    state = {"is_broken": True}
    monkeypatch.setattr(type(target), "score", broken)
    found = client.post("/v1/completions", json={**LONG, "max_tokens": 5})
    assert found.status_code == 500
    assert "secret" not in found.text
    state["is_broken"] = False
    assert client.post("/v1/completions", json={**LONG, "max_tokens": 5}).status_code == 200
    settled(service, service.handler)


def start(folder: Path, *flags: str) -> tuple[subprocess.Popen[str], str]:
    """Start a server in its own process, and return the process and the address."""
    command = [
        sys.executable,
        "-m",
        "spectr",
        "serve",
        "--model",
        str(folder),
        "--drafter",
        "lookup",
        "--port",
        "0",
        *flags,
    ]
    made = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert made.stderr is not None
    for line in made.stderr:
        if line.startswith("serving"):
            return made, line.split(" at ")[1].split("/v1")[0]
    raise AssertionError("the server did not start")


def ended(process: subprocess.Popen[str], code: int) -> None:
    _, said = process.communicate(timeout=60)
    assert process.returncode == code, said
    assert "Traceback" not in said


def test_a_signal_lets_running_requests_finish(folder: Path) -> None:
    """After SIGTERM a running stream is completed, new requests get status 503, and the process exits with 0."""
    process, url = start(folder, "--dtype", "float64")
    with httpx2.Client(base_url=url, timeout=60) as client:
        with client.stream("POST", "/v1/completions", json={**LONG, "stream": True}) as found:
            lines = found.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            with httpx2.Client(base_url=url, timeout=60) as late:
                refused = late.post("/v1/completions", json=LONG)
                assert refused.status_code == 503
                assert "retry-after" in refused.headers
                assert late.get("/ready").status_code == 503
                assert late.get("/health").status_code == 200
            rest = list(lines)
        assert rest[-2] == "data: [DONE]" or "data: [DONE]" in rest
    ended(process, 0)


@pytest.mark.slow
def test_a_restarted_server_gives_the_same_text(folder: Path) -> None:
    texts = []
    for _ in range(2):
        process, url = start(folder, "--dtype", "float64")
        with httpx2.Client(base_url=url, timeout=60) as client:
            texts.append(client.post("/v1/completions", json={**LONG, "max_tokens": 30}).json()["choices"])
        process.kill()
        ended(process, -signal.SIGKILL)
    assert texts[0] == texts[1]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        pytest.param(["--host", "0.0.0.0"], "no API key was given", marks=pytest.mark.slow),
        pytest.param(["--model", "no-such-model"], "no-such-model", marks=pytest.mark.slow),
        pytest.param(
            ["--api-key-file", "/nonexistent"], "must be a file with one key per line", marks=pytest.mark.slow
        ),
    ],
)
def test_a_server_that_cannot_start(flags: list[str], words: str) -> None:
    """The command exits with status 2 and a message that says why, without a traceback."""
    command = [sys.executable, "-m", "spectr", "serve", "--port", "0", *flags]
    found = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert found.returncode == 2
    assert words in found.stderr
    assert "Traceback" not in found.stderr


def test_a_port_that_is_taken(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command exits with status 2 and advises another port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(SystemExit) as ended:
            main(("serve", "--model", str(folder), "--drafter", "none", "--port", port))
    assert ended.value.code == 2
    assert "choose another --port" in capsys.readouterr().err
