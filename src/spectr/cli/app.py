"""The command itself: its commands, its version, and how it ends when something was wrong.

Exit codes: 0 for success, 1 when a command ran and its answer is bad news (an audit that fails, a doctor with advice),
2 for what is refused, 130 after Ctrl-C, 141 when nobody reads stdout any more.
"""

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from spectr.cli.group import LazyCommand, LazyGroup
from spectr.errors import SpectrError
from spectr.version import __version__

__all__ = ["COMMANDS", "app", "main"]

COMMANDS = {
    "generate": LazyCommand("spectr.cli.generate:generate", "Generate text, and report what speculation did."),
    "chat": LazyCommand("spectr.cli.chat:chat", "Talk with a model in the terminal."),
    "serve": LazyCommand("spectr.cli.serve:serve", "Serve a model over HTTP, for OpenAI's clients."),
    "play": LazyCommand("spectr.cli.serve:play", "Show the token tree of every step in the browser."),
    "replay": LazyCommand("spectr.cli.serve:replay", "Generate the text of a receipt again."),
    "batch": LazyCommand("spectr.cli.batch:batch", "Answer the requests of a file."),
    "route": LazyCommand("spectr.cli.route:route", "Put one address in front of several servers."),
    "deploy": LazyCommand("spectr.cli.deploy:deploy", "Serve a model with replicas on Ray."),
    "models": LazyCommand("spectr.cli.models:models", "List the models that can be loaded by name."),
    "pull": LazyCommand(
        "spectr.cli.models:pull_model",
        "Fetch a catalog model, unless it is here already.",
    ),
    "doctor": LazyCommand("spectr.cli.models:doctor", "Check the installation, the machine and a model."),
    "train": LazyCommand("spectr.cli.train:train", "Train a drafter on a target's own samples."),
    "tune": LazyCommand("spectr.cli.tune:tune", "Find the fastest plan on this machine by measuring."),
    "tree": LazyCommand("spectr.cli.tree:app", "Draw token trees."),
    "rules": LazyCommand("spectr.cli.rules:app", "List, explain and compare the rules that accept drafts."),
    "cite": LazyCommand("spectr.cli.cite:cite", "Print the papers behind rules as BibTeX."),
    "bench": LazyCommand("spectr.cli.bench:app", "Measure on this machine."),
    "audit": LazyCommand("spectr.cli.audit:audit", "Check that the output has exactly the target's distribution."),
    "theory": LazyCommand("spectr.cli.theory:app", "Predict how much faster speculation should be, and measure it."),
}


class _Root(LazyGroup):
    """`spectr`."""

    table = COMMANDS


app = typer.Typer(
    cls=_Root,
    name="spectr",
    help="Lossless multi-draft speculative decoding: several drafts, one call of the target, and text with exactly the "
    "target's own distribution.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_UsageError: Any = typer.BadParameter.__base__  # typer may carry a click of its own; only some errors are exported
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


def _usage(error: Any) -> str:
    """A wrong flag or argument, and where the right ones are listed."""
    context = getattr(error, "ctx", None)
    hint = "" if context is None else f" See: {context.command_path} --help"
    return f"{error.format_message()}{hint}"


def _run(arguments: Sequence[str] | None) -> int:
    """Run a command; the exit code."""
    try:
        code = app(arguments, prog_name="spectr", standalone_mode=False)
    except (SpectrError, _ClickError) as error:
        return _refuse(_usage(error) if isinstance(error, _ClickError) else str(error))
    return code if isinstance(code, int) else 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `spectr` with the given arguments, or the process's. What spectr refuses is one line and exit code 2."""
    if hasattr(sys.stdout, "reconfigure"):  # a text or a path that stdout cannot encode must not end in a traceback
        sys.stdout.reconfigure(errors="backslashreplace")
    raise SystemExit(_run(arguments))
