"""Ranks without torchrun, to test failures of a rank: only the ranks themselves end each other."""

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from tests.forked import forkserver, free_port, say_into

import spectr
from spectr.models.parallel.target import ShardedTarget

__all__ = ["Ranks", "altered_tokens", "altered_verdict", "generate", "perturbed_logits", "wait"]

Job = Callable[[Any, Path], None]
Plant = Callable[[], None]


def generate(lm: Any, where: Path) -> None:
    """Generate a long text; mark in files that it has begun, and its result."""
    handle = lm.submit([3, 4, 5], 400, seed=1)
    for _ in handle:
        (where / "begun").touch()
    output = handle.result()
    group = lm.opened.target.group
    (where / "ended").write_text(f"{output.tokens} {group.calls} {group.rounded}")


def wait(_: Any, where: Path) -> None:
    """Do nothing, so that the test can kill a waiting rank."""
    (where / "begun").touch()
    time.sleep(120)


def _at(call: int, change: Callable[..., tuple[Any, ...]], method: str) -> None:
    """Change the arguments of one call of a method of this rank's target."""
    original, calls = getattr(ShardedTarget, method), iter(range(1 << 30))

    def changed(self: Any, *given: Any, **more: Any) -> Any:
        return original(self, *(change(*given) if next(calls) == call else given), **more)

    setattr(ShardedTarget, method, changed)


def altered_tokens() -> None:
    """Change one token of one tree on this rank."""

    def change(session: Any, tokens: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
        other = tokens.clone()
        other[0, -1] = (other[0, -1] + 1) % 24
        return session, other, *rest

    _at(20, change, "score")


def altered_verdict() -> None:
    """Keep none of the accepted nodes of one step on this rank."""
    _at(20, lambda session, nodes: (session, torch.full_like(nodes, -1)), "keep")


def perturbed_logits() -> None:
    """Flip the last bit of one logit in one call on this rank, as could happen on a different machine."""
    compare, calls = spectr.models.parallel.group.RankGroup.compare, iter(range(1 << 30))

    def changed(self: Any, *call: Any, logits: torch.Tensor) -> None:
        bits = logits.clone()
        bits.view(torch.int64).view(-1)[0] ^= next(calls) == 20
        compare(self, *call, logits=bits)

    spectr.models.parallel.group.RankGroup.compare = changed  # type: ignore[method-assign]


def _rank(rank: int, size: int, port: int, folder: str, where: Path, job: Job, plant: Plant | None) -> None:
    """Run one rank; its output goes to a file."""
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip
    say_into(where / f"said-{rank}")
    torch.set_num_threads(1)
    if plant is not None:
        plant()
    lm = spectr.load(folder, "lookup", dtype="float64", tensor_parallel=size)
    job(lm, where)
    lm.opened.target.group.stop()  # a forked process does not run atexit handlers


class Ranks:
    """Processes that share a small model; rank 0 runs the job."""

    def __init__(
        self, size: int, folder: Path, where: Path, job: Job = generate, plants: dict[int, Plant] | None = None
    ) -> None:
        context = forkserver()
        self.where, port = where, free_port()
        self.processes = [
            context.Process(
                target=_rank, args=(rank, size, port, str(folder), where, job, (plants or {}).get(rank)), daemon=True
            )
            for rank in range(size)
        ]
        for process in self.processes:
            process.start()

    def __enter__(self) -> "Ranks":
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            with suppress(ValueError):
                process.kill()
                process.join()

    def has_begun(self, seconds: float = 60) -> bool:
        """Wait until rank 0 has begun its job, and return whether it has."""
        end = time.monotonic() + seconds
        while not (self.where / "begun").exists() and time.monotonic() < end:
            time.sleep(0.05)
        return (self.where / "begun").exists()

    def codes(self, seconds: float) -> list[int | None]:
        """Return the exit codes of all ranks, None for those that are still running after `seconds` seconds."""
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
        return [process.exitcode for process in self.processes]

    def said(self, rank: int) -> str:
        """Return the output of a rank."""
        path = self.where / f"said-{rank}"
        return path.read_text() if path.exists() else ""
