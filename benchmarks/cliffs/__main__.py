"""`python -m benchmarks.cliffs`: what settings and drafters cost a single text, and whether many requests leak."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cliffs import Order, Trial, run, tables
from benchmarks.command import command_line, run_command
from benchmarks.flags import (
    AgainFlag,
    CompileFlag,
    DeviceFlag,
    DrafterFlag,
    DtypeFlag,
    OutFlag,
    SeedFlag,
    report,
    words,
)
from spectr.cli.flags import ModelFlag
from spectr.cli.output import JsonFlag, check_folder, talk

__all__ = ["cliffs"]

_MODULE = "benchmarks.cliffs"


def cliffs(
    model: ModelFlag = "smollm2-135m",
    drafter: DrafterFlag = "auto",
    only: Annotated[
        str, typer.Option(metavar="PART,PART,...", help="Parts: settings, lookup, auto, prediction, many.")
    ] = "",
    again: AgainFlag = False,
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Tokens per text.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds of which the median is taken.")] = 5,
    requests: Annotated[int, typer.Option(min=1, metavar="N", help="many: number of short requests.")] = 10_000,
    in_flight: Annotated[int, typer.Option(min=1, metavar="N", help="many: requests in flight.")] = 64,
    seed: SeedFlag = 0,
    minutes: Annotated[float, typer.Option(min=0.01, metavar="M", help="Time limit of each part.")] = 3.0,
    compiled: CompileFlag = False,
    device: DeviceFlag = "auto",
    dtype: DtypeFlag = "auto",
    out: OutFlag = Path("spectr-cliffs.json"),
    as_json: JsonFlag = False,
) -> None:
    """Compare texts with and without a setting or a drafter, and check whether many requests leak memory."""
    check_folder(out)
    order = Order(
        out, model, drafter, device, dtype, compiled, words(only), again, command_line(_MODULE), minutes,
        Trial(tokens, rounds, requests, in_flight, seed),
    )  # fmt: skip
    found = run(order, talk)
    about = found["about"]
    report(found, f"{about['model']}, {about['dtype']} on {about['device']}", tables, as_json=as_json)


if __name__ == "__main__":
    run_command(_MODULE, cliffs)
