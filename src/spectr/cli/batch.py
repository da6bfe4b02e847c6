"""`spectr batch`: answers a file of requests in OpenAI's batch format."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spectr.cli.flags import DeviceFlag, DrafterFlag, DtypeFlag, ModelFlag, NodesFlag, PlanFlag, RuleFlag, given
from spectr.cli.output import JsonFlag, check_folder, print_json, progress_bar, talk
from spectr.cli.serve import needs_server
from spectr.errors import ArgumentError

if TYPE_CHECKING:
    from spectr.fleet.batch import Tally

__all__ = ["batch"]

CLUSTER = "Workers"


def batch(
    requests: Annotated[Path, typer.Argument(metavar="REQUESTS", help="Requests in OpenAI's batch format.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="File for the results.")],
    model: ModelFlag = "smollm2-135m",
    device: DeviceFlag = "auto",
    dtype: DtypeFlag = "auto",
    drafter: DrafterFlag = "auto",
    rule: RuleFlag = "race",
    nodes: NodesFlag = None,
    plan: PlanFlag = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed for requests that have none.")] = 0,
    chunk: Annotated[int, typer.Option(min=1, metavar="N", help="Requests between two writes to disk.")] = 32,
    max_running: Annotated[int, typer.Option(min=1, metavar="N", help="Texts that a worker generates at once.")] = 64,
    ray: Annotated[bool, typer.Option("--ray", help="Answer with workers on Ray.", rich_help_panel=CLUSTER)] = False,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Address of a running Ray cluster, or auto. [default: a new local cluster]",
            rich_help_panel=CLUSTER,
        ),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, metavar="N", help="Workers on Ray.", rich_help_panel=CLUSTER)] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Answer the requests of a file. If the command is interrupted, run it again and it continues where it stopped.

    A request without a seed gets one from its custom_id, so that its text is the same on every run."""
    needs_server("spectr batch")
    from spectr.fleet.answerer import BatchModel
    from spectr.fleet.batch import BatchFiles, run_batch

    check_folder(out)
    if workers > 1 and not ray and address is None:
        raise ArgumentError(f"one process has one worker, got --workers {workers}; add --ray")
    options = given(nodes=nodes, plan=plan)
    chosen = BatchModel(model, drafter, rule, seed, max_running, {"device": device, "dtype": dtype, **options})
    files = BatchFiles(requests, out, chunk, workers, ray or address is not None, address)
    start = time.monotonic()
    try:
        tally = run_batch(files, chosen, talk, _bar)
    except KeyboardInterrupt:
        talk("interrupted; run the same command again to continue")
        raise
    _report(tally, out, time.monotonic() - start, as_json=as_json)


@contextmanager
def _bar(lines: int, done: int) -> Iterator[Callable[..., None]]:
    with progress_bar("batch", lines) as advance:
        advance(done)
        yield advance


def _report(tally: "Tally", out: Path, seconds: float, *, as_json: bool) -> None:
    processed = tally.answered + tally.refused + tally.bad
    if as_json:
        names = ("lines", "resumed", "answered", "refused", "bad", "tokens")
        print_json({**{name: getattr(tally, name) for name in names}, "seconds": seconds, "out": str(out)})
    talk(
        f"{processed} of {tally.lines} lines in {seconds:.1f} s: {tally.answered} answered with {tally.tokens} tokens "
        f"({tally.tokens / max(seconds, 1e-9):.1f}/s), {tally.refused} refused, {tally.bad} invalid; wrote {out}"
    )
