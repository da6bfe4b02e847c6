"""The processes of one model: messages of rank 0, comparisons between all, and how the death of one ends the others.

Messages and comparisons travel through a gloo group of their own, on the host, beside the group that the model's layers
use. While rank 0 has nothing to say it sends a beat every few seconds, which all ranks answer.
"""

import atexit
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from spectr.errors import ArgumentError, RankError, SpectrError
from spectr.models.parallel.digest import hash_bits, hash_rows
from spectr.models.parallel.message import Message

__all__ = ["RankGroup", "join", "rank_here"]

_FIRST = 8192  # bytes that go with the first broadcast of a message; a longer one takes a second
_NAME = 256  # bytes of a machine's name and a process
_BEAT = 5.0  # seconds between beats
_SILENCE = timedelta(seconds=60)  # without an answer, after which a rank counts as lost
_CALL = timedelta(minutes=10)  # for one collective operation of the model; covers ranks that load at different speeds
_GRACE = 3.0  # seconds in which requests of rank 0 end with an error before the process ends
_MIX = 0x2545F4914F6CDD1D


def rank_here() -> int:
    """The rank of this process, as torchrun sets it; 0 without torchrun."""
    return int(os.environ.get("RANK", "0"))


def _check_environment(size: int) -> None:
    """Refuse a number of processes other than the one that was started."""
    started = os.environ.get("WORLD_SIZE")
    if "RANK" not in os.environ or started is None:
        raise ArgumentError(
            f"tensor_parallel={size} needs {size} processes, and this one was not started by torchrun; start it with "
            f"torchrun --nproc-per-node {size} …"
        )
    if int(started) != size:
        raise ArgumentError(
            f"tensor_parallel must be the number of processes, which is {started}, got {size}; start torchrun with "
            f"--nproc-per-node {size}, or give tensor_parallel={started}"
        )


class RankGroup:
    """The ranks that share a model. On rank 0 several threads may use it; the others follow in one."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = dist.get_rank(), size, device
        self.calls = 0  # target calls that all ranks compared
        self.rows = 0  # rows of these calls: one hash each
        self.rounded = 0  # calls in which some rank had other logits in their last bits
        self.failure: RankError | None = None
        self.before_the_end: Callable[[], None] = lambda: None  # on rank 0, called when the process ends
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self.processes: list[tuple[str, int]] = []
        self._buffer = torch.zeros(_FIRST, dtype=torch.uint8)
        self._trail = torch.zeros(1, dtype=torch.int64, device=device)
        self._control: Any = dist.new_group(backend="gloo", timeout=_SILENCE)
        self.processes = self._introduce()

    def _introduce(self) -> list[tuple[str, int]]:
        """The machine and the process of every rank."""
        own = torch.zeros(_NAME, dtype=torch.uint8)
        name = f"{os.getpid()} {socket.gethostname()}".encode()[:_NAME]
        own[: len(name)] = torch.frombuffer(bytearray(name), dtype=torch.uint8)
        found = [torch.empty_like(own) for _ in range(self.size)]
        with self.speaking():
            dist.all_gather(found, own, group=self._control)
        words = [bytes(one.tolist()).rstrip(b"\0").decode().split(" ", 1) for one in found]
        return [(host, int(process)) for process, host in words]

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def neighbours(self) -> int:
        """How many ranks run on this machine, this one included."""
        return sum(host == self.processes[self.rank][0] for host, _ in self.processes)

    # Messages

    @contextmanager
    def calling(self, message: Message) -> Iterator[None]:
        """Announce a call to the other ranks, and run it here. What goes wrong amid a call ends all ranks, since the
        others cannot know how far it came; what is refused before it begins is refused on every rank alike."""
        with self._lock:
            self.check()
            with self.speaking():
                self._send(message.encoded())
                yield

    @contextmanager
    def speaking(self) -> Iterator[None]:
        """While the ranks talk to each other: an error of the network means that one of them is lost."""
        try:
            yield
        except SpectrError:
            raise
        except BaseException as error:
            raise self.fail(error) from error

    def check(self) -> None:
        """Refuse calls once a rank is lost, or after the end."""
        if self.failure is not None:
            raise self.failure
        if self._ended.is_set():
            raise RankError("this model's processes have been told to end; load it again in a new torchrun job")

    def _send(self, data: bytes) -> None:
        first = torch.frombuffer(bytearray(len(data).to_bytes(8, "little") + data), dtype=torch.uint8)
        self._buffer[: min(_FIRST, len(first))] = first[:_FIRST]
        dist.broadcast(self._buffer, 0, group=self._control)
        if len(first) > _FIRST:
            dist.broadcast(first[_FIRST:].clone(), 0, group=self._control)

    def receive(self) -> Message:
        """The next message of rank 0."""
        with self.speaking():
            dist.broadcast(self._buffer, 0, group=self._control)
            data = self._buffer.numpy().tobytes()
            length = int.from_bytes(data[:8], "little")
            if length + 8 > _FIRST:
                rest = torch.zeros(length + 8 - _FIRST, dtype=torch.uint8)
                dist.broadcast(rest, 0, group=self._control)
                data += rest.numpy().tobytes()
        return Message.decoded(data[8 : 8 + length])

    def least(self, number: int) -> int:
        """The least of the numbers that all ranks give."""
        with self.speaking():
            found = torch.tensor([number])
            dist.all_reduce(found, dist.ReduceOp.MIN, group=self._control)
        return int(found)

    def wait_for_all(self) -> None:
        """Until every rank has come this far: loading may take some of them minutes longer."""
        with self.speaking():
            dist.barrier(device_ids=[self.device.index or 0] if self.device.type == "cuda" else None)

    # Comparisons

    def note(self, *parts: Tensor) -> None:
        """Take what was committed into account in the next comparison: whole numbers (B, …)."""
        self._trail = self._trail * _MIX + hash_rows(*parts).sum()

    def compare(self, *call: Tensor, logits: Tensor) -> None:
        """Check that all ranks ran the same call, given as whole numbers and masks (B, …), and committed the same since
        the last; and count whether its logits (B, …) are equal to the last bit. Ranks that differ end here, before
        anybody looks at the logits: they would mix two texts, and agree on it."""
        own = torch.cat([self._trail, hash_rows(*call), hash_bits(logits)]).cpu()
        found = [torch.empty_like(own) for _ in range(self.size)]
        with self.speaking():
            dist.all_gather(found, own, group=self._control)
        rows = len(logits)
        self.calls, self.rows = self.calls + 1, self.rows + rows
        for rank, other in enumerate(found):
            if not torch.equal(other[: 1 + rows], found[0][: 1 + rows]):
                did = "ran another call" if torch.equal(other[:1], found[0][:1]) else "committed other tokens"
                raise self.fail(f"rank {rank} {did} than rank 0 at target call {self.calls}, which gave no text")
        self.rounded += any(not torch.equal(other, found[0]) for other in found)

    # The end

    def fail(self, cause: BaseException | str) -> RankError:
        """Take note that this model cannot go on, say why, and end the process soon. Returns the error to raise."""
        if self.failure is None:
            if isinstance(cause, str):
                said = cause
            else:
                lines = str(cause).strip().splitlines() or [type(cause).__name__]
                said = self._lost() or f"a target call failed on rank {self.rank}: {lines[0]}"
            self.failure = RankError(
                f"{said}. A model over {self.size} processes needs all of them; start it again with torchrun"
            )
            sys.stderr.write(f"spectr: rank {self.rank}: {self.failure}\n")
            sys.stderr.flush()
            if self.leads:
                _end_soon()
        return self.failure

    def _lost(self) -> str:
        """Which rank of this machine has ended, in words; nothing if none has. A process that was killed may take a
        moment to be seen as such."""
        here = self.processes[self.rank][0] if self.processes else ""
        for _ in range(10):
            for rank, (host, process) in enumerate(self.processes):
                if host == here and rank != self.rank and not _is_alive(process):
                    return f"rank {rank} (process {process}) has ended"
            time.sleep(0.1)
        return ""

    def beat(self) -> None:
        """Ask all ranks for a sign of life every few seconds; in a thread of rank 0."""
        while not self._ended.wait(_BEAT) and self.failure is None:
            if not self._lock.acquire(blocking=False):
                continue  # a call is under way, which notices by itself
            try:
                with suppress(RankError), self.calling(Message("beat")):
                    self.least(0)
            finally:
                self._lock.release()

    def stop(self) -> None:
        """Tell the other ranks to end."""
        self.before_the_end()
        with self._lock:
            if self.failure is None and not self._ended.is_set():
                with suppress(RankError), self.calling(Message("stop")):
                    pass
            self._ended.set()


def _is_alive(process: int) -> bool:
    """Whether a process of this machine runs; one that nobody has waited for yet does not."""
    status = Path(f"/proc/{process}/stat")
    if Path("/proc/self/stat").exists():
        with suppress(OSError):
            return status.read_text().rpartition(")")[2].split()[0] not in "ZX"
        return False
    with suppress(PermissionError):
        os.kill(process, 0)
    return True


def _end_soon() -> None:
    """End this process once whoever waits for an answer has got the error."""
    timer = threading.Timer(_GRACE, os._exit, (1,))
    timer.daemon = True
    timer.start()


_joined: list[RankGroup] = []


def join(size: int, device: torch.device) -> RankGroup:
    """The group of all processes that torchrun started, of which there must be `size`."""
    _check_environment(size)
    if _joined:
        raise ArgumentError("a torchrun job holds one model with tensor_parallel, and this one has one; start another")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_CALL, device_id=device if device.type == "cuda" else None)
    group = RankGroup(size, device)
    _joined.append(group)
    if group.leads:
        threading.Thread(target=group.beat, daemon=True).start()
        atexit.register(group.stop)
    return group
