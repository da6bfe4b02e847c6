"""Prints the results of a benchmark."""

from collections.abc import Iterable

from rich import box
from rich.table import Table

from spectr.bench.tables import Cells
from spectr.cli.output import console

__all__ = ["show"]


def show(title: str, tables: Iterable[tuple[str, Cells]]) -> None:
    """Print a title, then each table under its own title; numbers are never cropped on a narrow terminal."""
    where = console()
    where.print(title, markup=False)
    for name, (heads, rows) in tables:
        where.print()
        if not heads:
            where.print(name, markup=False)
            continue
        table = Table(title=name, title_justify="left", box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
        columns = zip(*rows, strict=True) if rows else [()] * len(heads)
        for head, cells in zip(heads, columns, strict=True):
            words = max(map(len, head.split()), default=0)
            table.add_column(head, min_width=max([words, *map(len, cells)]))
        for row in rows:
            table.add_row(*row)
        where.print(table, markup=False, width=max(where.width, where.measure(table).minimum), crop=False)
