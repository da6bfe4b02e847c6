"""Writes the help of every command to the page docs/cli.md; a test checks that the page is up to date.

The help texts are read from the command line itself; no command is named here.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from spectr.cli import app

PAGE = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
WIDTH = 100
HEAD = """# The command line

Results go to stdout, everything else to stderr, and `--json` prints JSON and nothing else.

| exit code | meaning |
|---|---|
| 0 | success |
| 1 | the command ran and found a problem: an audit that fails, a doctor with advice |
| 2 | refused: one line on stderr that begins with `spectr:` says why |
| 130 | interrupted by Ctrl-C; what was done so far is kept, and stderr says what |
| 141 | the reader of stdout has closed it, as in a pipe into `head` |

This page is the output of `python tools/cli_help.py`.
"""


def helps(command: Any, name: str, parent: typer.Context | None = None) -> Iterator[tuple[str, str]]:
    """Yield the path and the help text of a command and of all its subcommands."""
    width = {"terminal_width": WIDTH, "max_content_width": WIDTH}
    context = command.make_context(name, [], parent=parent, resilient_parsing=True, **width)
    yield context.command_path, command.get_help(context)
    for below in getattr(command, "list_commands", lambda _: ())(context):
        found = command.get_command(context, below)
        if not found.hidden:
            yield from helps(found, below, context)


def render() -> str:
    """Return the text of the page."""
    parts = [
        f"## {path}\n\n```text\n{text.rstrip()}\n```\n" for path, text in helps(typer.main.get_command(app), "spectr")
    ]
    return "\n".join([HEAD, *parts])


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the help of every command to docs/cli.md.")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page (default: docs/cli.md)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    options = parser.parse_args()
    if not options.check:
        options.out.write_text(render(), encoding="utf-8")
    elif not options.out.is_file() or options.out.read_text(encoding="utf-8") != render():
        sys.exit(f"{options.out} is not up to date: run python tools/cli_help.py")


if __name__ == "__main__":
    main()
