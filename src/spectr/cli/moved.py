"""Commands that were removed from the package; each is refused with the command that replaces it."""

import shlex

import typer

from spectr.errors import ArgumentError

__all__ = ["add_moved"]

_ANY_ARGUMENTS = {"allow_extra_args": True, "ignore_unknown_options": True}


def add_moved(app: typer.Typer, old: str, module: str) -> None:
    """Add the last word of `old` to `app` as a hidden command that accepts any flags and names `python -m module`."""

    @app.command(old.rsplit(maxsplit=1)[-1], hidden=True, add_help_option=False, context_settings=_ANY_ARGUMENTS)
    def refuse(context: typer.Context) -> None:
        new = shlex.join(["python", "-m", module, *context.args])
        raise ArgumentError(
            f"`spectr {old}` is no longer part of the package; in a checkout of the repository run: {new}"
        )
