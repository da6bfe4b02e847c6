"""Ranks without torchrun, for tests of what happens when one of them fails: only the ranks end the others."""

import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from tests.forked import forkserver, say_into

import spectr
from spectr.models.parallel.target import ShardedTarget

__all__ = ["Ranks", "altered_tokens", "altered_verdict", "generate", "perturbed_logits", "wait"]

Job = Callable[[Any, Path], None]
Plant = Callable[[], None]


def generate(lm: Any, where: Path) -> None:
    """Generate a long text; say when it has begun, and what became of it."""
    handle = lm.submit([3, 4, 5], 400, seed=1)
    for _ in handle:
        (where / "begun").touch()
    output = handle.result()
    group = lm.opened.target.group
    (where / "ended").write_text(f"{output.tokens} {group.calls} {group.rounded}")


def wait(_: Any, where: Path) -> None:
    """Do nothing until told otherwise."""
    (where / "begun").touch()
    time.sleep(120)


def _at(call: int, change: Callable[..., tuple[Any, ...]], method: str) -> None:
    """Change what one call of a method of this rank's target is given."""
    original, calls = getattr(ShardedTarget, method), iter(range(1 << 30))

    def changed(self: Any, *given: Any, **more: Any) -> Any:
        return original(self, *(change(*given) if next(calls) == call else given), **more)

    setattr(ShardedTarget, method, changed)


def altered_tokens() -> None:
    """One token of one tree of this rank is another."""

    def change(session: Any, tokens: torch.Tensor, *rest: Any) -> tuple[Any, ...]:
        other = tokens.clone()
        other[0, -1] = (other[0, -1] + 1) % 24
        return session, other, *rest

    _at(20, change, "score")


def altered_verdict() -> None:
    """One accepted node of this rank is not kept."""
    _at(20, lambda session, nodes: (session, torch.full_like(nodes, -1)), "keep")


def perturbed_logits() -> None:
    """The last bit of a logit of this rank differs in one call, as it may on a machine of another kind."""
    compare, calls = spectr.models.parallel.group.RankGroup.compare, iter(range(1 << 30))

    def changed(self: Any, *call: Any, logits: torch.Tensor) -> None:
        bits = logits.clone()
        bits.view(torch.int64).view(-1)[0] ^= next(calls) == 20
        compare(self, *call, logits=bits)

    spectr.models.parallel.group.RankGroup.compare = changed  # type: ignore[method-assign]


def _rank(rank: int, size: int, port: int, folder: str, where: Path, job: Job, plant: Plant | None) -> None:
    """The life of one rank; what it says goes into a file."""
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
    lm.opened.target.group.stop()  # a forked process does not call what is registered for its exit


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Ranks:
    """Processes that share a small model; rank 0 has a job."""

    def __init__(
        self, size: int, folder: Path, where: Path, job: Job = generate, plants: dict[int, Plant] | None = None
    ) -> None:
        context = forkserver()
        self.where, port = where, _free_port()
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
        """Wait until rank 0 is at its job."""
        end = time.monotonic() + seconds
        while not (self.where / "begun").exists() and time.monotonic() < end:
            time.sleep(0.05)
        return (self.where / "begun").exists()

    def codes(self, seconds: float) -> list[int | None]:
        """Exit codes of all, None of those that still run after so many seconds."""
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
        return [process.exitcode for process in self.processes]

    def said(self, rank: int) -> str:
        """What a rank said."""
        path = self.where / f"said-{rank}"
        return path.read_text() if path.exists() else ""
