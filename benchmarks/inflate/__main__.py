"""`python -m benchmarks.inflate`: the texts of a small model at the cost of a large one."""

from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.command import command_line, run_command
from benchmarks.flags import AgainFlag, CompileFlag, DeviceFlag, DtypeFlag, OutFlag, PromptsFlag, report, words
from benchmarks.inflate import Grid, Order, run, tables
from benchmarks.inflate.model import Size
from benchmarks.order import HELD_OUT
from spectr.cli.flags import ModelFlag
from spectr.cli.output import JsonFlag, check_folder, numbers, talk

__all__ = ["inflate"]

_MODULE = "benchmarks.inflate"


def _title(about: dict[str, Any]) -> str:
    size = ", ".join(f"{name} {value}" for name, value in about["costs_of"].items())
    return f"texts of {about['texts_of']}, costs of {size}; {about['dtype']} on {about['device']}"


def inflate(
    prompts: PromptsFlag = HELD_OUT,
    model: ModelFlag = "smollm2-135m",
    drafter: Annotated[
        str, typer.Option("--drafter", metavar="FOLDER", help="A trained head; auto: the one shipped with spectr.")
    ] = "auto",
    only: Annotated[
        str, typer.Option(metavar="PART,PART,...", help="Parts: bandwidth, calls, step, speed, rows, memory, peers.")
    ] = "",
    again: AgainFlag = False,
    width: Annotated[
        int, typer.Option(min=1, metavar="N", help="Width of the large model: heads × head width.")
    ] = 4096,
    layers: Annotated[int, typer.Option(min=1, metavar="N", help="Decoder layers.")] = 32,
    heads: Annotated[int, typer.Option(min=1, metavar="N", help="Query heads.")] = 64,
    kv_heads: Annotated[int, typer.Option(min=1, metavar="N", help="Key-value heads.")] = 16,
    inner: Annotated[int, typer.Option(min=1, metavar="N", help="Width of the MLP in a layer.")] = 14336,
    nodes: Annotated[str, typer.Option(metavar="N,N,...", help="calls: nodes per call.")] = "1,16,32,64,128,256",
    contexts: Annotated[
        str, typer.Option(metavar="N,N,...", help="calls: tokens in the cache.")
    ] = "512,1024,2048,4096,7935",
    tree_nodes: Annotated[
        int, typer.Option(min=2, metavar="N", help="step: nodes of its tree; speed: of the other trees.")
    ] = 64,
    depth: Annotated[int, typer.Option(min=1, metavar="N", help="step: depth of the tree.")] = 8,
    race_nodes: Annotated[str, typer.Option(metavar="N,N,...", help="speed: nodes of the race.")] = "16,32,64,128",
    depths: Annotated[
        str | None, typer.Option(metavar="N,N,...", help="speed: depths of the trees; default: by their nodes.")
    ] = None,
    chains: Annotated[str, typer.Option(metavar="L,L,...", help="speed: tokens of a single draft.")] = "2,3,4,6",
    texts: Annotated[int, typer.Option(min=1, metavar="N", help="speed: texts per method, without warm-up.")] = 8,
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Maximum tokens per text.")] = 128,
    temperature: Annotated[float, typer.Option(min=0.0, metavar="T", help="0 is greedy.")] = 1.0,
    rows: Annotated[str, typer.Option(metavar="N,N,...", help="rows: batch sizes.")] = "1,4,16,64",
    row_nodes: Annotated[str, typer.Option(metavar="N,N,...", help="rows: nodes of the race.")] = "2,4,8,16,64",
    peer_tokens: Annotated[
        int, typer.Option(min=4, metavar="N", help="peers: tokens per text; half as many for eager decoding.")
    ] = 48,
    assistant: Annotated[
        str | None, typer.Option(metavar="MODEL", help="peers: the assistant_model; default: the small model.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Timings of which the median is taken.")] = 20,
    minutes: Annotated[float, typer.Option(min=0.01, metavar="M", help="Time limit of each part.")] = 8.0,
    compiled: CompileFlag = False,
    device: DeviceFlag = "auto",
    dtype: DtypeFlag = "auto",
    out: OutFlag = Path("spectr-inflate.json"),
    as_json: JsonFlag = False,
) -> None:
    """Measure real texts at a large model's cost, without its checkpoint: a small Llama and its head, inflated."""
    check_folder(out)
    grid = Grid(
        nodes=numbers("--nodes", nodes, int, 1), contexts=numbers("--contexts", contexts, int, 1), tree=tree_nodes,
        depth=depth, race=numbers("--race-nodes", race_nodes, int, 2), texts=texts, tokens=tokens,
        depths=() if depths is None else numbers("--depths", depths, int, 1), temperature=temperature,
        chains=numbers("--chains", chains, int, 1), rows=numbers("--rows", rows, int, 1),
        row_nodes=numbers("--row-nodes", row_nodes, int, 2), peer_tokens=peer_tokens, repeats=repeats,
    )  # fmt: skip
    order = Order(
        out, model, drafter, device, dtype, compiled, words(only), again, command_line(_MODULE), prompts, assistant,
        Size(width, layers, heads, kv_heads, inner), minutes, grid,
    )  # fmt: skip
    found = run(order, talk)
    report(found, _title(found["about"]), tables, as_json=as_json)


if __name__ == "__main__":
    run_command(_MODULE, inflate)
