"""`spectr tree`: shows the static tree with the most expected accepted tokens."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.tree import Tree

from spectr.cli.output import JsonFlag, console, print_json
from spectr.errors import ArgumentError

if TYPE_CHECKING:
    from spectr.trees.budget import Valued

__all__ = ["app"]

app = typer.Typer(help="Show token trees.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _tree() -> None:
    """Show token trees."""


def _chances(text: str) -> list[list[float]]:
    try:
        return [[float(word) for word in row.split(",")] for row in text.split("/")]
    except ValueError:
        raise ArgumentError(
            f"--chances must be numbers with commas, and / between depths, as in 0.6,0.2/0.5,0.1, got {text!r}"
        ) from None


def _measured(path: Path) -> list[list[float]]:
    """Read acceptance by depth from the JSON of `spectr generate`, and divide it among ranks as they were accepted."""
    try:
        stats: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["stats"]
        depths, ranks = ([float(number) for number in stats[name]] for name in ("acceptance_by_depth", "ranks"))
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"--stats must be the output of spectr generate --json, and {path} is not: {error}"
        ) from None
    if not depths or not sum(ranks) > 0:
        raise ArgumentError(f"{path} has no accepted drafts to learn from; generate more text, or with another drafter")
    shares = sorted((rank / sum(ranks) for rank in ranks), reverse=True)
    return [[depth * share for share in shares] for depth in depths]


def _drawn(found: "Valued") -> Tree:
    root = Tree("root  1.000")
    branches = {0: root}
    for node, parent in enumerate(found.shape.parents[1:], start=1):
        branches[node] = branches[parent].add(f"{node}  {found.values[node]:.3f}")
    return root


@app.command("show")
def show(
    nodes: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of nodes, the root included.")] = 16,
    chances: Annotated[
        str,
        typer.Option(metavar="P,P/P,P", help="Probability of each child, by rank (,) and depth (/)."),
    ] = "0.6,0.15,0.06,0.03",
    stats: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Measured probabilities: the output of `spectr generate --json`."),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Show the static tree that keeps most tokens on average, with the probability that each node is kept."""
    from spectr.trees.budget import best_shape

    found = best_shape(_chances(chances) if stats is None else _measured(stats), nodes)
    if as_json:
        print_json({"parents": found.shape.parents, "values": found.values, "tokens_per_call": found.expected})
        return
    console().print(_drawn(found))
    console().print(f"{found.expected:.2f} tokens per call expected, {len(found.values)} nodes")
