"""`spectr models`, `spectr pull` and `spectr doctor`: models with a name, and checks of the installation."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from spectr.cli.output import JsonFlag, console, print_json, talk
from spectr.errors import ArgumentError

__all__ = ["doctor", "models", "pull_model"]


def pull_model(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `spectr models`.")] = "smollm2-135m",
) -> None:
    """Download a catalog model unless it is present, and print the path of its file."""
    from spectr.models.catalog import pull

    typer.echo(pull(name, talk))


def models(as_json: JsonFlag = False) -> None:
    """List the models that can be loaded by name, and whether they are downloaded."""
    from spectr.models.catalog import CATALOG, locate

    if as_json:
        listed = {name: {"about": m.about, "file": str(locate(name) or "") or None} for name, m in CATALOG.items()}
        print_json({"models": listed})
        return
    table = Table(box=None)
    for heading in ("model", "here", "about"):
        table.add_column(heading)
    for name, model in CATALOG.items():
        table.add_row(name, "yes" if locate(name) else "no", model.about)
    console().print(table)


def _rows(found: dict[str, Any], above: str = "") -> list[tuple[str, str]]:
    """Flatten nested findings into rows of a table."""
    lines = []
    for name, value in found.items():
        label = f"{above} {name}".strip()
        if isinstance(value, dict):
            lines += _rows(value, label)
        else:
            lines.append((label, "missing" if value is None else str(value)))
    return lines


def _print_found(found: dict[str, Any]) -> None:
    table = Table(box=None, show_header=False)
    for label, value in _rows({name: value for name, value in found.items() if name not in ("advice", "run")}):
        table.add_row(label, value)
    for sign in found.get("run", {}).get("signs", ()):
        table.add_row(f"run {sign['name']}", sign["says"])
    console().print(table)
    for sentence in found["advice"]:
        talk(sentence)


def _run(model: str, prompts: Path | None) -> dict[str, Any]:
    """Run the model with the default drafter and rule, and report warning signs."""
    from spectr.cli.tune import texts_for
    from spectr.lm import load
    from spectr.tune.checkup import check_up

    lm = load(model, progress=talk)
    talk(f"running {lm!r}")
    signs = check_up(lm, texts_for(prompts, 6))
    for sign in signs:
        if sign.bad:
            talk(f"{sign.says}: {sign.advice}")
    talk(f"to check that the output has the target's distribution: spectr audit {model}")
    return {"signs": [sign.as_data() for sign in signs], "audit": f"spectr audit {model}"}


def _examine_head(model: str, drafter: str, prompts: Path | None) -> dict[str, Any]:
    """Describe a published head and measure it with a model."""
    from spectr.cli.tune import texts_for
    from spectr.lm import load
    from spectr.tune.head_check import check_head

    lm = load(model, "none", progress=talk)
    talk(f"running {drafter} with {model}")
    found = check_head(lm, drafter, texts_for(prompts, 1)[0])
    if found.advice is not None:
        talk(found.advice)
    return {"name": drafter, **found.as_data(), **({} if found.advice is None else {"advice": found.advice})}


def doctor(
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Also report what this model requires and which settings are chosen for it: a catalog name, hub id or "
            "folder.",
        ),
    ] = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            "--drafter",
            metavar="NAME",
            help="With --model: also describe this published head (a folder or hub id) and run it. Reports its "
            "acceptance with each reading of the hidden states its config names, and the cost of a step.",
        ),
    ] = None,
    run: Annotated[
        bool, typer.Option("--run", help="Also run the model, and report problems with speculation.")
    ] = False,
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Prompts for --run and --drafter, one per line. [default: built-in prompts]"),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Check the installation, the machine and a model. Exit code 1 if models cannot run yet."""
    from spectr.models.doctor import examine

    if drafter is not None and model is None:
        raise ArgumentError("--drafter requires the target it is for; add --model NAME")
    found = examine(model)
    if drafter is not None and model is not None and not found["advice"]:
        found["drafter"] = _examine_head(model, drafter, prompts)
    if run and not found["advice"]:
        found["run"] = _run(model or "smollm2-135m", prompts)
    if as_json:
        print_json(found)
    else:
        _print_found(found)
    if found["advice"]:
        raise typer.Exit(1)
    talk("no problems found: models can run on this machine")
