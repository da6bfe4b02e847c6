"""Processes that are forked from one that has imported everything, so that each starts in a second rather than seven.

They are processes like any other: with their own memory, their own sockets, and signals that end them alone.
"""

import multiprocessing
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

__all__ = ["Forked", "forkserver", "free_port", "run_spectr", "say_into"]

_ROOT = Path(__file__).resolve().parents[1]
_IMPORTED = (
    "tests.forked", "tests.parallel.ranks", "spectr.lm", "spectr.models.hf", "spectr.cli.serve", "spectr.cli.batch",
    "spectr.serve.run", "spectr.fleet.batch", "spectr.fleet.router", "spectr.fleet.over_http", "httpx2",
    "transformers.models.llama.modeling_llama",
)  # fmt: skip


def forkserver() -> Any:
    """What makes processes from the one that has imported everything. It is started once, with a path to the tests."""
    paths = [str(_ROOT), str(_ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    if paths[0] not in paths[2].split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(_IMPORTED))
    return context


def free_port() -> int:
    """Return a port on which nothing listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say_into(log: Path) -> None:
    """Write everything that this process says to a file."""
    said = os.open(log, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)


def run_spectr(arguments: tuple[str, ...], environment: dict[str, str], log: Path) -> None:
    """`spectr` with some arguments and variables, in this process."""
    say_into(log)
    os.environ |= environment
    sys.argv = ["spectr", *arguments]
    from spectr.cli import main

    main()


class Forked:
    """A process, and the file that it writes to."""

    def __init__(self, target: Callable[..., None], *arguments: Any, log: Path) -> None:
        self.log = log
        self._process = forkserver().Process(target=target, args=(*arguments, log), daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        """Its number."""
        found: int = self._process.pid
        return found

    @property
    def said(self) -> str:
        """What it wrote so far."""
        return self.log.read_text() if self.log.exists() else ""

    def poll(self) -> int | None:
        """Its exit code, or None as long as it runs."""
        code: int | None = self._process.exitcode
        return code

    def wait(self, most: float = 600.0) -> int | None:
        """Its exit code, once it has ended, or None after so many seconds."""
        self._process.join(most)
        return self.poll()

    def kill(self) -> None:
        """End it with a signal that cannot be caught."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        self.wait()

    def wait_for(self, holds: Callable[[str], Any], most: float = 600.0) -> Any:
        """What a condition on its words gives, once that is true."""
        deadline = time.monotonic() + most
        while not (found := holds(self.said)):
            assert self.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.02)
        return found
