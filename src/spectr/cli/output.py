"""What commands read and write: results on stdout, talk on stderr, files and texts that are refused with a sentence."""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from spectr.errors import ArgumentError

__all__ = [
    "JsonFlag",
    "check_folder",
    "check_new_folder",
    "check_text",
    "console",
    "numbers",
    "print_json",
    "progress_bar",
    "read_stdin",
    "talk",
    "utf8",
    "write_text",
]

JsonFlag = Annotated[bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.")]
Number = TypeVar("Number", int, float)

_FILE_WIDTH = 120  # where there is no terminal to ask: a pipe or a file
_LOG_EVERY = 30.0  # seconds between lines about progress in a log


def console(*, stderr: bool = False) -> Console:
    """A console on stdout or stderr as they are now, as wide as its terminal, or as COLUMNS says."""
    made = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not made.is_terminal and "COLUMNS" not in os.environ:
        made.width = _FILE_WIDTH
    return made


def talk(sentence: str) -> None:
    """Print a sentence that is not a result on stderr; above a progress bar, where there is one."""
    print(sentence, file=sys.stderr, flush=True)


def print_json(data: Mapping[str, Any]) -> None:
    """Print a result as JSON."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def utf8(data: bytes, what: str) -> str:
    """Bytes as text.

    >>> utf8(b"caf\\xe9", "the prompt")
    Traceback (most recent call last):
    spectr.errors.ArgumentError: the prompt must be UTF-8 text, and byte 4 of it (0xe9) is not; convert it first, ...
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{what} must be UTF-8 text, and byte {error.start + 1} of it ({data[error.start]:#04x}) is not; convert "
            "it first, for example with iconv -f latin1 -t utf-8"
        ) from None


def check_text(what: str, text: str) -> str:
    """A text of the command line, if it is one: arguments may hold bytes that are not UTF-8, and may be empty."""
    if not text:
        raise ArgumentError(f"{what} must not be empty")
    return utf8(text.encode("utf-8", errors="surrogateescape"), what)


def read_stdin(what: str) -> str:
    """Everything on standard input, as text."""
    if sys.stdin is None:
        raise ArgumentError(f"{what} is to be read from standard input, and that is closed")
    if sys.stdin.isatty():
        talk(f"reading {what} from the terminal; end it with Ctrl-D")
    return utf8(sys.stdin.buffer.read(), what)


def check_folder(path: Path) -> None:
    """Refuse before the work is done what could not be written after it."""
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise ArgumentError(f"cannot write {path}: it is a folder; give the name of a file")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ArgumentError(f"cannot write {path}: permission denied")


def check_new_folder(flag: str, path: Path) -> None:
    """Refuse before the work is done a folder that could not be made or written into after it."""
    there = next(one for one in (path.absolute(), *path.absolute().parents) if os.path.lexists(one))
    if not there.is_dir():
        raise ArgumentError(f"{flag} must be a folder, and {there} is a file; give another name")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ArgumentError(f"{flag} must be a folder that can be written, and {there} cannot: permission denied")


def write_text(path: Path, text: str) -> None:
    """Write a result into a file, and say so."""
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


@dataclass(slots=True)
class _Log:
    """Progress for a log: a line now and then."""

    title: str
    total: float
    done: float = 0.0
    last: float = field(default_factory=time.monotonic)

    def __call__(self, amount: float = 1) -> None:
        self.done += amount
        if time.monotonic() - self.last >= _LOG_EVERY:
            self.last = time.monotonic()
            talk(f"{self.title}: {min(1.0, self.done / self.total):.0%}")


@contextmanager
def progress_bar(title: str, total: float, *, counts: bool = True) -> Iterator[Callable[..., None]]:
    """A bar on stderr while long work goes on, or a line now and then where stderr is no terminal; yields what moves it
    on, by 1 or by a given amount. `counts`: show how many of how many, not a percentage."""
    where = console(stderr=True)
    if not where.is_terminal:
        yield _Log(title, total)
        return
    how_far = MofNCompleteColumn() if counts else TaskProgressColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), how_far, TimeRemainingColumn())
    with Progress(*columns, console=where, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda amount=1: bar.advance(task, amount)
