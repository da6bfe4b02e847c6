"""The group of processes that share one model: messages from rank 0, comparisons between all ranks, and shutdown when
a rank is lost.

Messages and comparisons use a separate gloo group on the host, beside the group that the model's layers use. While rank
0 is idle it sends a heartbeat every few seconds, which all ranks answer.
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

_FIRST_BYTES = 8192  # size of a message's first broadcast; a longer message needs a second broadcast
_NAME_BYTES = 256  # room for a process id and a host name
_HEARTBEAT_INTERVAL = 5.0  # seconds
_CONTROL_TIMEOUT = timedelta(seconds=60)  # a rank that has not answered by then counts as lost
_CALL_TIMEOUT = timedelta(minutes=10)  # for one collective operation of the model: ranks may load at different speeds
_GRACE = 3.0  # seconds between a failure and the exit of rank 0, in which its requests receive the error
_MIX = 0x2545F4914F6CDD1D


def rank_here() -> int:
    """Return the rank of this process as torchrun set it, or 0 if torchrun did not start it."""
    return int(os.environ.get("RANK", "0"))


def _check_environment(size: int) -> None:
    """Raise unless torchrun started this process and `size` processes in all."""
    started = os.environ.get("WORLD_SIZE")
    if "RANK" not in os.environ or started is None:
        raise ArgumentError(
            f"tensor_parallel={size} needs {size} processes, but this one was not started by torchrun; start it with "
            f"torchrun --nproc-per-node {size} …"
        )
    if int(started) != size:
        raise ArgumentError(
            f"tensor_parallel must be the number of processes, which is {started}, got {size}; start torchrun with "
            f"--nproc-per-node {size}, or set tensor_parallel={started}"
        )


class RankGroup:
    """The ranks that share a model. On rank 0 several threads may use the group; every other rank uses it from one
    thread."""

    def __init__(self, size: int, device: torch.device) -> None:
        self.rank, self.size, self.device = dist.get_rank(), size, device
        self.calls = 0  # target calls that all ranks compared
        self.rows = 0  # rows in these calls; each row has one hash
        self.rounded = 0  # calls in which the logits of some rank differed in their last bits from those of rank 0
        self.failure: RankError | None = None
        self.on_stop: Callable[[], None] = lambda: None  # called on rank 0 before the other ranks are stopped
        self._lock = threading.RLock()
        self._stopped = threading.Event()
        self.processes: list[tuple[str, int]] = []
        self._buffer = torch.zeros(_FIRST_BYTES, dtype=torch.uint8)
        self._commit_hash = torch.zeros(1, dtype=torch.int64, device=device)
        self._control: Any = dist.new_group(backend="gloo", timeout=_CONTROL_TIMEOUT)
        self.processes = self._exchange_names()

    def _exchange_names(self) -> list[tuple[str, int]]:
        """Return the host name and process id of every rank."""
        own = torch.zeros(_NAME_BYTES, dtype=torch.uint8)
        name = f"{os.getpid()} {socket.gethostname()}".encode()[:_NAME_BYTES]
        own[: len(name)] = torch.frombuffer(bytearray(name), dtype=torch.uint8)
        gathered = [torch.empty_like(own) for _ in range(self.size)]
        with self.fail_on_error():
            dist.all_gather(gathered, own, group=self._control)
        names = [bytes(buffer.tolist()).rstrip(b"\0").decode().split(" ", 1) for buffer in gathered]
        return [(host, int(process)) for process, host in names]

    @property
    def leads(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    @property
    def ranks_on_host(self) -> int:
        """Number of ranks on this host, this one included."""
        return sum(host == self.processes[self.rank][0] for host, _ in self.processes)

    # Messages

    @contextmanager
    def announce(self, message: Message) -> Iterator[None]:
        """Announce a call to the other ranks; the block runs it on this rank.

        A failure during a call ends all ranks, because they cannot know how far the others got. A call that is refused
        with a `SpectrError` before it begins is refused on every rank, and the group stays usable."""
        with self._lock:
            self.check()
            with self.fail_on_error():
                self._send(message.encoded())
                yield

    @contextmanager
    def fail_on_error(self) -> Iterator[None]:
        """Mark the group as failed if the block raises anything but a `SpectrError`. Ranks communicate inside such
        blocks, where a network error means that a rank is lost."""
        try:
            yield
        except SpectrError:
            raise
        except BaseException as error:
            raise self.fail(error) from error

    def check(self) -> None:
        """Raise if a rank has been lost or the group has been stopped."""
        if self.failure is not None:
            raise self.failure
        if self._stopped.is_set():
            raise RankError("the processes of this model have been stopped; load it again in a new torchrun job")

    def _send(self, data: bytes) -> None:
        framed = torch.frombuffer(bytearray(len(data).to_bytes(8, "little") + data), dtype=torch.uint8)
        self._buffer[: min(_FIRST_BYTES, len(framed))] = framed[:_FIRST_BYTES]
        dist.broadcast(self._buffer, 0, group=self._control)
        if len(framed) > _FIRST_BYTES:
            dist.broadcast(framed[_FIRST_BYTES:].clone(), 0, group=self._control)

    def receive(self) -> Message:
        """Wait for the next message from rank 0 and return it."""
        with self.fail_on_error():
            dist.broadcast(self._buffer, 0, group=self._control)
            data = self._buffer.numpy().tobytes()
            length = int.from_bytes(data[:8], "little")
            if length + 8 > _FIRST_BYTES:
                rest = torch.zeros(length + 8 - _FIRST_BYTES, dtype=torch.uint8)
                dist.broadcast(rest, 0, group=self._control)
                data += rest.numpy().tobytes()
        return Message.decoded(data[8 : 8 + length])

    def minimum(self, number: int) -> int:
        """Return the minimum of the numbers that all ranks pass; every rank must call this."""
        with self.fail_on_error():
            reduced = torch.tensor([number])
            dist.all_reduce(reduced, dist.ReduceOp.MIN, group=self._control)
        return int(reduced)

    def wait_for_all(self) -> None:
        """Wait until every rank calls this. Loading may take some ranks minutes longer than others."""
        with self.fail_on_error():
            dist.barrier(device_ids=[self.device.index or 0] if self.device.type == "cuda" else None)

    # Comparisons

    def record_commit(self, *parts: Tensor) -> None:
        """Include a commit, given as integers (B, …), in the next comparison of the ranks."""
        self._commit_hash = self._commit_hash * _MIX + hash_rows(*parts).sum()

    def compare(self, *call: Tensor, logits: Tensor) -> None:
        """Check that all ranks ran the same call, given as integers and masks (B, …), and committed the same tokens
        since the last call. Count calls whose logits (B, …) are not equal in every bit.

        Ranks that differ stop here, before the logits are used. The sums over ranks would mix two texts and give every
        rank the same wrong logits, so that nothing later would detect the difference."""
        own = torch.cat([self._commit_hash, hash_rows(*call), hash_bits(logits)]).cpu()
        hashes = [torch.empty_like(own) for _ in range(self.size)]
        with self.fail_on_error():
            dist.all_gather(hashes, own, group=self._control)
        rows = len(logits)
        self.calls, self.rows = self.calls + 1, self.rows + rows
        for rank, other in enumerate(hashes):
            if not torch.equal(other[: 1 + rows], hashes[0][: 1 + rows]):
                is_same_commit = torch.equal(other[:1], hashes[0][:1])
                fault = "ran a different call" if is_same_commit else "committed different tokens"
                raise self.fail(
                    f"rank {rank} {fault} than rank 0 at target call {self.calls}, whose logits were not used"
                )
        self.rounded += any(not torch.equal(other, hashes[0]) for other in hashes)

    # Shutdown

    def fail(self, cause: BaseException | str) -> RankError:
        """Mark the group as failed, write the cause to stderr, and let rank 0 exit after a few seconds. Return the
        error, which the caller raises."""
        if self.failure is None:
            if isinstance(cause, str):
                reason = cause
            else:
                lines = str(cause).strip().splitlines() or [type(cause).__name__]
                reason = self._describe_dead_rank() or f"a target call failed on rank {self.rank}: {lines[0]}"
            self.failure = RankError(
                f"{reason}. A model spread over {self.size} processes needs all of them; start it again with torchrun"
            )
            sys.stderr.write(f"spectr: rank {self.rank}: {self.failure}\n")
            sys.stderr.flush()
            if self.leads:
                _exit_soon()
        return self.failure

    def _describe_dead_rank(self) -> str:
        """Return a sentence that names a rank on this host whose process has ended, or "" if all of them run. Look for
        up to a second, because a process that was killed may appear to run for a moment."""
        here = self.processes[self.rank][0] if self.processes else ""
        for _ in range(10):
            for rank, (host, process) in enumerate(self.processes):
                if host == here and rank != self.rank and not _is_alive(process):
                    return f"rank {rank} (process {process}) has ended"
            time.sleep(0.1)
        return ""

    def send_heartbeats(self) -> None:
        """Ask all ranks for an answer every few seconds, in a thread of rank 0, until the group stops or fails."""
        while not self._stopped.wait(_HEARTBEAT_INTERVAL) and self.failure is None:
            if not self._lock.acquire(blocking=False):
                continue  # a call is running, and it detects a lost rank by itself
            try:
                with suppress(RankError), self.announce(Message("heartbeat")):
                    self.minimum(0)
            finally:
                self._lock.release()

    def stop(self) -> None:
        """Tell the other ranks to stop."""
        self.on_stop()
        with self._lock:
            if self.failure is None and not self._stopped.is_set():
                with suppress(RankError), self.announce(Message("stop")):
                    pass
                self.leave()
            self._stopped.set()

    def leave(self) -> None:
        """Wait for the threads of the group for messages, and leave it. A thread that lets go of the tensor of the last
        message while the interpreter ends would abort the process."""
        control, self._control = self._control, None
        with suppress(RuntimeError, ValueError):  # the program has left the group itself
            dist.destroy_process_group(control)
        del control  # the last reference, whose end joins the threads


def _is_alive(process: int) -> bool:
    """Return whether a process on this host is running. A zombie is not."""
    status = Path(f"/proc/{process}/stat")
    if Path("/proc/self/stat").exists():
        with suppress(OSError):
            return status.read_text().rpartition(")")[2].split()[0] not in "ZX"
        return False
    with suppress(PermissionError):
        os.kill(process, 0)
    return True


def _exit_soon() -> None:
    """Exit with code 1 after the grace period, in which waiting requests receive the error."""
    timer = threading.Timer(_GRACE, os._exit, (1,))
    timer.daemon = True
    timer.start()


_joined: list[RankGroup] = []


def join(size: int, device: torch.device) -> RankGroup:
    """Join the group of all processes that torchrun started, of which there must be `size`."""
    _check_environment(size)
    if _joined:
        raise ArgumentError(
            "a torchrun job can hold one model with tensor_parallel, and this job already has one; start another job"
        )
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=_CALL_TIMEOUT, device_id=device if device.type == "cuda" else None)
    group = RankGroup(size, device)
    _joined.append(group)
    if group.leads:
        threading.Thread(target=group.send_heartbeats, daemon=True).start()
        atexit.register(group.stop)
    return group
