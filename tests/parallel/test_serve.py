"""With `torchrun -m spectr serve --tensor-parallel 2` rank 0 runs the server, and all ranks end together."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from tests.parallel.conftest import ROOT

import spectr

pytestmark = pytest.mark.scale

LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "spectr"]


class Server:
    """A server with two ranks; its output goes to a file, which remains when its processes have ended."""

    def __init__(self, process: subprocess.Popen[bytes], said: Path) -> None:
        self.process, self.said = process, said

    @property
    def lines(self) -> list[str]:
        """The lines of output so far."""
        return self.said.read_text().splitlines()

    def url(self, seconds: float = 90) -> str:
        """Wait until the server listens, and return its address."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            for line in self.lines:
                if " at http://" in line:
                    return line.split(" at ")[1].split("/v1")[0]
            time.sleep(0.1)
        raise AssertionError(self.said.read_text())

    def ranks(self) -> dict[int, int]:
        """Return the process ids by rank."""
        found = {}
        with suppress(OSError):
            for child in Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split():
                for line in Path(f"/proc/{child}/environ").read_bytes().split(b"\0"):
                    if line.startswith(b"RANK="):
                        found[int(line.removeprefix(b"RANK="))] = int(child)
        return found


@contextmanager
def serving(folder: Path, said: Path) -> Iterator[Server]:
    """Run a server with a small model within the block, and kill all of its processes at the end."""
    asked = ["serve", "--model", str(folder), "--drafter", "lookup", "--dtype", "float64", "--port", "0", "--name", "m"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    with said.open("w") as file, subprocess.Popen(
        [*LAUNCHER, *asked, "--tensor-parallel", "2"], env=environment, stderr=file
    ) as process:  # fmt: skip
        server = Server(process, said)
        try:
            yield server
        finally:
            for left in (*server.ranks().values(), process.pid):
                with suppress(ProcessLookupError):
                    os.kill(left, signal.SIGKILL)


def _post(url: str, **body: Any) -> dict[str, Any]:
    data = json.dumps({"model": "m", **body}).encode()
    request = urllib.request.Request(f"{url}/v1/completions", data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        found: dict[str, Any] = json.load(response)
    return found


def _gone(processes: dict[int, int], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end and any(Path(f"/proc/{process}").exists() for process in processes.values()):
        time.sleep(0.1)
    return not any(Path(f"/proc/{process}").exists() for process in processes.values())


def test_two_ranks_serve_the_text_of_one_and_end_together(folder: Path, tmp_path: Path) -> None:
    """Two ranks serve the text of one process, and SIGTERM ends both without an error."""
    with serving(folder, tmp_path / "said") as server:
        url, ranks = server.url(), server.ranks()
        assert set(ranks) == {0, 1}
        found = _post(url, prompt="w3 w4 w5", max_tokens=24, seed=5, temperature=0.8)
        meant = spectr.load(folder, "none", dtype="float64").generate("w3 w4 w5", 24, seed=5, temperature=0.8)
        assert found["choices"][0]["text"] == meant.text
        server.process.send_signal(signal.SIGTERM)
        assert _gone(ranks, 30), server.said.read_text()
        assert not any("has ended" in line for line in server.lines), server.said.read_text()


def test_a_server_ends_when_a_rank_is_killed(folder: Path, tmp_path: Path) -> None:
    with serving(folder, tmp_path / "said") as server:
        server.url()
        ranks = server.ranks()
        os.kill(ranks[1], signal.SIGKILL)
        assert _gone(ranks, 30)
        assert server.process.wait(30) != 0
