"""The commands of docs/tutorial.md run as they stand, in order, but for the port of the server.

The Python examples of the page are doctests and run with the other pages. The first block installs spectr, and is what
the tests themselves were installed by.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest

from spectr.models.catalog import locate

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(locate("smollm2-135m") is None, reason="needs the default model: spectr pull smollm2-135m"),
]

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8")
INSTALL, *COMMANDS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
SERVE = next(command for command in COMMANDS if command.startswith("make serve"))


@pytest.fixture(scope="module")
def bash(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    """A folder to work in, and an environment whose `spectr` is the one under test."""
    folder = tmp_path_factory.mktemp("tutorial")
    script = folder / "bin" / "spectr"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m spectr "$@"\n', encoding="utf-8")
    script.chmod(0o755)
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    return folder, {**os.environ, "PATH": f"{script.parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": paths}


def run(command: str, bash: tuple[Path, dict[str, str]]) -> subprocess.CompletedProcess[str]:
    folder, environment = bash
    ran = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, timeout=400, check=False, cwd=folder, env=environment
    )
    assert ran.returncode == 0, ran.stderr
    return ran


@pytest.fixture(scope="module")
def url(bash: tuple[Path, dict[str, str]]) -> Iterator[str]:
    """The server of the page, on a free port. The packages that `make serve` would install are those of the tests."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder, environment = bash
    flags = shlex.split(SERVE)[-1].removeprefix("FLAGS=")
    command = ["spectr", "serve", *flags.split(), "--port", str(port)]
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and server.poll() is None:
            with suppress(OSError), urlopen(f"http://127.0.0.1:{port}/ready"):
                break
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
        server.terminate()
        assert server.wait(60) == 0


def test_the_page_installs_first_and_has_all_parts() -> None:
    assert INSTALL.startswith("make demo\n")
    starts = ["spectr generate", "spectr generate", "make serve", "curl", "spectr replay", "curl", "spectr audit"]
    assert [start for start, command in zip(starts, COMMANDS, strict=False) if not command.startswith(start)] == []


def test_drafts_do_not_change_the_text(bash: tuple[Path, dict[str, str]]) -> None:
    drafted, plain = (run(command, bash) for command in COMMANDS[:2])
    assert drafted.stdout == plain.stdout
    assert " 1.00 tokens per call" in plain.stderr
    assert " 0 of 0 draft tokens" not in drafted.stderr  # how many is decided while running, by the machine's speed


def test_what_is_served_is_replayed(bash: tuple[Path, dict[str, str]], url: str) -> None:
    ask, replay, ready = COMMANDS[3:6]
    run(ask.replace("http://127.0.0.1:8000", url), bash)
    replayed = run(replay, bash)
    assert "the same tokens as in the receipt" in replayed.stderr
    assert replayed.stdout == run(COMMANDS[0], bash).stdout
    assert '"violations":0' in run(ready.replace("http://127.0.0.1:8000", url), bash).stdout


@pytest.mark.parametrize("command", COMMANDS[6:])
def test_audits_hold(bash: tuple[Path, dict[str, str]], command: str) -> None:
    found = re.search(r"(\d+) of (\d+) lossless claims hold", run(command, bash).stdout)
    assert found is not None
    assert found[1] == found[2]
