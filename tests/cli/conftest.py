"""The command as a function: arguments in; exit code, stdout and stderr out."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from spectr.cli import main


@dataclass(frozen=True, slots=True)
class Ran:
    code: int
    out: str
    err: str


Spectr = Callable[..., Ran]


@pytest.fixture
def spectr(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Spectr:
    """Run `spectr` in this process, as if its output went to a file."""
    for name in ("COLUMNS", "LINES", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str) -> Ran:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(arguments)
        said = capsys.readouterr()
        code = ended.value.code
        return Ran(code if isinstance(code, int) else 0 if code is None else 1, said.out, said.err)

    return run
