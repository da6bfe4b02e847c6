"""`python -m benchmarks.several FILE`: runs several benchmarks in one process, so that they share one inflated model.

On a GPU, loading, inflating and compiling the model takes longer than most measurements. The file has one command on
each line, without `python -m`; empty lines and lines that begin with # are skipped. `benchmarks/gpu.txt` measures what
the documentation says about a GPU.
"""

import runpy
import shlex
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command import run_command
from benchmarks.record import let_go
from spectr.cli.output import talk
from spectr.errors import ArgumentError

__all__ = ["Line", "lines", "several"]

_MODULE = "benchmarks.several"


@dataclass(frozen=True, slots=True)
class Line:
    """A benchmark with its arguments."""

    module: str
    arguments: tuple[str, ...]

    def into(self, folder: Path) -> "Line":
        """Return the same benchmark with its result file in another folder."""
        pairs = pairwise(("", *self.arguments))
        moved = tuple(str(folder / Path(word).name) if flag == "--out" else word for flag, word in pairs)
        return Line(self.module, moved)

    def make_folder(self) -> None:
        """Make the folder of the result file, in which the benchmark looks for earlier results."""
        for flag, word in pairwise(self.arguments):
            if flag == "--out":
                Path(word).parent.mkdir(parents=True, exist_ok=True)

    def run(self) -> int:
        """Run the benchmark as a command would, and return its exit status. An error of any kind ends only this one."""
        before, sys.argv = sys.argv, [self.module, *self.arguments]
        main = f"{self.module}.__main__"
        imported = sys.modules.pop(main, None)  # runpy warns if the module was imported before
        try:
            runpy.run_module(self.module, run_name="__main__")
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except Exception:
            traceback.print_exc()
            return 1
        finally:
            sys.argv = before
            if imported is not None:
                sys.modules[main] = imported
        return 0


def lines(path: Path) -> list[Line]:
    """Read the commands of a file."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArgumentError(f"{path} must be a text file with one benchmark on each line: {error}") from None
    found = [shlex.split(line, comments=True) for line in text.splitlines()]
    made = [Line(module, tuple(arguments)) for module, *arguments in filter(None, found)]
    if wrong := next((line.module for line in made if not line.module.startswith("benchmarks.")), None):
        raise ArgumentError(f"every line of {path} must begin with a module of benchmarks, such as benchmarks.traffic; "
                            f"got {wrong!r}")  # fmt: skip
    return made


def run(every: Sequence[Line], seconds: float, say: Callable[[str], None]) -> list[Line]:
    """Run the benchmarks in order, and return those that failed. None begins after `seconds` seconds."""
    failed, start = list[Line](), time.monotonic()
    for line in every:
        begun = time.monotonic()
        if begun - start > seconds:
            say(f"no time is left for {line.module} {shlex.join(line.arguments)}")
            continue
        line.make_folder()
        status = line.run()
        let_go()
        failed += [line] if status else []
        say(f"{line.module}: {'failed' if status else 'done'} after {time.monotonic() - begun:.0f} s")
    return failed


def several(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="One benchmark with its flags on each line.")],
    minutes: Annotated[float, typer.Option(min=0.001, metavar="M", help="Begin no benchmark after M minutes.")] = 60.0,
    folder: Annotated[
        Path | None, typer.Option("--folder", metavar="FOLDER", help="Write results here. [default: as the file says]")
    ] = None,
) -> None:
    """Run several benchmarks in one process, so that those with the same inflated model share it."""
    every = lines(file)
    if run(every if folder is None else [line.into(folder) for line in every], 60 * minutes, talk):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(_MODULE, several)
