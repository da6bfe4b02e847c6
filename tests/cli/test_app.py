"""The command as a whole: version, help, suggestions, one clean line for what is refused, and what it imports."""

import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import pytest

from spectr.cli import main
from spectr.cli import rules as rules_module
from spectr.errors import ArgumentError
from spectr.version import __version__

Spectr = Callable[..., Any]


def test_version(spectr: Spectr) -> None:
    ran = spectr("--version")
    assert (ran.code, ran.out, ran.err) == (0, f"spectr {__version__}\n", "")


def test_the_script_is_this_main() -> None:
    (script,) = entry_points(group="console_scripts", name="spectr")
    assert script.load() is main


@pytest.mark.parametrize(
    "arguments", [("--help",), ("rules", "-h"), ("rules", "compare", "--help"), ("bench", "--help")]
)
def test_help_is_a_result(spectr: Spectr, arguments: tuple[str, ...]) -> None:
    ran = spectr(*arguments)
    assert ran.code == 0
    assert ran.out.startswith(f"Usage: spectr {' '.join(arguments[:-1])}".rstrip())
    assert ran.err == ""


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (("ruls",), "'rules'"),
        (("rules", "compair"), "'compare'"),
        (("rules", "compare", "--famly", "zipf"), "--family"),
        (("rules", "--jsn"), "--json"),
        (("rules", "compare", "--family", "zpf"), "did you mean zipf?"),
        (("cite", "ksec"), "did you mean kseq"),
        (("bench", "rules", "--rules", "rase"), "did you mean race?"),
    ],
)
def test_what_is_unknown_is_answered_with_a_suggestion(
    spectr: Spectr, arguments: tuple[str, ...], suggestion: str
) -> None:
    ran = spectr(*arguments)
    assert ran.code == 2
    assert suggestion in ran.err
    assert ran.out == ""


def test_a_refusal_is_one_line_and_exit_code_two(spectr: Spectr, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ArgumentError("first line\nsecond line")

    monkeypatch.setattr(rules_module, "rule", refuse)
    ran = spectr("rules")
    assert (ran.code, ran.out, ran.err) == (2, "", "spectr: first line second line\n")


def test_a_bug_is_not_dressed_up_as_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(rules_module, "rule", break_down)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["rules"])


def test_as_a_process() -> None:
    """Through the interpreter, with a pipe for stdout: results there, the refusal on stderr, no traceback."""
    code = "from spectr.cli import main; main()"
    good = subprocess.run([sys.executable, "-c", code, "cite"], capture_output=True, text=True, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.startswith("@software{spectr,")
    bad = subprocess.run([sys.executable, "-c", code, "cite", "nothing"], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("spectr: no rule is called 'nothing'")
    assert bad.stderr.count("\n") == 1


def test_importing_spectr_leaves_the_command_line_alone() -> None:
    heavy = ("typer", "rich", "matplotlib", "transformers")
    code = f"import sys, spectr, spectr.theory; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
