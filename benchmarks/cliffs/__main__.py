"""`python -m benchmarks.cliffs`: what settings and drafters cost one text, and what many requests leave behind."""

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
    drafter: Annotated[str, typer.Option("--drafter", metavar="NAME", help="As in spectr.load.")] = "auto",
    only: Annotated[
        str, typer.Option(metavar="PART,PART,...", help="Of settings, lookup, auto, prediction, many.")
    ] = "",
    again: Annotated[bool, typer.Option("--again", help="Measure once more what is in the file.")] = False,
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Of a text.")] = 256,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Texts of which the median is taken.")] = 5,
    requests: Annotated[int, typer.Option(min=1, metavar="N", help="many: short requests.")] = 10_000,
    in_flight: Annotated[int, typer.Option(min=1, metavar="N", help="many: of them at once.")] = 64,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Of texts and settings.")] = 0,
    minutes: Annotated[float, typer.Option(min=0.01, metavar="M", help="For each part.")] = 3.0,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the model and its head.")] = False,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, or auto.")] = "auto",
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="DTYPE", help="auto: bfloat16 on a GPU, float32 on a CPU.")
    ] = "auto",
    out: Annotated[Path, typer.Option(metavar="FILE", help="The result; parts that are there are kept.")] = Path(
        "spectr-cliffs.json"
    ),
    as_json: JsonFlag = False,
) -> None:
    """Compare one text with a setting or a drafter to the same without, and look at what many requests leave behind."""
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
