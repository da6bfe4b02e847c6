"""`spectr bench`: what rules cost on this machine."""

import json
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from spectr.cli.output import JsonFlag, console, numbers, print_json, talk, write_text
from spectr.cli.tables import bench_table
from spectr.verify import rule

__all__ = ["app"]

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True, rich_markup_mode=None)

_RULES = "race,optimal,kseq_plus,kseq,recursive,match"


@app.callback()
def _bench() -> None:
    """Measure on this machine."""


@app.command("rules")
def bench_rules(
    vocabulary: Annotated[str, typer.Option(metavar="V,V,...", help="Sizes of the vocabulary.")] = "32000,152064",
    children: Annotated[str, typer.Option(metavar="K,K,...", help="Children of each node.")] = "1,4",
    rules: Annotated[str, typer.Option(metavar="RULE,RULE,...", help="Rules of `spectr rules`.")] = _RULES,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of the token tree.")] = 32,
    device: Annotated[str, typer.Option(help="Where to measure: cpu, cuda, cuda:1, ...")] = "cpu",
    repeats: Annotated[int, typer.Option(min=1, help="Timings of which the median is taken.")] = 20,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the JSON to a file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Time every rule against a softmax over the same logits."""
    names = tuple(dict.fromkeys(rules.split(",")))
    for name in names:
        rule(name)  # an unknown name is refused before anything is measured
    found = import_module("spectr.bench.rules").run(
        vocabularies=numbers("--vocabulary", vocabulary, int, 1),
        children=numbers("--children", children, int, 1),
        rules=names,
        nodes=nodes,
        device=device,
        repeats=repeats,
        progress=talk,
    )
    if out is not None:
        write_text(out, json.dumps(found, indent=2) + "\n")
    if as_json:
        print_json(found)
    else:
        console().print(bench_table(found["results"]))
