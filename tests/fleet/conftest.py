"""A small model in a folder, files of requests for it, and the streams of a server without failures."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.fleet.processes import Received, receive_all, server, started
from tests.saved import save_model, small_llama, tokenizer

Requests = Callable[..., Path]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_model(small_llama(0, 320), tmp_path_factory.mktemp("fleet"), tokenizer()))


@pytest.fixture(scope="session")
def undisturbed(folder: str) -> list[Received]:
    """The 16 streams of a single server without failures."""
    with started(server(folder)) as (alone,):
        received = asyncio.run(receive_all(alone.url, range(16)))
    assert all(one.is_sound for one in received)
    return received


def request_line(number: int, **body: Any) -> dict[str, Any]:
    """Return a line with a request; every second one is a chat."""
    if number % 2:
        asked = {"prompt": f"one two {number}", "max_tokens": 40, **body}
        return {"custom_id": f"r-{number}", "method": "POST", "url": "/v1/completions", "body": asked}
    asked = {"messages": [{"role": "user", "content": f"tides {number}"}], "max_tokens": 40, **body}
    return {"custom_id": f"r-{number}", "method": "POST", "url": "/v1/chat/completions", "body": asked}


def write_requests(where: Path, lines: Sequence[Any]) -> Path:
    """Write a batch file; a line is an object, literal text, or the number of a request."""
    given = [request_line(line) if isinstance(line, int) else line for line in lines]
    path = where / "requests.jsonl"
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in given))
    return path


@pytest.fixture
def requests(tmp_path: Path) -> Requests:
    """A function that writes a batch file with a number of requests, or with the given lines."""

    def write(lines: int | Sequence[Any]) -> Path:
        return write_requests(tmp_path, range(lines) if isinstance(lines, int) else lines)

    return write


def read_results(path: Path) -> list[dict[str, Any]]:
    """Return the results of a batch, without their times of creation."""
    found = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    for result in found:
        if result["response"] is not None:
            result["response"]["body"].pop("created", None)
    return found
