"""Flags that several commands share: one name, one meaning, one help text."""

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
"""Headings under which long help texts list their flags."""

ModelFlag = Annotated[
    str,
    typer.Option("--model", metavar="NAME", help="Catalog name, hub id, folder or GGUF file.", rich_help_panel=LOADING),
]
DeviceFlag = Annotated[
    str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, or auto.", rich_help_panel=LOADING)
]
DtypeFlag = Annotated[
    str,
    typer.Option(
        "--dtype",
        metavar="DTYPE",
        help="float32, bfloat16, ..., or auto: as stored on a GPU, float32 on a CPU.",
        rich_help_panel=LOADING,
    ),
]
WeightsFlag = Annotated[
    str,
    typer.Option(
        "--weights",
        metavar="STORAGE",
        help="How weights are stored on a CPU: file (as in the file), float32, or int8 (rounded: another model).",
        rich_help_panel=LOADING,
    ),
]
DrafterFlag = Annotated[
    str,
    typer.Option(
        "--drafter",
        metavar="NAME",
        help="The drafter: auto, lookup, ngram, early_exit, random, none, a folder, the name of a model or of a "
        "published head, or several with +.",
        rich_help_panel=SPECULATION,
    ),
]
RuleFlag = Annotated[
    str,
    typer.Option(
        "--rule",
        metavar="RULE",
        help="The rule that accepts drafts; `spectr rules` lists them.",
        rich_help_panel=SPECULATION,
    ),
]
NodesFlag = Annotated[
    int | None,
    typer.Option(
        "--nodes",
        min=2,
        metavar="N",
        help="Largest number of nodes of the token tree, root included.",
        rich_help_panel=SPECULATION,
    ),
]
PlanFlag = Annotated[
    str | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="A profile that `spectr tune` wrote, or auto: the size of the tree is chosen at every step.",
        rich_help_panel=SPECULATION,
    ),
]
InsecureFlag = Annotated[
    bool, typer.Option("--insecure", help="Let other machines connect without a key.", rich_help_panel=ADDRESS)
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
        "--request-timeout", min=1, metavar="SECONDS", help="Time limit of a request.", rich_help_panel=LIMITS
    ),
]
DrainTimeoutFlag = Annotated[
    float,
    typer.Option(
        "--drain-timeout",
        min=0,
        metavar="SECONDS",
        help="Time for running requests after SIGTERM.",
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
        help="Largest number of tokens to generate.",
        rich_help_panel=SAMPLING,
    ),
]
TemperatureFlag = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="T", help="0 is greedy. [default: what the model's files say, else 1]", rich_help_panel=SAMPLING
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
        help="Makes a text repeatable. [default: a random one, which is reported]",
        rich_help_panel=SAMPLING,
    ),
]


def given(**options: Any) -> dict[str, Any]:
    """The options that were given. What is None was not, and is left to the model's own defaults."""
    return {name: value for name, value in options.items() if value is not None}
