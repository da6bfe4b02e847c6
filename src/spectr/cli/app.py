"""The command itself: its groups, its version, and how it ends when something was wrong."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from spectr.cli import bench, cite, rules, theory, tree
from spectr.cli.audit import audit
from spectr.cli.chat import chat
from spectr.cli.generate import generate
from spectr.cli.models import doctor, models, pull_model
from spectr.cli.train import train
from spectr.cli.tune import tune
from spectr.errors import SpectrError
from spectr.version import __version__

__all__ = ["app", "main"]

app = typer.Typer(
    name="spectr",
    help="Lossless multi-draft speculative decoding: several drafts, one target call, exactly the target's law.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("generate")(generate)
app.command("chat")(chat)
app.command("models")(models)
app.command("pull")(pull_model)
app.command("doctor")(doctor)
app.command("train")(train)
app.command("tune")(tune)
app.add_typer(tree.app, name="tree")
app.add_typer(rules.app, name="rules")
app.command("cite")(cite.cite)
app.add_typer(bench.app, name="bench")
app.command("audit")(audit)
app.add_typer(theory.app, name="theory")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"spectr {__version__}")
        raise typer.Exit


@app.callback()
def _spectr(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `spectr` with the given arguments, or the process's. What spectr refuses is one line and exit code 2."""
    try:
        app(arguments, prog_name="spectr")
    except SpectrError as error:
        print(f"spectr: {' '.join(str(error).split())}", file=sys.stderr)
        raise SystemExit(2) from None
