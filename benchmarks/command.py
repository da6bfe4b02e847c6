"""Runs a module of this folder as a command with the conventions of `spectr`: an error is one line, exit code 2."""

import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

import typer

from spectr.errors import SpectrError

__all__ = ["command_line", "run_command"]


def command_line(module: str) -> str:
    """Return the command that started this process, for the record of a measurement."""
    return f"python -m {module} {shlex.join(sys.argv[1:])}".rstrip()


def run_command(module: str, function: Callable[..., Any], arguments: Sequence[str] | None = None) -> None:
    """Run `function` with the given arguments, or with those of the process; its signature declares the flags."""
    app = typer.Typer(pretty_exceptions_enable=False, add_completion=False, rich_markup_mode=None)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(function)
    try:
        app(arguments, prog_name=f"python -m {module}")
    except SpectrError as error:
        print(f"{module}: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
