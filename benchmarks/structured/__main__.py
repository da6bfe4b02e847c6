"""`python -m benchmarks.structured`: measures the cost of grammars, and the gain from drafting forced text."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command import command_line, run_command
from benchmarks.flags import AgainFlag, DrafterFlag, OutFlag, report, words
from benchmarks.structured import Order, run, tables
from spectr.cli.flags import ModelFlag
from spectr.cli.output import JsonFlag, check_folder, talk

__all__ = ["structured"]

_MODULE = "benchmarks.structured"


def structured(
    model: ModelFlag = "smollm2-135m",
    drafter: DrafterFlag = "auto",
    only: Annotated[str, typer.Option(metavar="PART;PART;...", help="Parts, by their names in the file.")] = "",
    again: AgainFlag = False,
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Maximum tokens per text.")] = 128,
    seeds: Annotated[int, typer.Option(min=1, metavar="N", help="Texts per task.")] = 4,
    out: OutFlag = Path("spectr-structured.json"),
    as_json: JsonFlag = False,
) -> None:
    """Compare JSON generation under schemas, with and without drafts, to plain masked decoding."""
    check_folder(out)
    order = Order(
        out, model, drafter, only=words(only, ";"), again=again, command=command_line(_MODULE), tokens=tokens,
        seeds=seeds,
    )  # fmt: skip
    found = run(order, talk)
    report(found, f"{found['about']['model']}: {found['about']['what']}", tables, as_json=as_json)


if __name__ == "__main__":
    run_command(_MODULE, structured)
