"""What every command says and how: results on stdout, talk on stderr, files written or refused with a sentence."""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from spectr.errors import ArgumentError

__all__ = ["JsonFlag", "check_folder", "console", "numbers", "print_json", "progress_bar", "talk", "write_text"]

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Number = TypeVar("Number", int, float)

_FILE_WIDTH = 120  # where there is no terminal to ask: a pipe or a file


def console(*, stderr: bool = False) -> Console:
    """A console of today's stdout or stderr, as wide as its terminal, or as COLUMNS says."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _FILE_WIDTH
    return made


def talk(sentence: str) -> None:
    """Say something that is not a result."""
    console(stderr=True).print(sentence, markup=False, soft_wrap=True)


def print_json(data: Mapping[str, Any]) -> None:
    """A result as JSON."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def check_folder(path: Path) -> None:
    """Refuse before the work is done what could not be written after it."""
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"cannot write {path}: there is no folder {path.parent}; make it first")


def write_text(path: Path, text: str) -> None:
    """A result into a file, and a word about it."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"cannot write {path}: {error.strerror or error}") from None
    talk(f"wrote {path}")


def numbers(flag: str, text: str, kind: type[Number], least: Number) -> tuple[Number, ...]:
    """What a flag like `1,2,4` means: numbers of at least `least`, each once.

    >>> numbers("--k", "4,1,4", int, 1)
    (4, 1)
    """
    what = "integers" if kind is int else "numbers"
    try:
        found = tuple(dict.fromkeys(kind(word) for word in text.split(",")))
    except ValueError:
        found = ()
    if not found or not all(least <= number < float("inf") for number in found):
        raise ArgumentError(f"{flag} takes {what} of at least {least}, with commas between them, got {text!r}")
    return found


@contextmanager
def progress_bar(title: str, total: int) -> Iterator[Callable[[], None]]:
    """A bar on stderr while long work goes on, where stderr is a terminal; yields what moves it on."""
    where = console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=where, transient=True, disable=not where.is_terminal) as bar:
        task = bar.add_task(title, total=total)
        yield lambda: bar.advance(task)
