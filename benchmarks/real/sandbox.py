"""Runs a program that a model wrote in a process of its own, with limits on time, memory and files.

The limits protect against programs that are wrong, endless or hungry for memory. They are no protection against a
program that means harm: it runs as the same user and can read files and use the network. So benchmarks run programs
only if they are asked to.
"""

import os
import secrets
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

__all__ = ["FAILED", "PASSED", "TIMED_OUT", "run_program"]

PASSED, FAILED, TIMED_OUT = "passed", "failed", "timed out"

_LIMITS = """import resource as _r
for _name, _most in (("CPU", {seconds}), ("AS", {memory}), ("FSIZE", 1 << 20), ("CORE", 0)):
    _r.setrlimit(getattr(_r, "RLIMIT_" + _name), (_most, _most))
del _r, _name, _most
"""


def run_program(source: str, seconds: float = 5.0, memory: int = 1 << 30) -> str:
    """Run a program in an empty folder, and return whether it passed: it must reach its last line.

    `seconds` limits both the time and the CPU time, and `memory` the bytes of its address space. The process sets its
    own limits before the program begins, because a process with threads must not run Python code between fork and exec.
    """
    token = secrets.token_hex(8)  # so that a program that ends early, even with exit code 0, has not passed
    limits = _LIMITS.format(seconds=int(seconds) + 1, memory=memory)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as out:
        path = Path(folder) / "program.py"
        path.write_text(f"{limits}{source}\nprint({token!r})\n", encoding="utf-8", errors="replace")
        process = subprocess.Popen(
            [sys.executable, "-I", str(path)], cwd=folder, env={}, stdin=subprocess.DEVNULL, stdout=out,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        is_late = _wait(process, seconds)
        out.seek(max(0, out.seek(0, os.SEEK_END) - 100))
        is_complete = out.read().decode("utf-8", errors="replace").rstrip().endswith(token)
    return TIMED_OUT if is_late else PASSED if is_complete and process.returncode == 0 else FAILED


def _wait(process: "subprocess.Popen[bytes]", seconds: float) -> bool:
    """Wait for a process, end it with all that it started, and return whether its time was over."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        is_late = True
    else:
        is_late = process.returncode == -signal.SIGXCPU
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    return is_late
