"""`spectr bench`: measures rules, steps and whole methods on this machine, and reports on a run."""

import json
import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from spectr.cli.bench_run import bench_report, bench_run, names
from spectr.cli.flags import DrafterFlag, ModelFlag
from spectr.cli.moved import add_moved
from spectr.cli.output import JsonFlag, check_folder, console, numbers, print_json, talk, write_text
from spectr.errors import ArgumentError

__all__ = ["app"]

app = typer.Typer(help="Measure on this machine.", no_args_is_help=True, rich_markup_mode=None)

_RULES = "race,match,kseq,kseq_plus,optimal,path_block,recursive,block,traversal"


def _check_device(name: str) -> None:
    import torch

    try:
        kind = torch.device(name).type
    except RuntimeError:
        raise ArgumentError(f"--device must be cpu, cuda or cuda:N, got {name!r}") from None
    if kind == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(f"--device {name} requires a CUDA device, and torch finds none; use --device cpu")


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
    from spectr.verify import rule

    _check_device(device)
    names = tuple(dict.fromkeys(rules.split(",")))
    for name in names:
        rule(name)  # an unknown name is refused before anything is measured
    if out is not None:
        check_folder(out)
    from spectr.bench.rules import run
    from spectr.cli.tables import bench_table

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
    drafters: Annotated[
        str, typer.Option(metavar="NAME,NAME,...", help="Drafters; auto@3 drafts trees of three nodes.")
    ] = "none,lookup",
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompts: a text file with one per line, or JSON with `prompts`."),
    ] = None,
    texts: Annotated[
        int, typer.Option(min=1, metavar="N", help="Number of prompts to use, evenly spread over the file.")
    ] = 12,
    tokens: Annotated[int, typer.Option(min=8, metavar="N", help="Tokens of each text.")] = 128,
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds over the prompts.")] = 3,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the JSON to a file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Time a step around the model, against transformers' plain sampling of the same model."""
    from spectr.cli.tables import step_table

    if out is not None:
        check_folder(out)
    from spectr.bench.step import Trial, run
    from spectr.data.prompts import read_prompts, timing

    every = timing() if prompts is None else [one.text for one in read_prompts(prompts)]
    some = every[:: max(1, len(every) // texts)][:texts]
    found = run(Trial(model, drafters.split(","), some, tokens, repeats), talk)
    found["command"] = f"spectr {shlex.join(sys.argv[1:])}"
    if out is not None:
        write_text(out, json.dumps(found, indent=2) + "\n")
    if as_json:
        print_json(found)
    else:
        console().print(step_table(found["results"]))


@app.command("cpu")
def bench_cpu(
    model: ModelFlag = "smollm2-135m",
    ways: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME,...", help="Methods: transformers,spectr plain,spectr default,llama.cpp."),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompts: a text file with one per line, or JSON with `prompts`."),
    ] = None,
    tokens: Annotated[int, typer.Option(min=8, metavar="N", help="Tokens of each text.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds over the prompts.")] = 3,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="CPU threads. [default: one for each core]")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File for the result; an unfinished run in it is continued.")
    ] = Path("spectr-bench-cpu.json"),
    as_json: JsonFlag = False,
) -> None:
    """Decode on a CPU with transformers, spectr and llama.cpp in turn: the same file, prompts and threads."""
    from importlib.util import find_spec

    from spectr.cli.tables import cpu_table

    check_folder(out)
    from spectr.bench.cpu import WAYS, CpuTrial, run
    from spectr.data.prompts import read_prompts, timing

    some = timing() if prompts is None else [one.text for one in read_prompts(prompts)]
    chosen = names("--ways", ways)
    if chosen is None:
        chosen = WAYS if find_spec("xllamacpp") is not None else WAYS[:-1]
        if chosen is not WAYS:
            talk("llama.cpp is not measured: pip install xllamacpp to compare with it")
    command = f"spectr {shlex.join(sys.argv[1:])}"
    found = run(CpuTrial(model, out, some, chosen, tokens, rounds, threads, command), talk)
    if as_json:
        print_json(found)
    else:
        console().print(cpu_table(found["results"]))


@app.command("acceptance")
def bench_acceptance(
    prompts: Annotated[
        Path, typer.Option(metavar="FILE", help="Prompts: a text file with one per line, or JSON with `prompts`.")
    ],
    model: ModelFlag = "smollm2-135m",
    drafter: DrafterFlag = "early_exit",
    rules: Annotated[
        str, typer.Option(metavar="RULE,RULE,...", help="Rules of `spectr rules`, or chain for one draft.")
    ] = "race,optimal,kseq,match,chain",
    nodes: Annotated[str, typer.Option(metavar="N,N,...", help="Nodes of a tree.")] = "16,64",
    temperatures: Annotated[str, typer.Option(metavar="T,T,...", help="Temperatures; 0 is greedy.")] = "1",
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Most tokens of each text.")] = 96,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, or auto.")] = "auto",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the JSON to a file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Count tokens per target call: rules, trees and temperatures on the same prompts."""
    from spectr.cli.tables import acceptance_table

    if out is not None:
        check_folder(out)
    from spectr.bench.acceptance import Study, run

    sizes, wanted = numbers("--nodes", nodes, int, 2), numbers("--temperatures", temperatures, float, 0.0)
    found = run(Study(model, drafter, prompts, rules.split(","), sizes, wanted, tokens, device), talk)
    if out is not None:
        write_text(out, json.dumps(found, indent=2) + "\n")
    if as_json:
        print_json(found)
    else:
        console().print(acceptance_table(found["results"]))


app.command("run")(bench_run)
app.command("report")(bench_report)
add_moved(app, "bench inflate", "benchmarks.inflate")
