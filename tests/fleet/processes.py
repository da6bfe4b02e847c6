"""Servers and routers in separate processes, which tests can kill, and clients that record their streams."""

import asyncio
import json
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
from tests.forked import Forked, run_spectr

__all__ = ["Process", "Received", "children", "ready", "receive", "receive_all", "server", "started", "texts"]


def children(pid: int, name: str) -> list[int]:
    """Return the descendants of a process whose command line contains `name`."""
    found, below = [], [pid]
    while below:
        parent = below.pop()
        for tasks in Path(f"/proc/{parent}/task").glob("*/children"):
            for child in map(int, tasks.read_text().split()):
                below.append(child)
                if name in Path(f"/proc/{child}/cmdline").read_text().replace("\0", " "):
                    found.append(child)
    return found


@dataclass
class Process:
    """A command that listens on an address."""

    running: Forked
    url: str = ""

    def kill(self) -> None:
        """Kill the process with SIGKILL, which it cannot catch."""
        self.running.kill()


@contextmanager
def started(*commands: Sequence[str]) -> Iterator[list[Process]]:
    """Run several commands of `spectr` within the block, and yield them when all of them listen."""
    with TemporaryDirectory() as folder:
        made = [
            Process(Forked(run_spectr, tuple(arguments), {}, log=Path(folder) / f"said-{number}"))
            for number, arguments in enumerate(commands)
        ]
        try:
            for process in made:
                process.url = process.running.wait_for(lambda said: re.search(r"https?://[\w.:\[\]]+", said)).group()
            yield made
        finally:
            for process in made:
                process.kill()


def server(folder: str, *more: str) -> list[str]:
    """Return the command of a server with the small model, in float64 so that texts do not depend on the batch."""
    model = ["--model", folder, "--name", "tiny", "--dtype", "float64", "--drafter", "lookup"]
    return ["serve", "--port", "0", *model, *more]


def ready(url: str, replicas: int = 1, most: float = 300.0) -> None:
    """Wait until a router has at least `replicas` replicas."""
    deadline = time.monotonic() + most
    while time.monotonic() < deadline:
        found = httpx2.get(f"{url}/ready")
        if found.status_code == 200 and found.json().get("replicas", replicas) >= replicas:
            return
        time.sleep(0.05)
    raise AssertionError(f"{url} did not get {replicas} replicas")


@dataclass
class Received:
    """What a client has received of a stream."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    ids: list[str] = field(default_factory=list)
    seed: int | None = None
    completion_tokens: int | None = None
    error: dict[str, Any] | None = None
    has_ended: bool = False

    def add(self, line: str) -> None:
        """Record one line of the stream."""
        if line.startswith("id: "):
            self.ids.append(line[4:])
        elif line == "data: [DONE]":
            self.has_ended = True
        elif line.startswith("data: "):
            self._take(json.loads(line[6:]))

    def _take(self, data: dict[str, Any]) -> None:
        self.error = data.get("error", self.error)
        for choice in data.get("choices", ()):
            self.text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            self.finish_reason = choice["finish_reason"] or self.finish_reason
            self.tokens += data["spectr"]["tokens"]
        if data.get("choices") == []:
            self.seed, self.completion_tokens = data["spectr"]["seed"], data["usage"]["completion_tokens"]

    @property
    def is_sound(self) -> bool:
        """Whether the stream ended without an error and contained every token exactly once."""
        counts = [int(name.partition(":")[0]) for name in self.ids]
        return (
            self.has_ended
            and self.error is None
            and self.finish_reason is not None
            and self.completion_tokens == len(self.tokens)
            and counts == sorted(counts)
            and counts[-1] == len(self.tokens)
        )


def texts(received: Sequence[Received]) -> list[tuple[str, list[int], str | None]]:
    """Return text, tokens and finish reason of each stream, for comparison."""
    return [(one.text, one.tokens, one.finish_reason) for one in received]


async def receive(client: httpx2.AsyncClient, number: int, received: Received, **body: Any) -> None:
    """Read a stream to its end."""
    asked = {
        "prompt": f"one two {number}", "max_tokens": 200, "seed": number, "temperature": 1.0, "stream": True,
        "stream_options": {"include_usage": True, "event_ids": True}, **body,
        "spectr": {"tokens": True, "receipt": False, **body.get("spectr", {})},
    }  # fmt: skip
    async with client.stream("POST", "/v1/completions", json=asked) as found:
        if found.status_code != 200:
            received.error = json.loads(await found.aread())["error"]
            return
        async for line in found.aiter_lines():
            received.add(line)


async def receive_all(url: str, numbers: Sequence[int], disturb: Any = None, **body: Any) -> list[Received]:
    """Read several streams concurrently; call `disturb` with what they have received until it returns True."""
    received = [Received() for _ in numbers]
    async with httpx2.AsyncClient(base_url=url, timeout=600) as client:
        tasks = [
            asyncio.ensure_future(receive(client, number, own, **body))
            for number, own in zip(numbers, received, strict=True)
        ]
        while disturb is not None and not disturb(received):
            assert not all(task.done() for task in tasks), "the streams ended before they could be disturbed"
            await asyncio.sleep(0.005)
        await asyncio.gather(*tasks)
    return received
