"""`python -m benchmarks.structured`: measures the cost of grammars, and the gain from drafting forced text."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command import command_line, run_command
from benchmarks.show import show
from benchmarks.structured import Order, run, tables
from spectr.cli.flags import ModelFlag
from spectr.cli.output import JsonFlag, check_folder, print_json, talk

__all__ = ["structured"]

_MODULE = "benchmarks.structured"


def structured(
    model: ModelFlag = "smollm2-135m",
    drafter: Annotated[str, typer.Option("--drafter", metavar="NAME", help="Drafter, as in spectr.load.")] = "auto",
    only: Annotated[str, typer.Option(metavar="PART;PART;...", help="Parts, by their names in the file.")] = "",
    again: Annotated[bool, typer.Option("--again", help="Measure again the parts that are in the file.")] = False,
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Maximum tokens per text.")] = 128,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Texts per task.")] = 4,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The result file; parts already in it are kept.")] = Path(
        "spectr-structured.json"
    ),
    as_json: JsonFlag = False,
) -> None:
    """Compare JSON generation under schemas, with and without drafts, to plain masked decoding."""
    check_folder(out)
    names = tuple(dict.fromkeys(word.strip() for word in only.split(";") if word.strip()))
    found = run(Order(out, model, drafter, tokens, seeds, names, again, command_line(_MODULE)), talk)
    if as_json:
        print_json(found)
    else:
        show(f"{found['about']['model']}: {found['about']['what']}", tables(found))
    if any("error" in part for part in found["parts"].values()):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(_MODULE, structured)
