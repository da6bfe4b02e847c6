"""`spectr bench`: what rules, steps and whole methods cost on this machine, and the report of a run."""

import json
import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from spectr.cli.flags import DrafterFlag, DtypeFlag, ModelFlag
from spectr.cli.moved import add_moved
from spectr.cli.output import JsonFlag, check_folder, console, numbers, print_json, progress_bar, talk, write_text
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
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Number of timings; the median is reported.")] = 5,
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
        str, typer.Option(metavar="NAME,NAME,...", help="Ways to draft; auto@3 has trees of three nodes.")
    ] = "none,lookup",
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Text, one prompt a line, or JSON with `prompts`.")
    ] = None,
    texts: Annotated[int, typer.Option(min=1, metavar="N", help="Number of prompts to use, evenly spread.")] = 12,
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
        typer.Option(metavar="NAME,NAME,...", help="Some of: transformers,spectr plain,spectr default,llama.cpp."),
    ] = None,
    prompts: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Text, one prompt a line, or JSON with `prompts`.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=8, metavar="N", help="Tokens of each text.")] = 128,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds over the prompts.")] = 3,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Threads; otherwise one for each core.")
    ] = None,
    out: Annotated[Path, typer.Option(metavar="FILE", help="File for the result; a run in it is continued.")] = Path(
        "spectr-bench-cpu.json"
    ),
    as_json: JsonFlag = False,
) -> None:
    """Decode on a CPU with transformers, spectr and llama.cpp in turn, with the same file, prompts and threads."""
    from importlib.util import find_spec

    from spectr.cli.tables import cpu_table

    check_folder(out)
    from spectr.bench.cpu import WAYS, CpuTrial, run
    from spectr.data.prompts import read_prompts, timing

    some = timing() if prompts is None else [one.text for one in read_prompts(prompts)]
    chosen = _names("--ways", ways)
    if chosen is None:
        chosen = WAYS if find_spec("xllamacpp") is not None else WAYS[:-1]
        if chosen is not WAYS:
            talk("llama.cpp is left out: pip install xllamacpp to compare with it")
    command = f"spectr {shlex.join(sys.argv[1:])}"
    found = run(CpuTrial(model, out, some, chosen, tokens, rounds, threads, command), talk)
    if as_json:
        print_json(found)
    else:
        console().print(cpu_table(found["results"]))


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
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Largest number of tokens of each text.")] = 96,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, or auto.")] = "auto",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the JSON to a file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Count tokens per target call for rules, trees and temperatures on the same prompts."""
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


def _names(flag: str, text: str | None) -> tuple[str, ...] | None:
    """Names with commas between them, each once; None where nothing was said."""
    if text is None:
        return None
    found = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not found and text.strip():
        raise ArgumentError(f"{flag} takes names with commas between them, got {text!r}")
    return found


def _counts(flag: str, text: str | None) -> tuple[int, ...] | None:
    return None if text is None else numbers(flag, text, int, 1)


def _temperatures(text: str | None) -> tuple[float, ...] | None:
    return None if text is None else numbers("--temperatures", text, float, 0.0)


def _shares(text: str | None) -> tuple[float, ...] | None:
    return None if text is None else numbers("--noises", text, float, 0.0)


class _Bar:
    """A progress bar that opens once it is known how much there is to do."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.advance: Callable[[], None] = lambda: None

    def expect(self, cells: int) -> None:
        """Open the bar for so many cells."""
        from spectr.bench.tables import count

        talk(f"{count(cells, 'cell')} to measure" if cells else "everything is measured already")
        self.advance = self.stack.enter_context(progress_bar("bench", cells))

    def tick(self) -> None:
        """Advance the bar by one cell."""
        self.advance()


def _show(found: dict[str, Any], *, size: bool) -> Table:
    """The main rows, or those of the size ablation, for a terminal."""
    from spectr.bench.tables import way_table

    rows = [row for row in found["results"] if (row["study"] == "size") == size]
    heads, cells = way_table(rows)
    table = Table(*heads[:7], heads[-1], box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for line in cells:
        table.add_row(*line[:7], line[-1])
    return table


def _rest(found: dict[str, Any], out: Path) -> str:
    from spectr.bench.tables import count

    if not found["cells_missing"]:
        return f"complete: {out}; for a page of it: spectr bench report {out} --out page.html"
    return f"{out} lacks {count(found['cells_missing'], 'cell')}; the same command again measures them"


@app.command("run")
def bench_run(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Catalog name, hub id or folder.")] = "smollm2-135m",
    preset: Annotated[str, typer.Option("--preset", metavar="NAME", help="quick or paper; flags change it.")] = "quick",
    drafter: Annotated[
        str | None, typer.Option("--drafter", metavar="NAME", help="As for generate; by default that of load.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(metavar="NAME,NAME,...", help="Such as plain,kseq,race; an unknown name lists all.")
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="TASK,TASK,...", help="A kind, a public set, or KIND=FILE.jsonl.")
    ] = None,
    drafts: Annotated[str | None, typer.Option(metavar="K,K,...", help="Drafts of a tree.")] = None,
    lengths: Annotated[str | None, typer.Option(metavar="L,L,...", help="Tokens of a draft.")] = None,
    temperatures: Annotated[str | None, typer.Option(metavar="T,T,...", help="0 is greedy.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, metavar="N", help="Largest number of tokens of a text.")] = None,
    texts: Annotated[int | None, typer.Option(min=1, metavar="N", help="Prompts of each task.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Repetitions, each with other seeds.")] = None,
    ablations: Annotated[
        str | None, typer.Option(metavar="NAME,NAME,...", help="Of quality, size, vocabulary; '' for none.")
    ] = None,
    noises: Annotated[str | None, typer.Option(metavar="X,X,...", help="quality: shares of noise, 0 to 1.")] = None,
    sizes: Annotated[
        str | None, typer.Option(metavar="NAME,NAME,...", help="size: drafters; early_exit:4 has four layers.")
    ] = None,
    vocabularies: Annotated[str | None, typer.Option(metavar="V,V,...", help="vocabulary: their sizes.")] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option(metavar="URL[#MODEL]", help="An OpenAI-compatible server; may be repeated.")
    ] = None,
    prefix: Annotated[str, typer.Option(metavar="TEXT", help="Text before an encoder-decoder model's source.")] = "",
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the first text.")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, metavar="M", help="Stop after this; the same command continues."),
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, or auto.")] = "auto",
    dtype: DtypeFlag = "auto",
    out: Annotated[Path, typer.Option(metavar="FILE", help="File for the result; a run in it is continued.")] = Path(
        "spectr-bench.json"
    ),
    as_json: JsonFlag = False,
) -> None:
    """Compare whole methods on real texts; the same command continues an interrupted run."""
    check_folder(out)
    from spectr.bench.grid import preset as named_preset
    from spectr.bench.run import Bench, Progress, run

    grid = named_preset(
        preset, methods=_names("--methods", methods), tasks=_names("--tasks", tasks), rounds=rounds, seed=seed,
        drafts=_counts("--drafts", drafts), lengths=_counts("--lengths", lengths),
        temperatures=_temperatures(temperatures), tokens=tokens, prompts=texts,
        studies=_names("--ablations", ablations), noises=_shares(noises),
        sizes=_names("--sizes", sizes), vocabularies=_counts("--vocabularies", vocabularies),
    )  # fmt: skip
    bench = Bench(
        target, out, grid, drafter, {"device": device, "dtype": dtype}, tuple(endpoint or ()), prefix,
        strict=methods is not None, minutes=minutes, command=f"spectr {shlex.join(sys.argv[1:])}",
    )  # fmt: skip
    with ExitStack() as stack:
        bar = _Bar(stack)
        found = run(bench, Progress(talk, bar.expect, bar.tick))
    if as_json:
        print_json(found)
    else:
        console().print(_show(found, size=False))
    talk(_rest(found, out))
    if found["interrupted"]:
        raise typer.Exit(130)


@app.command("report")
def bench_report(
    results: Annotated[Path, typer.Argument(metavar="FILE", help="What `spectr bench run` wrote, finished or not.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one self-contained HTML page.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables as Markdown.")] = None,
) -> None:
    """Turn a result into a page with plots, and into Markdown; without either, print the Markdown."""
    from spectr.bench.journal import read_results
    from spectr.bench.report import as_markdown, page
    from spectr.bench.summary import summarise

    for path in (out, markdown):
        if path is not None:
            check_folder(path)
    head, cells, data = read_results(results)
    found = {**data, **summarise(cells), "cells": cells}
    if out is not None:
        write_text(out, page(head, found))
    if markdown is not None:
        write_text(markdown, as_markdown(head, found))
    if out is None and markdown is None:
        typer.echo(as_markdown(head, found))


add_moved(app, "bench inflate", "benchmarks.inflate")
