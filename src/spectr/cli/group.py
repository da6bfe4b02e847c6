"""Command groups: a command's module is imported when it is used, lists of commands show whole sentences, and an
interrupt or a closed pipe ends a command without a traceback."""

import difflib
import errno
import os
import shlex
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup

from spectr.errors import ArgumentError

__all__ = ["INTERRUPTED", "PIPE_CLOSED", "Command", "Group", "LazyCommand", "LazyGroup", "command_line"]

INTERRUPTED, PIPE_CLOSED = 130, 141  # exit codes that shells report for SIGINT and SIGPIPE
_WHOLE = 10_000  # characters; longer than any sentence


_UsageError: Any = typer.BadParameter.__base__  # typer may bundle its own click and exports only some of its errors


class Command(TyperCommand):
    """A command whose help lists its flags under the headings that they name (`rich_help_panel`), in plain text."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the flags; every error says which command it is about."""
        try:
            return super().parse_args(ctx, args)
        except _UsageError as error:
            error.ctx = error.ctx or ctx
            raise

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, then flags heading by heading, in the order in which headings first appear."""
        sections: dict[str, list[tuple[str, str]]] = {"Arguments": [], "Options": []}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is not None:
                usual = "Arguments" if parameter.param_type_name == "argument" else "Options"
                sections.setdefault(getattr(parameter, "rich_help_panel", None) or usual, []).append(record)
        sections["Options"] = sections.pop("Options")  # flags without a heading come last: mostly --help
        for heading, records in sections.items():
            if records:
                with formatter.section(heading):
                    formatter.write_dl(records)


class Group(TyperGroup):
    """A group that lists each command with the whole first sentence of its help."""

    def sentence(self, context: Any, name: str) -> str | None:
        """Return the sentence that the list shows for a command, None for a hidden one."""
        command: Any = self.get_command(context, name)
        return None if command.hidden else str(command.get_short_help_str(_WHOLE))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the list of commands. click would cut sentences at the width of the terminal; these are wrapped."""
        rows = [(name, text) for name in self.list_commands(ctx) if (text := self.sentence(ctx, name)) is not None]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Find a command; an unknown one is refused with the nearest name."""
        name = args[0]
        if not (ctx.resilient_parsing or name.startswith("-") or self.get_command(ctx, name)):
            close = difflib.get_close_matches(name, self.list_commands(ctx), n=1)
            ctx.fail(f"there is no command {name!r}" + (f"; did you mean {close[0]}?" if close else ""))
        return super().resolve_command(ctx, args)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Print the help of a group that is called without a command."""
        if not args and self.no_args_is_help and not ctx.resilient_parsing:
            typer.echo(ctx.get_help(), err=True)
            ctx.exit(2)
        return super().parse_args(ctx, args)


@dataclass(frozen=True, slots=True)
class LazyCommand:
    """The module of a command or group, and the sentence that lists show for it."""

    target: str  # "module:attribute": a function, or a typer.Typer
    sentence: str

    def load(self, name: str) -> Any:
        """Import the function or group and return it as a click command."""
        module, _, attribute = self.target.partition(":")
        loaded = getattr(import_module(module), attribute)
        holder = typer.Typer(cls=Group, rich_markup_mode=None, add_completion=False)
        holder.callback()(_nothing)  # without a callback a single command would not be a group
        if isinstance(loaded, typer.Typer):
            holder.add_typer(loaded, name=name, cls=Group)
        else:
            holder.command(name, cls=Command)(loaded)
        group: Any = typer.main.get_command(holder)
        return group.commands[name]


def _nothing() -> None:
    pass


_ARGUMENTS = "spectr.arguments"


def command_line(context: typer.Context) -> str:
    """Return the command line as it was typed, for a message that says how to continue."""
    return shlex.join(["spectr", *context.meta[_ARGUMENTS]])


class LazyGroup(Group):
    """The root of the command line. A subclass fills `table`."""

    table: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        names: dict[str, Any] = dict.fromkeys(self.table)
        self.commands = names

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        """Remember the arguments for `command_line`."""
        typed = list(args)
        context = super().make_context(info_name, args, parent, **extra)
        context.meta[_ARGUMENTS] = typed
        return context

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Import a command when it is first needed."""
        if cmd_name in self.table and self.commands[cmd_name] is None:
            self.commands[cmd_name] = self.table[cmd_name].load(cmd_name)
        return self.commands.get(cmd_name)

    def sentence(self, context: Any, name: str) -> str:
        """Return the sentence from the table, so that the list needs no import."""
        return self.table[name].sentence

    def invoke(self, ctx: Any) -> Any:
        """Run a command; Ctrl-C and a closed pipe end it without a traceback."""
        try:
            result = super().invoke(ctx)
            if sys.stdout is not None:
                sys.stdout.flush()
        except KeyboardInterrupt:
            print("\nspectr: interrupted", file=sys.stderr)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            _discard_stdout()
            raise typer.Exit(PIPE_CLOSED) from None
        except OSError as error:
            if error.filename is not None or error.errno not in (errno.ENOSPC, errno.EIO):
                raise
            _discard_stdout()
            raise ArgumentError(f"cannot write to stdout: {error.strerror}") from None
        return result


def _discard_stdout() -> None:
    """Redirect buffered output to /dev/null, so that the interpreter does not fail to flush it at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
