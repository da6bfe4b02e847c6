"""Jobs started with torchrun, and small models for them."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.parallel.cases import save_tiny

ROOT = Path(__file__).resolve().parents[2]
Job = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with 4 heads and 2 key-value heads."""
    return save_tiny(tmp_path_factory.mktemp("target"), 3)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller model that serves as a drafter."""
    return save_tiny(tmp_path_factory.mktemp("drafter"), 4, 1)


@pytest.fixture(scope="session")
def torchrun(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """A function that runs the worker in `size` processes, and returns the results of rank 0."""

    def run(size: int, *arguments: object) -> dict[str, Any]:
        out = tmp_path_factory.mktemp("job") / "found.json"
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
        given = [str(ROOT / "tests" / "parallel" / "worker.py"), *map(str, arguments), str(out)]
        paths = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [*launcher, *given], env={**os.environ, "PYTHONPATH": paths}, capture_output=True, text=True, timeout=600,
            check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-4000:]
        found: dict[str, Any] = json.loads(out.read_text())
        return found

    return run
