"""`spectr train`: trains a drafter for any target on the target's own samples."""

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spectr.cli.flags import DeviceFlag, DtypeFlag
from spectr.cli.group import INTERRUPTED, command_line
from spectr.cli.output import JsonFlag, check_new_folder, numbers, print_json, progress_bar, talk
from spectr.errors import ArgumentError
from spectr.registry import nearest

if TYPE_CHECKING:
    from spectr.models.trained import Trained
    from spectr.train.distil import Distilling

__all__ = ["train"]

_TEXTS, _DRAFTER, _TRAINING = "Texts", "Drafter", "Training"


def _one_of(flag: str, name: str, known: list[str]) -> None:
    if name not in known:
        raise ArgumentError(f"{flag} must be one of {', '.join(known)}, got {name!r}; {nearest(name, known)}")


def _bar(title: str, total: float) -> AbstractContextManager[Any]:
    """Print the name of the stage and return its progress bar."""
    talk(f"{title} …")
    return progress_bar(title, total, counts=total > 1)


def _distilled(how: "Distilling", context: typer.Context) -> "Trained":
    """Train; after Ctrl-C, report what is kept and how to continue."""
    from spectr.train.distil import FILES, distil

    try:
        return distil(how, talk, _bar)
    except KeyboardInterrupt:
        kept = [what for name, what in FILES.items() if (how.out / name).exists()]
        talk(f"\ninterrupted; kept in {how.out}: {', '.join(kept) or 'nothing yet'}")
        talk(f"to continue, run the same command again: {command_line(context)}")
        raise typer.Exit(INTERRUPTED) from None


def train(
    context: typer.Context,
    target: Annotated[str, typer.Option("--target", metavar="NAME", help="Catalog name, hub id or folder.")],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Folder for the drafter; an interrupted run in it is continued.")
    ],
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Prompts: one per line, or .jsonl. [default: built-in prompts]",
            rich_help_panel=_TEXTS,
        ),
    ] = None,
    texts: Annotated[
        int,
        typer.Option(min=2, metavar="N", help="Number of prompts the target answers.", rich_help_panel=_TEXTS),
    ] = 4000,
    tokens: Annotated[
        str,
        typer.Option(
            metavar="N,N,...", help="Maximum numbers of tokens of an answer, used in turn.", rich_help_panel=_TEXTS
        ),
    ] = "256",
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Texts sampled at once.", rich_help_panel=_TEXTS)] = 64,
    sampling_minutes: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            metavar="M",
            help="Stop sampling after this time and train on the answers so far. [default: no limit]",
            rich_help_panel=_TEXTS,
        ),
    ] = None,
    temperatures: Annotated[
        str,
        typer.Option(
            metavar="T,T,...", help="Temperatures of the samples and of training, used in turn.", rich_help_panel=_TEXTS
        ),
    ] = "1.0,0.7",
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="feature; light, with one layer below the root; blockwise for parallel heads.",
            rich_help_panel=_DRAFTER,
        ),
    ] = "feature",
    layers: Annotated[
        int, typer.Option(min=1, max=4, metavar="N", help="Layers of a feature head.", rich_help_panel=_DRAFTER)
    ] = 2,
    inner: Annotated[
        int | None,
        typer.Option(
            min=8, metavar="N", help="Inner width of its layers. [default: the target's]", rich_help_panel=_DRAFTER
        ),
    ] = None,
    depths: Annotated[
        int,
        typer.Option(
            min=1, max=8, metavar="D", help="How many tokens ahead it is trained for.", rich_help_panel=_DRAFTER
        ),
    ] = 4,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            min=64,
            metavar="N",
            help="Learn and draft only the N most frequent tokens of the answers. Training is faster, too.",
            rich_help_panel=_DRAFTER,
        ),
    ] = None,
    bits: Annotated[
        int,
        typer.Option(
            min=5, max=6, metavar="N", help="Bits in which each weight is stored: 5 or 6.", rich_help_panel=_DRAFTER
        ),
    ] = 6,
    file_format: Annotated[
        str,
        typer.Option(
            "--format",
            metavar="NAME",
            help="spectr, or eagle3: a one-layer head in the speculators format, which vLLM and SGLang load as well.",
            rich_help_panel=_DRAFTER,
        ),
    ] = "spectr",
    begin_with: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="Train this drafter further; its layers are kept, and --kind light adds one below the root.",
            rich_help_panel=_DRAFTER,
        ),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(min=0.01, metavar="M", help="Training time, without sampling.", rich_help_panel=_TRAINING),
    ] = 10.0,
    objective: Annotated[
        str,
        typer.Option("--objective", metavar="NAME", help="overlap, race or cross_entropy.", rich_help_panel=_TRAINING),
    ] = "overlap",
    rate: Annotated[
        float,
        typer.Option(min=1e-6, max=1.0, metavar="R", help="Peak learning rate.", rich_help_panel=_TRAINING),
    ] = 4e-3,
    batch: Annotated[
        int, typer.Option(min=256, metavar="N", help="Tokens per training step.", rich_help_panel=_TRAINING)
    ] = 8192,
    device: DeviceFlag = "auto",
    dtype: DtypeFlag = "auto",
    as_json: JsonFlag = False,
) -> None:
    """Train a drafter on a target's own samples, for `spectr.load(target, drafter=DIR)` and `--drafter DIR`.

    The stages are: the target answers prompts, its hidden states are recorded, and the drafter is trained on them.
    After Ctrl-C, run the same command again to continue.
    """
    check_new_folder("--out", out)
    _one_of("--kind", kind, ["feature", "light", "blockwise"])
    _one_of("--format", file_format, ["spectr", "eagle3"])
    if file_format == "eagle3":
        if kind != "feature" or begin_with is not None:
            raise ArgumentError("--format eagle3 trains a new head of its own kind; leave out --kind and --begin-with")
        kind = "eagle3"
    sampling_temperatures = numbers("--temperatures", temperatures, float, 0.05)
    from spectr.train.distil import Distilling
    from spectr.train.loop import Course
    from spectr.train.objective import OBJECTIVES

    _one_of("--objective", objective, list(OBJECTIVES))
    course = Course(
        60 * minutes, depths=depths, objective=objective,  # type: ignore[arg-type]
        temperatures=sampling_temperatures, rate=rate, budget=batch,
    )  # fmt: skip
    how = Distilling(
        target, out, prompts, texts, numbers("--tokens", tokens, int, 8), sampling_temperatures, rows,
        float("inf") if sampling_minutes is None else 60 * sampling_minutes, kind, layers, inner, vocabulary,
        bits, begin_with, course, {"device": device, "dtype": dtype},
    )  # fmt: skip
    about = _distilled(how, context)
    reached = about.training["curve"][-1]["acceptance"] if about.training["curve"] else []
    if as_json:
        print_json({"folder": str(out), "acceptance": reached, **about.training})
    else:
        typer.echo(out)
        talk(f"use it with: spectr generate --model {target} --drafter {out} PROMPT")
