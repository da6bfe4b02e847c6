"""Input and output of commands: results on stdout, messages on stderr, and checks of files and texts."""

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

_FILE_WIDTH = 120  # columns if stdout is a pipe or a file
_LOG_EVERY = 30.0  # seconds between progress lines in a log


def console(*, stderr: bool = False) -> Console:
    """Return a console on the current stdout or stderr, with the width of the terminal or of COLUMNS."""
    target = Console(stderr=stderr, highlight=False, soft_wrap=False)
    if not target.is_terminal and "COLUMNS" not in os.environ:
        target.width = _FILE_WIDTH
    return target


def talk(sentence: str) -> None:
    """Print a message on stderr, above a progress bar if there is one."""
    print(sentence, file=sys.stderr, flush=True)


def print_json(data: Mapping[str, Any]) -> None:
    """Print a result as JSON."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


def utf8(data: bytes, what: str) -> str:
    """Decode bytes as UTF-8, or raise an error that names `what`.

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
    """Return a command-line text, or raise if it is empty or not UTF-8."""
    if not text:
        raise ArgumentError(f"{what} must not be empty")
    return utf8(text.encode("utf-8", errors="surrogateescape"), what)


def read_stdin(what: str) -> str:
    """Read all of standard input as text."""
    if sys.stdin is None:
        raise ArgumentError(f"{what} must be read from standard input, and that is closed")
    if sys.stdin.isatty():
        talk(f"reading {what} from the terminal; end it with Ctrl-D")
    return utf8(sys.stdin.buffer.read(), what)


def check_folder(path: Path) -> None:
    """Refuse a file that cannot be written, before any work is done."""
    if not path.absolute().parent.is_dir():
        raise ArgumentError(f"cannot write {path}: there is no folder {path.parent}; make it first")
    if path.is_dir():
        raise ArgumentError(f"cannot write {path}: it is a folder; give the name of a file")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ArgumentError(f"cannot write {path}: permission denied")


def check_new_folder(flag: str, path: Path) -> None:
    """Refuse a folder that cannot be created or written to, before any work is done."""
    existing = next(one for one in (path.absolute(), *path.absolute().parents) if os.path.lexists(one))
    if not existing.is_dir():
        raise ArgumentError(f"{flag} must be a folder, and {existing} is a file; give another name")
    if not os.access(existing, os.W_OK | os.X_OK):
        raise ArgumentError(f"{flag} must be a folder that can be written, and {existing} cannot: permission denied")


def write_text(path: Path, text: str) -> None:
    """Write a result to a file, and report the path on stderr."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"cannot write {path}: {error.strerror or error}") from None
    talk(f"wrote {path}")


def numbers(flag: str, text: str, kind: type[Number], least: Number) -> tuple[Number, ...]:
    """Parse a flag like `1,2,4`: distinct numbers of at least `least`.

    >>> numbers("--k", "4,1,4", int, 1)
    (4, 1)
    """
    what = "integers" if kind is int else "numbers"
    try:
        values = tuple(dict.fromkeys(kind(word) for word in text.split(",")))
    except ValueError:
        values = ()
    if not values or not all(least <= number < float("inf") for number in values):
        raise ArgumentError(f"{flag} takes {what} of at least {least}, with commas between them, got {text!r}")
    return values


@dataclass(slots=True)
class _Log:
    """Reports progress in a log, with a line every `_LOG_EVERY` seconds."""

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
    """Show a progress bar on stderr, or a line now and then if stderr is not a terminal.

    Yields a function that advances it by 1 or a given amount. `counts` shows "3/10" in place of a percentage."""
    where = console(stderr=True)
    if not where.is_terminal:
        yield _Log(title, total)
        return
    how_far = MofNCompleteColumn() if counts else TaskProgressColumn()
    columns = (TextColumn("{task.description}"), BarColumn(), how_far, TimeRemainingColumn())
    with Progress(*columns, console=where, transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda amount=1: bar.advance(task, amount)
