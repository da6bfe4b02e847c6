"""`python -m benchmarks.serving`: measures the server under load."""

from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command import command_line, run_command
from benchmarks.flags import (
    AgainFlag,
    CompileFlag,
    DeviceFlag,
    DrafterFlag,
    DtypeFlag,
    OutFlag,
    PromptsFlag,
    ends,
    report,
    words,
)
from benchmarks.inflate.model import LLAMA_8B
from benchmarks.order import HELD_OUT
from benchmarks.serving import run, tables
from benchmarks.traffic.order import Load, Order
from spectr.cli.flags import ModelFlag
from spectr.cli.output import JsonFlag, check_folder, numbers, talk

__all__ = ["serving"]

_MODULE = "benchmarks.serving"


def serving(
    prompts: PromptsFlag = HELD_OUT,
    model: ModelFlag = "smollm2-135m",
    drafter: DrafterFlag = "auto",
    inflate: Annotated[bool, typer.Option("--inflate", help="Inflate the model to 7.4 billion weights.")] = False,
    clients: Annotated[str, typer.Option(metavar="N,N,...", help="Numbers of clients.")] = "1,4,16,64",
    requests: Annotated[int, typer.Option(min=1, metavar="N", help="Requests per client and run.")] = 4,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Runs of engine and server each.")] = 3,
    prompt_tokens: Annotated[str, typer.Option(metavar="N,N", help="Shortest and longest prompt.")] = "32,512",
    output_tokens: Annotated[str, typer.Option(metavar="N,N", help="Shortest and longest text.")] = "16,256",
    soak_clients: Annotated[int, typer.Option(min=1, metavar="N", help="Clients of the soak test.")] = 4,
    soak_minutes: Annotated[float, typer.Option(min=0, metavar="M", help="Length of the soak test; 0: none.")] = 0.0,
    only: Annotated[str, typer.Option(metavar="PART,PART,...", help="Parts: clients_1, ..., soak_4.")] = "",
    again: AgainFlag = False,
    compiled: CompileFlag = False,
    device: DeviceFlag = "auto",
    dtype: DtypeFlag = "auto",
    out: OutFlag = Path("spectr-serving.json"),
    as_json: JsonFlag = False,
) -> None:
    """Run the same requests on the engine alone and over HTTP, and run a soak test."""
    check_folder(out)
    load = Load(
        numbers("--clients", clients, int, 1) if clients else (), ends("--prompt-tokens", prompt_tokens),
        ends("--output-tokens", output_tokens), repeats=repeats,
    )  # fmt: skip
    order = Order(
        out, model, drafter, device, dtype, compiled, words(only), again, command_line(_MODULE), prompts,
        LLAMA_8B if inflate else None, load,
    )  # fmt: skip
    found = run(order, requests, (soak_clients, soak_minutes), talk)
    about = found["about"]
    report(found, f"{about['texts_of']}, {about['dtype']} on {about['device']}", tables, as_json=as_json)


if __name__ == "__main__":
    run_command(_MODULE, serving)
