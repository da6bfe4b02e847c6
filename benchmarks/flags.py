"""The flags that all benchmarks share, and what their commands do before and after a run."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.record import Found
from benchmarks.show import show
from spectr.bench.tables import Cells
from spectr.cli.output import numbers, print_json
from spectr.errors import ArgumentError

__all__ = ["AgainFlag", "CompileFlag", "DeviceFlag", "DrafterFlag", "DtypeFlag", "OutFlag", "PromptsFlag", "SeedFlag",
           "ends", "report", "words"]  # fmt: skip

DrafterFlag = Annotated[
    str, typer.Option("--drafter", metavar="NAME", help="Drafter, as in spectr.load: auto, a folder, none, ...")
]
AgainFlag = Annotated[bool, typer.Option("--again", help="Measure again the parts that are in the file.")]
CompileFlag = Annotated[bool, typer.Option("--compile", help="Compile the model and its head.")]
DeviceFlag = Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda or auto.")]
DtypeFlag = Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="auto: bfloat16 on a GPU, float32 on a CPU.")]
OutFlag = Annotated[Path, typer.Option("--out", metavar="FILE", help="The result file; parts already in it are kept.")]
PromptsFlag = Annotated[
    Path, typer.Option("--prompts", metavar="FILE", help="Texts: one per line, or JSON with `prompts`.")
]
SeedFlag = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of the texts and settings.")]


def words(text: str, separator: str = ",") -> tuple[str, ...]:
    """Return the names in the value of a flag, each once.

    >>> words("settings, lookup,settings")
    ('settings', 'lookup')
    """
    return tuple(dict.fromkeys(word.strip() for word in text.split(separator) if word.strip()))


def ends(flag: str, text: str) -> tuple[int, int]:
    """Return the minimum and the maximum in the value of a flag; a single number is both.

    >>> ends("--prompt-tokens", "32,512")
    (32, 512)
    """
    found = numbers(flag, text, int, 1)
    if len(found) > 2 or list(found) != sorted(found):
        raise ArgumentError(f"{flag} must be a minimum and a maximum, got {text!r}")
    return found[0], found[-1]


def report(found: Found, title: str, tables: Callable[[Found], Iterable[tuple[str, Cells]]], *, as_json: bool) -> None:
    """Print the results of a run, and exit with 1 if a part has failed."""
    if as_json:
        print_json(found)
    else:
        show(title, tables(found))
    if any("error" in part for part in found["parts"].values()):
        raise typer.Exit(1)
