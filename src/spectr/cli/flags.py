"""Flags that several commands share, so that each has one name, one meaning and one help text."""

from typing import Annotated, Any

import typer

__all__ = [
    "DeviceFlag",
    "DrafterFlag",
    "DrainTimeoutFlag",
    "DtypeFlag",
    "InsecureFlag",
    "MaxTokensFlag",
    "ModelFlag",
    "NodesFlag",
    "PlanFlag",
    "PortFlag",
    "RequestTimeoutFlag",
    "RuleFlag",
    "SeedFlag",
    "TemperatureFlag",
    "TopPFlag",
    "WeightsFlag",
    "given",
]

LOADING, SPECULATION, SAMPLING, OUTPUT = "Model", "Speculation", "Sampling", "Output"
ADDRESS, LIMITS = "Address and access", "Limits"
"""The headings under which help texts list their flags."""

ModelFlag = Annotated[
    str,
    typer.Option("--model", metavar="NAME", help="Catalog name, hub id, folder or GGUF file.", rich_help_panel=LOADING),
]
DeviceFlag = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="Where to run: cpu, cuda, or auto.", rich_help_panel=LOADING)
]
DtypeFlag = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="float32, bfloat16, ..., or auto: the stored dtype on a GPU, float32 on a CPU.",
        rich_help_panel=LOADING,
    ),
]
WeightsFlag = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="STORAGE",
        help="Weight format on a CPU: file (as stored), float32, or int8 (rounded, which changes the model).",
        rich_help_panel=LOADING,
    ),
]
DrafterFlag = Annotated[
    str,
    typer.Option(
        "--drafter",
        metavar="NAME",
        help="The drafter: auto, lookup, ngram, early_exit, random, none, a folder, the name of a model or of a "
        "published head, or several joined by +.",
        rich_help_panel=SPECULATION,
    ),
]
RuleFlag = Annotated[
    str,
    typer.Option(
        "--rule",
        metavar="RULE",
        help="The rule that accepts drafts, one of `spectr rules`.",
        rich_help_panel=SPECULATION,
    ),
]
NodesFlag = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        min=2,
        metavar="N",
        help="Maximum number of nodes of the token tree, root included.",
        rich_help_panel=SPECULATION,
    ),
]
PlanFlag = Annotated[
    str | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="A profile written by `spectr tune`, or auto to choose the size of the tree at every step.",
        rich_help_panel=SPECULATION,
    ),
]
InsecureFlag = Annotated[
    bool,
    typer.Option("--insecure", help="Accept connections from other machines without a key.", rich_help_panel=ADDRESS),
]
PortFlag = Annotated[
    int,
    typer.Option(
        "--port", min=0, max=65535, metavar="PORT", help="Port to listen on; 0: any free port.", rich_help_panel=ADDRESS
    ),
]
RequestTimeoutFlag = Annotated[
    float,
    typer.Option(
        "--request-timeout", min=1, metavar="SECONDS", help="Time limit for a whole request.", rich_help_panel=LIMITS
    ),
]
DrainTimeoutFlag = Annotated[
    float,
    typer.Option(
        "--drain-timeout",
        min=0,
        metavar="SECONDS",
        help="Time for running requests to finish after SIGTERM.",
        rich_help_panel=LIMITS,
    ),
]
MaxTokensFlag = Annotated[
    int,
    typer.Option(
        "--max-new-tokens",
        "--max-tokens",
        min=1,
        metavar="N",
        help="Maximum number of tokens to generate.",
        rich_help_panel=SAMPLING,
    ),
]
TemperatureFlag = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="T", help="0 is greedy. [default: that of the model's files, else 1]", rich_help_panel=SAMPLING
    ),
]
TopPFlag = Annotated[
    float | None,
    typer.Option(
        metavar="P",
        help="Sample from the likeliest tokens that together have probability P.",
        rich_help_panel=SAMPLING,
    ),
]
SeedFlag = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Seed that makes a text reproducible. [default: random, and reported]",
        rich_help_panel=SAMPLING,
    ),
]


def given(**options: Any) -> dict[str, Any]:
    """Return the options that are not None; the others are left to the model's defaults."""
    return {name: value for name, value in options.items() if value is not None}
