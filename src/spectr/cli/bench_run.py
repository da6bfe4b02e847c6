"""`spectr bench run` and `spectr bench report`: compares whole methods, and turns the result into a page."""

import shlex
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from spectr.cli.flags import DtypeFlag
from spectr.cli.output import JsonFlag, check_folder, console, numbers, print_json, progress_bar, talk, write_text
from spectr.errors import ArgumentError

__all__ = ["bench_report", "bench_run", "names"]


def names(flag: str, text: str | None) -> tuple[str, ...] | None:
    """Parse distinct names separated by commas; None if the flag was not given."""
    if text is None:
        return None
    names = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    if not names and text.strip():
        raise ArgumentError(f"{flag} takes names separated by commas, got {text!r}")
    return names


def _counts(flag: str, text: str | None) -> tuple[int, ...] | None:
    return None if text is None else numbers(flag, text, int, 1)


def _temperatures(text: str | None) -> tuple[float, ...] | None:
    return None if text is None else numbers("--temperatures", text, float, 0.0)


def _shares(text: str | None) -> tuple[float, ...] | None:
    return None if text is None else numbers("--noises", text, float, 0.0)


class _Bar:
    """A progress bar that opens once the number of cells is known."""

    def __init__(self, stack: ExitStack) -> None:
        self.stack = stack
        self.advance: Callable[[], None] = lambda: None

    def expect(self, cells: int) -> None:
        """Open the bar for `cells` cells."""
        from spectr.bench.tables import count

        talk(f"{count(cells, 'cell')} to measure" if cells else "everything is measured already")
        self.advance = self.stack.enter_context(progress_bar("bench", cells))

    def tick(self) -> None:
        """Advance the bar by one cell."""
        self.advance()


def _show(found: dict[str, Any], *, size: bool) -> Table:
    """Return a table of the main results, or of those of the size ablation."""
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
        return f"complete: {out}; to make a page of it: spectr bench report {out} --out page.html"
    return f"{out} lacks {count(found['cells_missing'], 'cell')}; run the same command again to measure them"


def bench_run(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Catalog name, hub id or folder.")] = "smollm2-135m",
    preset: Annotated[
        str, typer.Option("--preset", metavar="NAME", help="Base settings: quick or paper; other flags override them.")
    ] = "quick",
    drafter: Annotated[
        str | None,
        typer.Option("--drafter", metavar="NAME", help="The drafter, as for generate. [default: that of load]"),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(metavar="NAME,NAME,...", help="Methods such as plain,kseq,race; an unknown one lists all."),
    ] = None,
    tasks: Annotated[
        str | None, typer.Option(metavar="TASK,TASK,...", help="Tasks: a kind, a public set, or KIND=FILE.jsonl.")
    ] = None,
    drafts: Annotated[str | None, typer.Option(metavar="K,K,...", help="Numbers of drafts in a tree.")] = None,
    lengths: Annotated[str | None, typer.Option(metavar="L,L,...", help="Numbers of tokens in a draft.")] = None,
    temperatures: Annotated[str | None, typer.Option(metavar="T,T,...", help="Temperatures; 0 is greedy.")] = None,
    tokens: Annotated[int | None, typer.Option(min=1, metavar="N", help="Most tokens of a text.")] = None,
    texts: Annotated[int | None, typer.Option(min=1, metavar="N", help="Prompts of each task.")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, metavar="N", help="Repetitions, each with other seeds.")] = None,
    ablations: Annotated[
        str | None, typer.Option(metavar="NAME,NAME,...", help="Ablations: quality, size, vocabulary; '' for none.")
    ] = None,
    noises: Annotated[str | None, typer.Option(metavar="X,X,...", help="quality: shares of noise, 0 to 1.")] = None,
    sizes: Annotated[
        str | None, typer.Option(metavar="NAME,NAME,...", help="size: drafters; early_exit:4 has four layers.")
    ] = None,
    vocabularies: Annotated[str | None, typer.Option(metavar="V,V,...", help="vocabulary: sizes.")] = None,
    endpoint: Annotated[
        list[str] | None, typer.Option(metavar="URL[#MODEL]", help="An OpenAI-compatible server; may be repeated.")
    ] = None,
    prefix: Annotated[
        str, typer.Option(metavar="TEXT", help="Prefix of the sources of an encoder-decoder model.")
    ] = "",
    seed: Annotated[int | None, typer.Option(metavar="N", help="Seed of the first text.")] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0.01, metavar="M", help="Time limit; run the same command again to continue."),
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, or auto.")] = "auto",
    dtype: DtypeFlag = "auto",
    out: Annotated[
        Path, typer.Option(metavar="FILE", help="File for the result; an unfinished run in it is continued.")
    ] = Path("spectr-bench.json"),
    as_json: JsonFlag = False,
) -> None:
    """Compare whole methods on real texts; an interrupted run continues where it stopped."""
    check_folder(out)
    from spectr.bench.grid import preset as named_preset
    from spectr.bench.run import Bench, Progress, run

    grid = named_preset(
        preset, methods=names("--methods", methods), tasks=names("--tasks", tasks), rounds=rounds, seed=seed,
        drafts=_counts("--drafts", drafts), lengths=_counts("--lengths", lengths),
        temperatures=_temperatures(temperatures), tokens=tokens, prompts=texts,
        studies=names("--ablations", ablations), noises=_shares(noises),
        sizes=names("--sizes", sizes), vocabularies=_counts("--vocabularies", vocabularies),
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


def bench_report(
    results: Annotated[Path, typer.Argument(metavar="FILE", help="A result of `spectr bench run`, finished or not.")],
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write one self-contained HTML page.")] = None,
    markdown: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the tables as Markdown.")] = None,
) -> None:
    """Turn a result into an HTML page with plots, or into Markdown; by default, print the Markdown."""
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
