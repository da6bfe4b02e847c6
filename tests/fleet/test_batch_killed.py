"""`spectr batch` as a user runs it, killed twice: the results are those of one process that nobody disturbed."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.fleet.conftest import read_results, write_requests
from tests.fleet.processes import children

pytestmark = pytest.mark.scale
_COUNT = 300


def command(requests: Path, out: Path, folder: str, *more: str) -> list[str]:
    model = ("--model", folder, "--dtype", "float64", "--drafter", "lookup")
    return [sys.executable, "-m", "spectr", "batch", str(requests), "--out", str(out), *model, *more]


def journal_lines(out: Path) -> int:
    path = out.with_name(f"{out.name}.journal")
    return path.read_bytes().count(b"\n") if path.exists() else 0


def killed_at(running: subprocess.Popen[bytes], out: Path, lines: int) -> None:
    """Wait until so many lines are done, and kill the process as nothing can be caught."""
    while journal_lines(out) < lines:
        assert running.poll() is None, "the batch ended before it could be killed"
        time.sleep(0.01)
    os.kill(running.pid, signal.SIGKILL)
    running.wait()


@pytest.fixture(scope="module")
def undisturbed(folder: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The requests, and the results of a process that ran to its end."""
    where = tmp_path_factory.mktemp("batch")
    path, out = write_requests(where, range(_COUNT)), where / "undisturbed.jsonl"
    subprocess.run(command(path, out, folder), check=True, timeout=600)
    assert len(read_results(out)) == _COUNT
    return path, out


def test_one_process_killed_twice(undisturbed: tuple[Path, Path], folder: str, tmp_path: Path) -> None:
    path, expected = undisturbed
    out = tmp_path / "out.jsonl"
    again = command(path, out, folder, "--chunk", "8", "--max-running", "8")
    for lines in (20, 150):
        killed_at(subprocess.Popen(again), out, lines)
        assert not out.exists()
    before = journal_lines(out)
    ran = subprocess.run(again, check=True, timeout=600, capture_output=True, text=True)
    assert before < _COUNT
    assert f"{before - 1} of {_COUNT} lines have results" in ran.stderr
    assert read_results(out) == read_results(expected)


def test_two_workers_on_ray_killed_twice(undisturbed: tuple[Path, Path], folder: str, tmp_path: Path) -> None:
    """First the process that started the batch, and then, in the next run, one of its workers."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'spectr-lm[ray]'")
    path, expected = undisturbed
    out = tmp_path / "out.jsonl"
    again = command(path, out, folder, "--chunk", "8", "--max-running", "4", "--ray", "--workers", "2")
    killed_at(subprocess.Popen(again), out, 20)
    before = journal_lines(out)
    running = subprocess.Popen(again)
    while journal_lines(out) < before + 30:
        assert running.poll() is None
        time.sleep(0.01)
    worker = children(running.pid, "MapWorker")[0]
    os.kill(worker, signal.SIGKILL)
    assert running.wait(240) == 0
    assert read_results(out) == read_results(expected)
