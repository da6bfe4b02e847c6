"""The commands of `benchmarks` as functions, and the small target that the tests of `spectr bench` use."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.bench.conftest import llama, target
from tests.cli.conftest import Ran, forget_the_terminal

from benchmarks.command import run_command
from spectr.models.head import head_of
from spectr.models.trained import Trained, fingerprint, save_drafter

__all__ = ["target"]

Command = Callable[..., Ran]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run a function of `benchmarks` as its module does, in this process, as if its output went to a file."""
    forget_the_terminal(monkeypatch)

    def run(function: Callable[..., Any], *arguments: str) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            run_command(f"benchmarks.{function.__name__}", function, arguments)
        said = capsys.readouterr()
        return Ran(int(ended.value.code or 0), said.out, said.err)

    return run


@pytest.fixture(scope="session")
def head(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A head that drafts something, for the target of these tests."""
    net, folder = llama(), tmp_path_factory.mktemp("head")
    torch.manual_seed(0)
    made = head_of(net, 1, (1,))
    with torch.no_grad():
        for weights in made.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.2)
    save_drafter(folder, made, Trained("target", fingerprint(net), made.as_data()), torch.arange(300))
    return str(folder)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    """A file of three prompts."""
    made = tmp_path / "prompts.txt"
    made.write_text("the harbour\none two three four\nwinter stays open through the winter\n")
    return made
