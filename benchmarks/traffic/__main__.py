"""`python -m benchmarks.traffic`: measures continuous traffic."""

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
from benchmarks.inflate.model import Size
from benchmarks.order import HELD_OUT
from benchmarks.traffic import Load, Order, run, tables
from benchmarks.traffic.subject import DEFAULT, PLAIN, WAYS
from spectr.cli.flags import ModelFlag
from spectr.cli.output import JsonFlag, check_folder, numbers, talk
from spectr.errors import ArgumentError, UnknownNameError
from spectr.registry import nearest

__all__ = ["traffic"]

_MODULE = "benchmarks.traffic"


def _size(text: str) -> Size:
    found = text.split(",")
    if len(found) != 5 or not all(word.strip().isdigit() for word in found):
        raise ArgumentError(f"--size must be 5 numbers: width, layers, heads, kv_heads and inner; got {text!r}")
    return Size(*map(int, found))


def _ways(text: str) -> tuple[str, ...]:
    found = words(text)
    for way in found:
        if way not in WAYS:
            raise UnknownNameError(f"no way is called {way!r}; {nearest(way, list(WAYS))}")
    return found or (PLAIN, DEFAULT)


def traffic(
    prompts: PromptsFlag = HELD_OUT,
    model: ModelFlag = "smollm2-135m",
    drafter: DrafterFlag = "auto",
    inflate: Annotated[bool, typer.Option("--inflate", help="Inflate the model to the size in --size.")] = False,
    size: Annotated[
        str, typer.Option(metavar="N,N,N,N,N", help="Width, layers, heads, kv heads and MLP width of the large model.")
    ] = "4096,32,64,16,14336",
    in_flight: Annotated[str, typer.Option(metavar="N,N,...", help="Requests in flight.")] = "1,4,16,64",
    prompt_tokens: Annotated[str, typer.Option(metavar="N,N", help="Shortest and longest prompt.")] = "32,2048",
    output_tokens: Annotated[str, typer.Option(metavar="N,N", help="Shortest and longest text.")] = "16,512",
    temperatures: Annotated[str, typer.Option(metavar="T,T,...", help="Each request has one of them.")] = "0,0.7,1",
    delay: Annotated[float, typer.Option(min=0.0, metavar="S", help="Average seconds between requests.")] = 0.002,
    minutes: Annotated[
        float, typer.Option(min=0.001, metavar="M", help="Measured time of each way at each number in flight.")
    ] = 0.4,
    prefills: Annotated[int, typer.Option(min=1, metavar="N", help="Prompts for the separate prefill.")] = 64,
    static_texts: Annotated[int, typer.Option(min=1, metavar="N", help="Texts for the rate of a full batch.")] = 12,
    static_tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Tokens of each of those texts.")] = 128,
    shared: Annotated[
        int, typer.Option(min=0, metavar="N", help="Tokens of shared prefixes, which are a separate part; 0: none.")
    ] = 2000,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Repeats of that part; the median is taken.")] = 5,
    strike_stops: Annotated[
        bool, typer.Option("--strike-stops", help="Fix lengths with min_new_tokens instead of ignoring stop tokens.")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of prompts, lengths and texts.")] = 0,
    ways: Annotated[str, typer.Option(metavar="WAY,WAY,...", help=f"Ways: {', '.join(WAYS)}.")] = "plain,default",
    only: Annotated[str, typer.Option(metavar="PART,PART,...", help="Parts: in_flight_1, ..., shared.")] = "",
    again: AgainFlag = False,
    compiled: CompileFlag = False,
    device: DeviceFlag = "auto",
    dtype: DtypeFlag = "auto",
    out: OutFlag = Path("spectr-traffic.json"),
    as_json: JsonFlag = False,
) -> None:
    """Run continuous traffic with drafting and with plain decoding, and compare both with their upper bounds."""
    check_folder(out)
    load = Load(
        numbers("--in-flight", in_flight, int, 1) if in_flight else (), ends("--prompt-tokens", prompt_tokens),
        ends("--output-tokens", output_tokens), numbers("--temperatures", temperatures, float, 0.0), delay, minutes,
        prefills, static_texts, static_tokens, shared, repeats, strike_stops, seed, _ways(ways),
    )  # fmt: skip
    order = Order(
        out, model, drafter, device, dtype, compiled, words(only), again, command_line(_MODULE), prompts,
        _size(size) if inflate else None, load,
    )  # fmt: skip
    found = run(order, talk)
    about = found["about"]
    report(found, f"{about['texts_of']}, {about['dtype']} on {about['device']}", tables, as_json=as_json)


if __name__ == "__main__":
    run_command(_MODULE, traffic)
