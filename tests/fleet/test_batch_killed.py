"""The results of a `spectr batch` that is killed twice equal those of a process that ran to its end."""

import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fleet.conftest import read_results, write_requests
from tests.fleet.processes import children
from tests.forked import Forked, run_spectr, say_into

pytestmark = pytest.mark.scale
_COUNT = 300
CLUSTER = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32), "RAY_USAGE_STATS_ENABLED": "0"}


def batch(requests: Path, out: Path, folder: str, *more: str) -> Forked:
    """Start a batch in its own process."""
    model = ("--model", folder, "--dtype", "float64", "--drafter", "lookup")
    arguments = ("batch", str(requests), "--out", str(out), *model, *more)
    return Forked(run_spectr, arguments, CLUSTER, log=out.with_suffix(".log"))


def run_cluster(environment: dict[str, str], log: Path) -> None:
    """Run a local Ray cluster until it is killed, and print its address."""
    say_into(log)
    os.environ |= environment
    import ray

    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=256 << 20, log_to_driver=False)
    sys.stdout.write(f"address={ray.get_runtime_context().gcs_address};\n")
    while True:
        time.sleep(60)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Forked, str]]:
    """A cluster that outlives the killed batches, and its address."""
    pytest.importorskip("ray", reason="needs Ray: pip install 'spectr-lm[ray]'")
    running = Forked(run_cluster, CLUSTER, log=tmp_path_factory.mktemp("cluster") / "said")
    try:
        yield running, running.wait_for(lambda said: re.search(r"address=(.*);", said)).group(1)
    finally:
        running.kill()


def journal_lines(out: Path) -> int:
    path = out.with_name(f"{out.name}.journal")
    return path.read_bytes().count(b"\n") if path.exists() else 0


def wait_for(running: Forked, out: Path, lines: int) -> None:
    """Wait until the journal has at least `lines` lines."""
    running.wait_for(lambda _: journal_lines(out) >= lines)


@pytest.fixture(scope="module")
def undisturbed_batch(folder: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The files of the requests and of the results of a process that ran to its end."""
    where = tmp_path_factory.mktemp("batch")
    path, out = write_requests(where, range(_COUNT)), where / "undisturbed.jsonl"
    running = batch(path, out, folder)
    assert running.wait() == 0, running.said
    assert len(read_results(out)) == _COUNT
    return path, out


def test_one_process_killed_twice(undisturbed_batch: tuple[Path, Path], folder: str, tmp_path: Path) -> None:
    """A batch in one process that is killed twice continues from its journal and has the same results."""
    path, expected = undisturbed_batch
    out, few = tmp_path / "out.jsonl", ("--chunk", "8", "--max-running", "8")
    for lines in (20, 150):
        running = batch(path, out, folder, *few)
        wait_for(running, out, lines)
        running.kill()
        assert not out.exists()
    before = journal_lines(out)
    running = batch(path, out, folder, *few)
    assert running.wait() == 0, running.said
    assert before < _COUNT
    assert f"{before - 1} of {_COUNT} lines have results" in running.said
    assert read_results(out) == read_results(expected)


def test_two_workers_on_ray_killed_twice(
    undisturbed_batch: tuple[Path, Path], cluster: tuple[Forked, str], folder: str, tmp_path: Path
) -> None:
    """A batch on Ray has the same results when its driver is killed twice and a worker is killed in the third run."""
    path, expected = undisturbed_batch
    out, flags = (
        tmp_path / "out.jsonl",
        ("--chunk", "8", "--max-running", "4", "--address", cluster[1], "--workers", "2"),
    )
    done = [1]
    for _ in range(2):
        running = batch(path, out, folder, *flags)
        wait_for(running, out, done[-1] + 24)
        running.kill()
        done.append(journal_lines(out))
        assert not out.exists()
    running = batch(path, out, folder, *flags)
    wait_for(running, out, done[-1] + 24)
    os.kill(children(cluster[0].pid, "MapWorker")[0], signal.SIGKILL)
    assert running.wait() == 0, running.said
    assert done[-1] < _COUNT
    assert f"{done[-1] - 1} of {_COUNT} lines have results" in running.said
    assert read_results(out) == read_results(expected)
