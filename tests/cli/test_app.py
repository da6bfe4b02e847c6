"""The whole command: version, help, suggestions, one-line errors, exit codes, and imports."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cli.conftest import COMMAND

from spectr.cli import app, main
from spectr.cli.app import COMMANDS
from spectr.errors import ArgumentError
from spectr.version import __version__

Spectr = Callable[..., Any]


def commands() -> Iterator[tuple[str, Any, Any]]:
    """Yield path, command and context of the root and of all subcommands."""

    def below(command: Any, name: str, parent: Any) -> Iterator[tuple[str, Any, Any]]:
        context = command.make_context(name, [], parent=parent, resilient_parsing=True)
        yield context.command_path, command, context
        for one in getattr(command, "list_commands", lambda _: ())(context):
            yield from below(command.get_command(context, one), one, context)

    yield from below(typer.main.get_command(app), "spectr", None)


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


@pytest.mark.parametrize("arguments", [(), ("bench",), ("tree",)])
def test_a_group_alone_is_answered_with_its_help(spectr: Spectr, arguments: tuple[str, ...]) -> None:
    ran = spectr(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("Usage: spectr")


def test_version_imports_no_torch() -> None:
    """Started as a user does, it imports no slow packages."""
    ran = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "spectr", "--version"], capture_output=True, text=True, check=True
    )
    imported = {line.rpartition("|")[2].strip() for line in ran.stderr.splitlines()}
    assert "typer" in imported  # it is the list of imports
    assert not {"torch", "transformers", "numpy", "spectr.cli.generate"} & imported


def test_no_help_imports_torch() -> None:
    """Every command's help, one after the other in one fresh process."""
    code = (
        "import sys, typer\n"
        "from spectr.cli import app\n"
        "def below(command, name, parent):\n"
        "    context = command.make_context(name, [], parent=parent, resilient_parsing=True)\n"
        "    assert command.get_help(context)\n"
        "    for one in getattr(command, 'list_commands', lambda _: ())(context):\n"
        "        below(command.get_command(context, one), one, context)\n"
        "below(typer.main.get_command(app), 'spectr', None)\n"
        "print([name for name in ('torch', 'numpy', 'transformers') if name in sys.modules])\n"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_lists_of_commands_show_whole_sentences() -> None:
    """Nothing is cut, and the sentences of the list, which imports no command, equal the commands' own help."""
    root = next(commands())[1]
    for path, command, context in commands():
        assert "..." not in command.get_help(context).partition("Commands:")[2], path
        if path.count(" ") == 1:
            name = path.split()[1]
            said = root.sentence(context, name).removesuffix(".")
            assert command.get_short_help_str(10_000).startswith(said), name
            assert len(said) <= 66  # one line in a terminal of 80 columns
    assert set(COMMANDS) == {path.split()[1] for path, _, _ in commands() if " " in path}


def test_flags_that_several_commands_share_mean_the_same() -> None:
    """`--prompts` is a file and `--texts` a number, `--json` a switch; a model is a name."""
    meant = {"--prompts": "FILE", "--texts": "N", "--model": "NAME", "--device": "DEVICE", "--rule": "RULE"}
    found = [
        (path, flag, parameter.metavar)
        for path, command, _ in commands()
        for parameter in command.params
        for flag in parameter.opts
        if flag in meant
    ]
    assert len(found) > 12
    assert [(path, flag, metavar) for path, flag, metavar in found if metavar != meant[flag]] == []


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (("ruls",), "there is no command 'ruls'; did you mean rules? (see spectr --help)"),
        (("rules", "compair"), "did you mean compare?"),
        (("rules", "compare", "--famly", "zipf"), "--family"),
        (("rules", "--jsn"), "there is no option --jsn; did you mean --json? (see spectr rules --help)"),
        (("rules", "compare", "--family", "zpf"), "did you mean zipf?"),
        (("cite", "ksec"), "did you mean kseq"),
        (("bench", "rules", "--rules", "rase"), "did you mean race?"),
        (("generate", "x", "--nodes", "one"), "--nodes must be a whole number, got 'one' (see spectr generate --help)"),
        (("generate", "x", "--nodes", "-4"), "--nodes must be at least 2, got -4 (see spectr generate --help)"),
        (("serve", "--port", "99999"), "--port must be at most 65535, got 99999 (see spectr serve --help)"),
        (("generate", "x", "--nodes"), "--nodes must have a value (see spectr generate --help)"),
        (("generate", "x", "--json=3"), "--json takes no value (see spectr generate --help)"),
        (("generate", "x", "--\x1b[31m"), "there is no option '--\\x1b[31m' (see"),
        (("generate",), "PROMPT must be given (see spectr generate --help)"),
    ],
)
def test_what_is_unknown_is_answered_with_a_suggestion(
    spectr: Spectr, arguments: tuple[str, ...], suggestion: str
) -> None:
    """The error is one line, whether this package or the parser of flags raises it."""
    ran = spectr(*arguments)
    assert ran.code == 2
    assert suggestion in ran.err
    assert ran.err.startswith("spectr: ")
    assert ran.err.count("\n") == 1
    assert ran.out == ""


def test_a_refusal_is_one_line_and_exit_code_two(spectr: Spectr, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ArgumentError("first line\nsecond line")

    monkeypatch.setattr("spectr.verify.rule", refuse)
    ran = spectr("rules")
    assert (ran.code, ran.out, ran.err) == (2, "", "spectr: first line second line\n")


def test_a_bug_is_not_dressed_up_as_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    def break_down(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("spectr.verify.rule", break_down)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["rules"])


def test_an_interrupt_is_one_line(spectr: Spectr, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("spectr.verify.rule", interrupt)
    ran = spectr("rules")
    assert (ran.code, ran.out, ran.err) == (130, "", "\nspectr: interrupted\n")


def test_as_a_process() -> None:
    """As a process with a pipe for stdout: results go there, errors to stderr, without a traceback."""
    good = subprocess.run([*COMMAND, "cite"], capture_output=True, text=True, check=False)
    assert (good.returncode, good.stderr) == (0, "")
    assert good.stdout.startswith("@software{spectr,")
    bad = subprocess.run([*COMMAND, "cite", "nothing"], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert bad.stderr.startswith("spectr: no rule is called 'nothing'")
    assert bad.stderr.count("\n") == 1


def test_a_reader_that_has_gone_away_is_no_error() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run([*COMMAND, "cite"], stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ran.returncode, ran.stderr) == (141, "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_a_full_disk_is_one_sentence() -> None:
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run([*COMMAND, "cite"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ran.returncode, ran.stderr) == (2, "spectr: cannot write to stdout: No space left on device\n")


def test_what_stdout_cannot_encode_is_escaped() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ran = subprocess.run([*COMMAND, "rules"], capture_output=True, check=False, env=environment)
    assert ran.returncode == 0
    assert b"Traceback" not in ran.stderr


def test_importing_spectr_leaves_the_command_line_alone() -> None:
    heavy = ("typer", "rich", "matplotlib", "transformers")
    code = f"import sys, spectr, spectr.theory; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"
