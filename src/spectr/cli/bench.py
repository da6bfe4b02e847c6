"""`spectr bench`: what rules and steps cost on this machine."""

import json
from pathlib import Path
from typing import Annotated

import torch
import typer

from spectr.cli.generate import DrafterFlag, ModelFlag
from spectr.cli.output import JsonFlag, check_folder, console, numbers, print_json, talk, write_text
from spectr.cli.tables import acceptance_table, bench_table, step_table
from spectr.errors import ArgumentError
from spectr.verify import rule

__all__ = ["app"]

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True, rich_markup_mode=None)

_RULES = "race,match,kseq,kseq_plus,optimal,path_block,recursive,block,traversal"


def _check_device(name: str) -> None:
    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise ArgumentError(f"--device must be cpu, cuda or cuda:N, got {name!r}") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(f"--device {name} needs a CUDA device, and torch finds none here; use --device cpu")


@app.callback()
def _bench() -> None:
    """Measure on this machine."""


@app.command("rules")
def bench_rules(
    vocabulary: Annotated[str, typer.Option(metavar="V,V,...", help="Sizes of the vocabulary.")] = "32000,152064",
    children: Annotated[str, typer.Option(metavar="K,K,...", help="Chains in the token tree.")] = "1,8",
    rules: Annotated[str, typer.Option(metavar="RULE,RULE,...", help="Rules of `spectr rules`.")] = _RULES,
    nodes: Annotated[int, typer.Option(min=1, metavar="N", help="Nodes of the token tree.")] = 64,
    device: Annotated[
        str, typer.Option("--device", metavar="DEVICE", help="Where to measure: cpu, cuda, cuda:1, ...")
    ] = "cpu",
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Timings of which the median is taken.")] = 5,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the JSON to a file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Time every rule against a softmax over the same logits."""
    _check_device(device)
    names = tuple(dict.fromkeys(rules.split(",")))
    for name in names:
        rule(name)  # an unknown name is refused before anything is measured
    if out is not None:
        check_folder(out)
    from spectr.bench.rules import run

    found = run(
        vocabularies=numbers("--vocabulary", vocabulary, int, 1),
        children=numbers("--children", children, int, 1),
        rules=names,
        size=(nodes, device, repeats),
        progress=talk,
    )
    if out is not None:
        write_text(out, json.dumps(found, indent=2) + "\n")
    if as_json:
        print_json(found)
    else:
        console().print(bench_table(found["results"]))


@app.command("step")
def bench_step(
    model: ModelFlag = "smollm2-135m",
    drafters: Annotated[str, typer.Option(metavar="NAME,NAME,...", help="Ways to draft.")] = "none,lookup",
    tokens: Annotated[int, typer.Option(min=8, metavar="N", help="Tokens of each text.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds over the prompts.")] = 3,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the JSON to a file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Time a step around the model, against transformers' plain sampling of the same model."""
    if out is not None:
        check_folder(out)
    from spectr.bench.step import run

    found = run(model, drafters.split(","), tokens, repeats, talk)
    if out is not None:
        write_text(out, json.dumps(found, indent=2) + "\n")
    if as_json:
        print_json(found)
    else:
        console().print(step_table(found["results"]))


@app.command("acceptance")
def bench_acceptance(
    prompts: Annotated[Path, typer.Option(metavar="FILE", help="Text, one prompt a line, or JSON with `prompts`.")],
    model: ModelFlag = "smollm2-135m",
    drafter: DrafterFlag = "early_exit",
    rules: Annotated[
        str, typer.Option(metavar="RULE,RULE,...", help="Rules of `spectr rules`, and chain: one draft.")
    ] = "race,optimal,kseq,match,chain",
    nodes: Annotated[str, typer.Option(metavar="N,N,...", help="Nodes of a tree.")] = "16,64",
    temperatures: Annotated[str, typer.Option(metavar="T,T,...", help="0 is greedy.")] = "1",
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Most tokens of each text.")] = 96,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, or auto.")] = "auto",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the JSON to a file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Count tokens per target call: rules, trees and temperatures on the same prompts."""
    if out is not None:
        check_folder(out)
    from spectr.bench.acceptance import Study, run

    sizes, heats = numbers("--nodes", nodes, int, 2), numbers("--temperatures", temperatures, float, 0.0)
    found = run(Study(model, drafter, prompts, rules.split(","), sizes, heats, tokens, device), talk)
    if out is not None:
        write_text(out, json.dumps(found, indent=2) + "\n")
    if as_json:
        print_json(found)
    else:
        console().print(acceptance_table(found["results"]))
