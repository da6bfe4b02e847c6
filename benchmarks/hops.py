"""`python -m benchmarks.hops`: the overhead of a router, and of Ray with a router, in front of one replica.

The same requests are sent in turns to a server directly and to the same server behind `spectr route`. Then they are
sent in turns to a server and to a replica of `spectr deploy` while both run. Each way is thus compared with a bare
server under the same conditions.
"""

import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.command import command_line, run_command
from benchmarks.show import show
from spectr.bench.machine import hardware, versions
from spectr.cli.flags import ModelFlag
from spectr.cli.output import check_folder, talk
from spectr.errors import ArgumentError

__all__ = ["hops"]

_MODULE = "benchmarks.hops"
Found = dict[str, Any]


@contextmanager
def _started(*arguments: str) -> Iterator[str]:
    """Run a command of `spectr` for the duration of the block, and yield its address."""
    with tempfile.TemporaryFile("w+") as said:
        running = subprocess.Popen([sys.executable, "-m", "spectr", *arguments], stderr=said)
        try:
            yield _address(running, said)
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(60)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def _address(running: "subprocess.Popen[bytes]", said: Any) -> str:
    deadline = time.monotonic() + 180
    while time.monotonic() < deadline and running.poll() is None:
        said.seek(0)
        if found := re.search(r"(?:serving|routing) .*?(http://[\w.]+:\d+)/v1", said.read()):
            return found[1]
        time.sleep(0.2)
    said.seek(0)
    raise ArgumentError(f"a server must start within 180 seconds, but it did not: {said.read()[-500:]}")


def _bodies(count: int, tokens: int) -> list[Found]:
    return [
        {"prompt": f"Chapter {number}. The tide came in", "max_tokens": tokens, "min_tokens": tokens, "seed": number,
         "temperature": 1.0, "spectr": {"receipt": False}}
        for number in range(count)
    ]  # fmt: skip


def _asked(url: str, clients: int, bodies: Sequence[Found]) -> Found:
    """Send requests from `clients` clients; return median times to the first and last token, and the throughput."""
    command = [sys.executable, "-m", "benchmarks.serving.client", url, str(clients)]
    ran = subprocess.run(command, input=json.dumps(bodies), capture_output=True, text=True, check=True)
    found = json.loads(ran.stdout)
    if wrong := [one["error"] for one in found if "error" in one]:
        raise ArgumentError(f"every request must be answered, but {len(wrong)} were not: {wrong[0]}")
    wall = max(one["last"] for one in found) - min(one["sent"] for one in found)
    return {
        "first": statistics.median(one["first"] - one["sent"] for one in found),
        "whole": statistics.median(one["last"] - one["sent"] for one in found),
        "tokens_per_second": sum(one["tokens"] for one in found) / wall,
    }


def _compared(urls: dict[str, str], rounds: int, requests: int, tokens: int) -> Found:
    """Measure all ways in turns, and return the medians of each; the first round is the warm-up."""
    seen: dict[str, list[tuple[Found, Found]]] = {name: [] for name in urls}
    for turn in range(rounds + 1):
        for name in list(urls)[turn % len(urls) :] + list(urls)[: turn % len(urls)]:
            alone = _asked(urls[name], 1, _bodies(requests, tokens))
            together = _asked(urls[name], 4, _bodies(2 * requests, tokens))
            seen[name].append((alone, together))
            talk(f"round {turn}, {name}: first token {alone['first'] * 1e3:.1f} ms, "
                 f"{together['tokens_per_second']:.1f} tokens/s at 4 clients")  # fmt: skip

    def median(name: str, part: int, what: str) -> float:
        return float(statistics.median(each[part][what] for each in seen[name][1:]))

    return {
        name: {
            "first_token_ms": 1e3 * median(name, 0, "first"),
            "whole_ms": 1e3 * median(name, 0, "whole"),
            "tokens_per_second_1": median(name, 0, "tokens_per_second"),
            "tokens_per_second_4": median(name, 1, "tokens_per_second"),
        }
        for name in urls
    }


def _added(found: Found, name: str) -> Found:
    """Return the overhead of a way relative to a bare server."""
    bare, own = found["bare"], found[name]
    return {
        "first_token_ms": own["first_token_ms"] - bare["first_token_ms"],
        "whole_ms": own["whole_ms"] - bare["whole_ms"],
        "tokens_per_second_ratio_1": own["tokens_per_second_1"] / bare["tokens_per_second_1"],
        "tokens_per_second_ratio_4": own["tokens_per_second_4"] / bare["tokens_per_second_4"],
    }


def _plan(folder: Path, model: str, dtype: str) -> Path:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    threads = os.environ.get("OMP_NUM_THREADS", "1")
    path = folder / "app.yaml"
    path.write_text(
        f"model: {model}\ndtype: {dtype}\nreceipts: false\ncpus: 1\nport: {port}\n"
        f'environment: {{OMP_NUM_THREADS: "{threads}"}}\n'
    )
    return path


def _measured(model: str, dtype: str, rounds: int, sizes: tuple[int, int]) -> Found:
    serve = ("serve", "--model", model, "--dtype", dtype, "--port", "0", "--no-receipts")
    with ExitStack() as stack:
        bare = stack.enter_context(_started(*serve))
        router = stack.enter_context(_started("route", "--replica", bare, "--port", "0"))
        routed = _compared({"bare": bare, "router": router}, rounds, *sizes)
    with ExitStack() as stack:
        bare = stack.enter_context(_started(*serve))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        deployed = stack.enter_context(_started("deploy", str(_plan(folder, model, dtype))))
        on_ray = _compared({"bare": bare, "ray": deployed}, rounds, *sizes)
    return {
        "router": {**routed, "added": _added(routed, "router")},
        "ray": {**on_ray, "added": _added(on_ray, "ray")},
    }


def hops(
    model: ModelFlag = "smollm2-135m",
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="Dtype, as in spectr.load.")] = "auto",
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds of which the median is taken.")] = 5,
    requests: Annotated[
        int, typer.Option(min=1, metavar="N", help="Requests of one client per round; of four, twice as many.")
    ] = 6,
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Tokens per text.")] = 32,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The result file.")] = Path("spectr-hops.json"),
) -> None:
    """Measure the overhead of a router, and of Ray with a router, over a bare server with the same model."""
    check_folder(out)
    found = {
        "about": {"command": command_line(_MODULE), "model": model, "hardware": hardware(torch.device("cpu")),
                  "versions": versions()},
        "ways": _measured(model, dtype, rounds, (requests, tokens)),
    }  # fmt: skip
    out.write_text(json.dumps(found, indent=2) + "\n")
    rows = [
        [name, f"{way['added']['first_token_ms']:+.1f} ms", f"{way['added']['whole_ms']:+.1f} ms",
         f"{way['added']['tokens_per_second_ratio_1']:.3f}", f"{way['added']['tokens_per_second_ratio_4']:.3f}"]
        for name, way in found["ways"].items()
    ]  # fmt: skip
    heads = ["way", "first token", "whole text", "tokens/s, 1 client", "tokens/s, 4 clients"]
    show(f"{model}, compared with a bare server", [("Overhead of each way", (heads, rows))])
    talk(f"wrote {out}")


if __name__ == "__main__":
    run_command(_MODULE, hops)
