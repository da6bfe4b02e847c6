"""Printing what a benchmark found."""

from collections.abc import Iterable

from rich import box
from rich.table import Table

from spectr.bench.tables import Cells
from spectr.cli.output import console

__all__ = ["show"]


def show(title: str, tables: Iterable[tuple[str, Cells]]) -> None:
    """A line about the whole, then each table under its own title."""
    where = console()
    where.print(title, markup=False)
    for name, (heads, rows) in tables:
        table = Table(*heads, title=name, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        for row in rows:
            table.add_row(*row)
        for column in table.columns[:1]:
            column.no_wrap = True
        where.print()
        where.print(table if heads else name, markup=False)
