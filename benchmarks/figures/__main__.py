"""`python -m benchmarks.figures`: draws the theory and simulations of it."""

from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from benchmarks.command import run_command
from benchmarks.figures.atlas import SHEETS, make_atlas
from benchmarks.figures.folder import check_out, write_atlas
from spectr.cli.output import JsonFlag, console, print_json, progress_bar

__all__ = ["figures"]


def figures(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the figures, the page and the numbers.")],
    as_json: JsonFlag = False,
) -> None:
    """Draw the theory together with simulations: PNG and SVG files, a page of all figures, and the numbers as JSON."""
    check_out(out)
    with progress_bar("figures", 2 * len(SHEETS)) as advance:
        atlas = make_atlas(advance)
        files = write_atlas(atlas, out, advance)
    if as_json:
        print_json({"agreement": atlas.agreement, "files": [file.name for file in files]})
        return
    heads = ("sheet", "values compared", "largest deviation, in standard errors", "figure")
    table = Table(*heads, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for sheet in atlas.sheets:
        off = sheet.deviations()
        table.add_row(sheet.name, str(len(off)), f"{max(map(abs, off), default=0.0):.2f}", f"{sheet.name}.png")
    console().print(table)
    typer.echo(f"{out / 'index.html'}")


if __name__ == "__main__":
    run_command("benchmarks.figures", figures)
