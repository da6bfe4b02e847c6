"""`spectr train`: a drafter for any target, distilled from the target's own samples."""

from pathlib import Path
from typing import Annotated

import typer

from spectr.cli.output import JsonFlag, numbers, print_json, talk
from spectr.errors import ArgumentError
from spectr.registry import nearest

__all__ = ["train"]


def train(
    target: Annotated[str, typer.Option("--target", metavar="NAME", help="Catalog name, hub id or folder.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder of the drafter; an interrupted run goes on there.")],
    data: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prompts, one a line, or .jsonl; otherwise built-in ones.")
    ] = None,
    prompts: Annotated[int, typer.Option(min=2, metavar="N", help="How many prompts the target answers.")] = 4000,
    longest: Annotated[int, typer.Option(min=8, metavar="N", help="Most tokens of an answer.")] = 256,
    minutes: Annotated[float, typer.Option(min=0.01, metavar="M", help="Time for training, without sampling.")] = 10.0,
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="feature, or blockwise: parallel heads.")
    ] = "feature",
    layers: Annotated[int, typer.Option(min=1, max=4, metavar="N", help="Layers of a feature head.")] = 2,
    depths: Annotated[int, typer.Option(min=1, max=8, metavar="D", help="Depths it is trained down to.")] = 4,
    objective: Annotated[
        str, typer.Option("--objective", metavar="NAME", help="overlap, race or cross_entropy.")
    ] = "overlap",
    temperatures: Annotated[
        str, typer.Option(metavar="T,T,...", help="Of samples and of training, in turn.")
    ] = "1.0,0.7",
    vocabulary: Annotated[
        int | None, typer.Option(min=64, metavar="N", help="Tokens it drafts on a CPU, the most frequent.")
    ] = None,
    begin_with: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Train this drafter further; its kind and layers are kept.")
    ] = None,
    rate: Annotated[float, typer.Option(min=1e-6, max=1.0, metavar="R", help="Learning rate, at its highest.")] = 4e-3,
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Texts sampled at a time.")] = 64,
    batch: Annotated[int, typer.Option(min=256, metavar="N", help="Tokens of a training step.")] = 8192,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, or auto.")] = "auto",
    dtype: Annotated[
        str, typer.Option("--dtype", metavar="DTYPE", help="Of the target: float32, bfloat16.")
    ] = "float32",
    as_json: JsonFlag = False,
) -> None:
    """Distil a drafter from a target's own samples, for `spectr.load(target, drafter=DIR)`."""
    from spectr.train.distil import Distilling, distil
    from spectr.train.loop import Course
    from spectr.train.objective import OBJECTIVES

    if objective not in OBJECTIVES:
        raise ArgumentError(f"no objective is called {objective!r}; {nearest(objective, list(OBJECTIVES))}")
    if kind not in ("feature", "blockwise"):
        raise ArgumentError(f"no kind of drafter is called {kind!r}; {nearest(kind, ['feature', 'blockwise'])}")
    heats = numbers("--temperatures", temperatures, float, 0.05)
    course = Course(60 * minutes, depths=depths, objective=objective, temperatures=heats, rate=rate, budget=batch)
    how = Distilling(
        target, out, data, prompts, longest, heats, rows, kind, layers, vocabulary, begin_with, course,
        {"device": device, "dtype": dtype},
    )  # fmt: skip
    about = distil(how, talk)
    reached = about.training["curve"][-1]["acceptance"] if about.training["curve"] else []
    if as_json:
        print_json({"folder": str(out), "acceptance": reached, **about.training})
    else:
        typer.echo(out)
