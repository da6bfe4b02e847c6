"""`spectr deploy`: serves a model with replicas on Ray."""

from pathlib import Path
from typing import Annotated

import typer

from spectr.cli.output import talk
from spectr.cli.serve import needs_server, read_keys

__all__ = ["deploy"]


def deploy(
    plan: Annotated[
        Path, typer.Argument(metavar="PLAN", help="A YAML file with the model, the replicas and the address.")
    ],
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Address of a running Ray cluster, or auto. [default: a local one, until Ctrl-C]"
        ),
    ] = None,
) -> None:
    """Serve a model with replicas on Ray, behind one address. Run again with a changed plan, it replaces the replicas
    one by one while the others answer; send SIGHUP to a local cluster to reload the plan."""
    needs_server("spectr deploy")
    from spectr.fleet.deploy import run_fleet

    run_fleet(plan, address, read_keys, talk)
