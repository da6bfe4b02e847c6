"""`python -m benchmarks.real`: measures a real model with and without its drafter."""

from collections.abc import Sequence
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
    SeedFlag,
    report,
    words,
)
from benchmarks.real import Order, Trial, run, tables
from benchmarks.real.order import WAYS
from benchmarks.real.problems import TASKS
from spectr.cli.flags import ModelFlag, NodesFlag
from spectr.cli.output import JsonFlag, check_folder, numbers, talk
from spectr.errors import UnknownNameError
from spectr.registry import nearest

__all__ = ["real"]

_MODULE = "benchmarks.real"


def _known(flag: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    for word in words(text):
        if word not in known:
            raise UnknownNameError(f"{flag} has no {word!r}; {nearest(word, list(known))}")
    return words(text)


def real(
    model: ModelFlag = "qwen2.5-coder-1.5b",
    drafter: DrafterFlag = "auto",
    nodes: NodesFlag = None,
    tasks: Annotated[
        str, typer.Option(metavar="TASK,TASK,...", help=f"Tasks: {', '.join(TASKS)}.")
    ] = "humaneval,gsm_symbolic,chat",
    data: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder with TASK.jsonl or TASK.jsonl.gz. [default: fetched once]"),
    ] = None,
    temperatures: Annotated[str, typer.Option(metavar="T,T,...", help="Temperatures that are timed.")] = "0,0.7,1",
    ways: Annotated[str, typer.Option(metavar="WAY,WAY,...", help=f"Ways: {', '.join(WAYS)}.")] = ",".join(WAYS),
    texts: Annotated[int, typer.Option(min=1, metavar="N", help="Timed texts for each task and temperature.")] = 8,
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum tokens of a timed text.")] = 256,
    score_temperatures: Annotated[
        str, typer.Option(metavar="T,T,...", help="Temperatures of the scores; empty: no scores.")
    ] = "0,0.7",
    problems: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Problems of each score. [default: all]")
    ] = None,
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Texts that run at once for scores.")] = 32,
    score_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum tokens of an answer.")] = 512,
    run_code: Annotated[
        bool, typer.Option("--run-code", help="Run the programs that the model writes, which HumanEval's score needs.")
    ] = False,
    seed: SeedFlag = 0,
    only: Annotated[
        str, typer.Option(metavar="PART,PART,...", help="Parts: humaneval_0, ..., scores_humaneval, ...")
    ] = "",
    again: AgainFlag = False,
    minutes: Annotated[float, typer.Option(min=0.001, metavar="M", help="Time limit of each part.")] = 8.0,
    compiled: CompileFlag = False,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="CPU threads. [default: one for each core]")
    ] = None,
    device: DeviceFlag = "auto",
    dtype: DtypeFlag = "auto",
    out: OutFlag = Path("spectr-real.json"),
    as_json: JsonFlag = False,
) -> None:
    """Time a model with its drafter against plain decoding and transformers, and compare its scores.

    Programs that the model writes are run only with --run-code: in a process of their own with limits on time and
    memory, but as the same user. Without it HumanEval is only timed.
    """
    check_folder(out)
    trial = Trial(
        _known("--tasks", tasks, TASKS), numbers("--temperatures", temperatures, float, 0.0),
        _known("--ways", ways, WAYS), texts, tokens,
        numbers("--score-temperatures", score_temperatures, float, 0.0) if score_temperatures else (), problems, rows,
        score_tokens, run_code, seed,
    )  # fmt: skip
    order = Order(
        out, model, drafter, device, dtype, compiled, words(only), again, command_line(_MODULE), nodes, data, threads,
        minutes, trial,
    )  # fmt: skip
    found = run(order, talk)
    about = found["about"]
    title = f"{about['model']}, drafter {about['drafter']}, {about['dtype']} on {about['device']}"
    report(found, title, tables, as_json=as_json)


if __name__ == "__main__":
    run_command(_MODULE, real)
