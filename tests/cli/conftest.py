"""Runs the command in this process and returns exit code, stdout and stderr; and small models as folders."""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.saved import save_model, small_llama, tokenizer

from spectr.cli import main

COMMAND = (sys.executable, "-m", "spectr")


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str


Spectr = Callable[..., Ran]


def forget_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unset the variables that change how tables are printed. The environment of pytest-xdist's workers has some."""
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def spectr(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Spectr:
    """Run `spectr` in this process, as if its output went to a file."""
    forget_the_terminal(monkeypatch)

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 0 if code is None else 1, said.out, said.err)

    return run


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model with a chat template."""
    return str(save_model(small_llama(0, 320), tmp_path_factory.mktemp("tiny"), tokenizer()))


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A small model that never ends a text and has a long context, so that it must be interrupted."""
    net, words = small_llama(0, 320), tokenizer()
    net.config.max_position_embeddings = 1 << 15
    net.config.eos_token_id = net.generation_config.eos_token_id = words.eos_token = None
    return str(save_model(net, tmp_path_factory.mktemp("endless"), words))


@pytest.fixture(scope="session")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model without a chat template."""
    return save_model(small_llama(0, 320), tmp_path_factory.mktemp("plain"), tokenizer(template=None))
