"""The commands of `benchmarks` as functions, and the small target that the tests of `spectr bench` use."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.bench.conftest import target
from tests.cli.conftest import Ran

from benchmarks.command import run_command

__all__ = ["target"]

Command = Callable[..., Ran]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a function of `benchmarks` as its module does, in this process."""

    def run(function: Callable[..., Any], *arguments: str) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_command(f"benchmarks.{function.__name__}", function, arguments)
        said = capsys.readouterr()
        return Ran(int(ended.value.code or 0), said.out, said.err)

    return run
