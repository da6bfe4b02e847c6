"""The root command: its subcommands, its version, and its exit codes.

Exit codes: 0 for success, 1 if a command ran and found a problem (a failed audit, advice of `doctor`), 2 for invalid
arguments, 130 after Ctrl-C, 141 if stdout was closed by its reader.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from spectr.cli.group import LazyCommand, LazyGroup
from spectr.cli.usage import usage_message
from spectr.errors import SpectrError
from spectr.version import __version__

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = {
    "generate": LazyCommand("spectr.cli.generate:generate", "Generate text, and report what speculation did."),
    "chat": LazyCommand("spectr.cli.chat:chat", "Chat with a model in the terminal."),
    "serve": LazyCommand("spectr.cli.serve:serve", "Serve a model over HTTP, with an OpenAI-compatible API."),
    "play": LazyCommand("spectr.cli.serve:play", "Watch the token trees in the browser."),
    "replay": LazyCommand("spectr.cli.serve:replay", "Generate the text of a receipt again."),
    "batch": LazyCommand("spectr.cli.batch:batch", "Answer the requests of a file."),
    "route": LazyCommand("spectr.cli.route:route", "Put one address in front of several servers."),
    "deploy": LazyCommand("spectr.cli.deploy:deploy", "Serve a model with replicas on Ray."),
    "models": LazyCommand("spectr.cli.models:models", "List the models that can be loaded by name."),
    "pull": LazyCommand("spectr.cli.models:pull_model", "Download a catalog model."),
    "doctor": LazyCommand("spectr.cli.models:doctor", "Check the installation, the machine and a model."),
    "train": LazyCommand("spectr.cli.train:train", "Train a drafter on a target's own samples."),
    "tune": LazyCommand("spectr.cli.tune:tune", "Measure which plan decodes fastest on this machine."),
    "tree": LazyCommand("spectr.cli.tree:app", "Show token trees."),
    "rules": LazyCommand("spectr.cli.rules:app", "List, explain and compare the rules that accept drafts."),
    "cite": LazyCommand("spectr.cli.cite:cite", "Print the papers behind rules as BibTeX."),
    "bench": LazyCommand("spectr.cli.bench:app", "Measure on this machine."),
    "audit": LazyCommand("spectr.cli.audit:audit", "Check that the output has the target's distribution."),
    "theory": LazyCommand("spectr.cli.theory:app", "Predict what speculation should give, and measure it."),
}


class _Root(LazyGroup):
    """The command group `spectr`."""

    table = COMMANDS


app = typer.Typer(
    cls=_Root,
    name="spectr",
    help="Lossless multi-draft speculative decoding: the target model verifies several drafts in one call, and the "
    "text has exactly the target's distribution.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_UsageError: Any = typer.BadParameter.__base__  # typer may bundle its own click and exports only some of its errors
_ClickError: Any = _UsageError.__base__


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


def _refuse(sentence: str) -> int:
    print(f"spectr: {' '.join(sentence.split())}", file=sys.stderr)
    return 2


def _run(arguments: Sequence[str] | None) -> int:
    """Run a command and return its exit code."""
    try:
        code = app(arguments, prog_name="spectr", standalone_mode=False)
    except (SpectrError, _ClickError) as error:
        return _refuse(usage_message(error) if isinstance(error, _ClickError) else str(error))
    return code if isinstance(code, int) else 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `spectr` with the given arguments, by default the process's. Errors print one line and exit with code 2."""
    if hasattr(sys.stdout, "reconfigure"):  # characters that stdout cannot encode are escaped
        sys.stdout.reconfigure(errors="backslashreplace")
    raise SystemExit(_run(arguments))
