"""Compiles a grammar in a separate process first, which is killed if it exceeds the limits of time or memory.

xgrammar compiles in one call that cannot be interrupted. A grammar that compiles in the other process compiles here as
well, since it is the same work; so only success or failure is sent back. The process serves one grammar after another.
Run as a module, this file is that process.
"""

import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from pathlib import Path
from typing import Any

from spectr.errors import ArgumentError
from spectr.grammar.vocabulary import Vocabulary, xgrammar

__all__ = ["Trial", "error_text"]

_START = 120.0  # time limit for starting the process, in seconds
_SLACK = 10.0  # wall-clock limit as a multiple of the processor-time limit, for busy machines
_IDLE = 300.0  # seconds without a request after which the process ends itself


def error_text(error: BaseException) -> str:
    """Return the message of xgrammar's error, without its time stamp and source files. A message that quotes a part of
    a character comes as an error in decoding it."""
    whole = error.object.decode(errors="replace") if isinstance(error, UnicodeDecodeError) else str(error)
    text = next(iter(whole.strip().splitlines()), type(error).__name__)
    while text.startswith("[") and ": " in text:
        text = text.split(": ", 1)[1]
    return text.removeprefix("Check failed: ").strip()


class Trial:
    """A process that compiles grammars for one vocabulary. It is thread-safe and compiles one grammar at a time."""

    def __init__(self, vocabulary: Vocabulary, seconds: float, memory: int) -> None:
        self.vocabulary, self.seconds, self.memory = vocabulary, seconds, memory
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None

    def attempt(self, text: str, root: str) -> None:
        """Compile a grammar in the process; raises ArgumentError if that fails."""
        with self._lock:
            request = {"text": text, "root": root, "seconds": self.seconds, "memory": self.memory}
            answer = self._send(self._running(), request, _SLACK * self.seconds)
            if answer is None:  # it was idle for so long that it ended as it was asked
                answer = self._send(self._running(), request, _SLACK * self.seconds)
        if answer is None:
            raise ArgumentError("this grammar cannot be compiled: the process that compiles it ended without an answer")
        if answer.get("error"):
            raise ArgumentError(f"this grammar cannot be compiled: {answer['error']}")

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._process is not None:
                _end(self._process)

    def _running(self) -> "subprocess.Popen[str]":
        """Return the process; start it if it is not running."""
        if self._process is None or self._process.poll() is not None:
            self._process = _start()
            weakref.finalize(self, _end, self._process)
            self._send(self._process, {"info": self.vocabulary.info.serialize_json()}, _START)
        return self._process

    def _send(
        self, process: "subprocess.Popen[str]", request: dict[str, Any], patience: float
    ) -> dict[str, Any] | None:
        """Send a request and return the answer, or None if the process has ended by itself. A process that does not
        answer within `patience` seconds is killed."""
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(patience, process.kill)
        timer.start()
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        finally:
            timer.cancel()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        status = process.wait()
        _end(process)
        self._process = None
        if status == 0:
            return None
        raise ArgumentError(
            f"a grammar must compile within {self.seconds:g} seconds and {self.memory >> 20} MiB, and this one does "
            f"not ({_ending(status)}); make it smaller, with fewer options and shorter repetitions"
        )


def _start() -> "subprocess.Popen[str]":
    path = os.pathsep.join([str(Path(__file__).parents[2]), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-m", "spectr.grammar.trial"], env=environment, text=True, encoding="utf-8",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    )  # fmt: skip


def _end(process: "subprocess.Popen[str]") -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(BrokenPipeError):  # what was not written
                stream.close()


def _ending(status: int) -> str:
    if status < 0:
        return "it took too long" if -status in (signal.SIGKILL, getattr(signal, "SIGXCPU", 0)) else "it crashed"
    return "it ran out of memory"


def answer_requests() -> None:
    """Answer requests from stdin until it is closed or idle."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # output of libraries must not be mistaken for an answer
    compiler: Any = None
    while (line := _next_line()) is not None:
        request = json.loads(line)
        if "info" in request:
            info = xgrammar().TokenizerInfo.deserialize_json(request["info"])
            compiler = xgrammar().GrammarCompiler(info, max_threads=1, cache_enabled=False)
            answer = {}
        else:
            answer = _compiled(compiler, request)
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def _next_line() -> str | None:
    if os.name == "posix" and not select.select([sys.stdin], [], [], _IDLE)[0]:
        return None
    return sys.stdin.readline() or None


def _compiled(compiler: Any, request: dict[str, Any]) -> dict[str, str]:
    _limit(request["seconds"], request["memory"])
    try:
        compiler.compile_grammar(request["text"], root_rule_name=request["root"])
    except (RuntimeError, UnicodeDecodeError, MemoryError) as error:
        if isinstance(error, MemoryError) or "bad_alloc" in str(error):
            raise SystemExit(1) from None  # a new process is started for the next grammar
        return {"error": error_text(error)}
    return {}


def _limit(seconds: float, memory: int) -> None:
    """Let the system end this process if it uses more processor time or memory from now on."""
    if os.name != "posix":
        return
    import resource

    spent = int(time.process_time() + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (spent, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    used = Path("/proc/self/statm")
    if used.exists():
        room = int(used.read_text().split()[0]) * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (room, resource.getrlimit(resource.RLIMIT_AS)[1]))


if __name__ == "__main__":
    answer_requests()
