"""`spectr route`."""

from pathlib import Path
from typing import Annotated

import typer

from spectr.cli.flags import ADDRESS, LIMITS, DrainTimeoutFlag, InsecureFlag, PortFlag, RequestTimeoutFlag
from spectr.cli.output import talk
from spectr.cli.serve import log_to_stderr, needs_server, read_keys

__all__ = ["route"]


def route(
    replica: Annotated[list[str], typer.Option(metavar="URL", help="A server of `spectr serve`; give each of them.")],
    host: Annotated[
        str, typer.Option(metavar="HOST", help="Address to listen on.", rich_help_panel=ADDRESS)
    ] = "127.0.0.1",
    port: PortFlag = 8080,
    api_key_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="API keys: the file that the servers have.", rich_help_panel=ADDRESS),
    ] = None,
    insecure: InsecureFlag = False,
    event_ids: Annotated[
        bool, typer.Option(help="Send ids by which clients can reconnect, unless they say otherwise.")
    ] = True,
    request_timeout: RequestTimeoutFlag = 600.0,
    patience: Annotated[
        float,
        typer.Option(min=0, metavar="SECONDS", help="Time to wait for a server to be ready.", rich_help_panel=LIMITS),
    ] = 30.0,
    drain_timeout: DrainTimeoutFlag = 30.0,
    verbose: Annotated[bool, typer.Option("--verbose", help="Log a line for every request.")] = False,
) -> None:
    """Put one address in front of several servers of the same model. Requests with a common beginning go to the same
    server; when one is lost, another goes on with its streams."""
    needs_server("spectr route")
    from spectr.fleet.over_http import HttpReplicas
    from spectr.fleet.router import Router, build_router
    from spectr.serve import Limits, ServerSettings
    from spectr.serve.run import bind, check_address, server_of, url_of

    limits = Limits(request_time=request_timeout, drain_time=drain_timeout)
    settings = ServerSettings(
        host, port, keys=read_keys(api_key_file), insecure=insecure, event_ids=event_ids, limits=limits
    )
    log_to_stderr(verbose)
    check_address(settings)
    replicas = HttpReplicas(replica, request_timeout, patience)
    listener = bind(settings)
    router = Router(replicas, settings)

    def started() -> None:
        talk(f"routing {url_of(listener)}/v1 to {len(replica)} servers; Ctrl-C ends it")

    try:
        server_of(build_router(router), router, talk, started).run([listener])
    finally:
        listener.close()
