"""`python -m benchmarks.cliffs`: what settings and drafters cost a single text, and whether many requests leak."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.cliffs import Order, Trial, run, tables
from benchmarks.command import command_line, run_command
from benchmarks.show import show
from spectr.cli.flags import ModelFlag
from spectr.cli.output import JsonFlag, check_folder, print_json, talk

__all__ = ["cliffs"]

_MODULE = "benchmarks.cliffs"


def cliffs(
    model: ModelFlag = "smollm2-135m",
    drafter: Annotated[str, typer.Option("--drafter", metavar="NAME", help="Drafter, as in spectr.load.")] = "auto",
    only: Annotated[
        str, typer.Option(metavar="PART,PART,...", help="Parts: settings, lookup, auto, prediction, many.")
    ] = "",
    again: Annotated[bool, typer.Option("--again", help="Measure again the parts that are in the file.")] = False,
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Tokens per text.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds of which the median is taken.")] = 5,
    requests: Annotated[int, typer.Option(min=1, metavar="N", help="many: number of short requests.")] = 10_000,
    in_flight: Annotated[int, typer.Option(min=1, metavar="N", help="many: requests in flight.")] = 64,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the texts and settings.")] = 0,
    minutes: Annotated[float, typer.Option(min=0.01, metavar="M", help="Time limit of each part.")] = 3.0,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the model and its head.")] = False,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda or auto.")] = "auto",
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="DTYPE", help="auto: bfloat16 on a GPU, float32 on a CPU.")
    ] = "auto",
    out: Annotated[Path, typer.Option(metavar="FILE", help="The result file; parts already in it are kept.")] = Path(
        "spectr-cliffs.json"
    ),
    as_json: JsonFlag = False,
) -> None:
    """Compare texts with and without a setting or a drafter, and check whether many requests leak memory."""
    check_folder(out)
    order = Order(
        out, model, drafter, device, dtype, compiled,
        tuple(dict.fromkeys(word.strip() for word in only.split(",") if word.strip())), again, minutes,
        command_line(_MODULE), Trial(tokens, rounds, requests, in_flight, seed),
    )  # fmt: skip
    found = run(order, talk)
    if as_json:
        print_json(found)
    else:
        about = found["about"]
        show(f"{about['model']}, {about['dtype']} on {about['device']}", tables(found))
    if any("error" in part for part in found["parts"].values()):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(_MODULE, cliffs)
