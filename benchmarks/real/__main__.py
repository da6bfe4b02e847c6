"""`python -m benchmarks.real`: measures a real model with and without its drafter."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.command import command_line, run_command
from benchmarks.real import Order, Trial, run, tables
from benchmarks.real.order import WAYS
from benchmarks.real.problems import TASKS
from benchmarks.show import show
from spectr.cli.flags import ModelFlag, NodesFlag
from spectr.cli.output import JsonFlag, check_folder, numbers, print_json, talk
from spectr.errors import UnknownNameError
from spectr.registry import nearest

__all__ = ["real"]

_MODULE = "benchmarks.real"


def _words(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))


def _known(flag: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    for word in _words(text):
        if word not in known:
            raise UnknownNameError(f"{flag} has no {word!r}; {nearest(word, list(known))}")
    return _words(text)


def real(
    model: ModelFlag = "qwen2.5-coder-1.5b",
    drafter: Annotated[
        str, typer.Option("--drafter", metavar="NAME", help="Drafter, as in spectr.load: auto, a folder, none, ...")
    ] = "auto",
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
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of the texts.")] = 0,
    only: Annotated[
        str, typer.Option(metavar="PART,PART,...", help="Parts: humaneval_0, ..., scores_humaneval, ...")
    ] = "",
    again: Annotated[bool, typer.Option("--again", help="Measure again the parts that are in the file.")] = False,
    minutes: Annotated[float, typer.Option(min=0.001, metavar="M", help="Time limit of each part.")] = 8.0,
    compiled: Annotated[bool, typer.Option("--compile", help="Compile the model and its head for spectr.")] = False,
    threads: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="CPU threads. [default: one for each core]")
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda or auto.")] = "auto",
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="DTYPE", help="auto: bfloat16 on a GPU, float32 on a CPU.")
    ] = "auto",
    out: Annotated[Path, typer.Option(metavar="FILE", help="The result file; parts already in it are kept.")] = Path(
        "spectr-real.json"
    ),
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
        out, model, drafter, nodes, data, device, dtype, compiled, threads, _words(only), again, minutes,
        command_line(_MODULE), trial,
    )  # fmt: skip
    found = run(order, talk)
    if as_json:
        print_json(found)
    else:
        about = found["about"]
        show(f"{about['model']}, drafter {about['drafter']}, {about['dtype']} on {about['device']}", tables(found))
    if any("error" in part for part in found["parts"].values()):
        raise typer.Exit(1)


if __name__ == "__main__":
    run_command(_MODULE, real)
