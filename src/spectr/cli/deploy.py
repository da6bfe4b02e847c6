"""`spectr deploy`."""

from pathlib import Path
from typing import Annotated

import typer

from spectr.cli.output import talk
from spectr.cli.serve import needs_server, read_keys

__all__ = ["deploy"]


def deploy(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A YAML file: the model, how many replicas, the address.")
    ],
    address: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="A running Ray cluster, or auto. [default: one here, until Ctrl-C]"),
    ] = None,
) -> None:
    """Serve a model with replicas on Ray, behind one address. Given again with a changed plan, it replaces replicas
    while the others answer; a cluster of its own takes SIGHUP for that."""
    needs_server("spectr deploy")
    from spectr.fleet.deploy import run_fleet

    run_fleet(plan, address, read_keys, talk)
