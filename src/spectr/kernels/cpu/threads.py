"""The threads that run compiled kernels together."""

import atexit
import ctypes
import os
import threading

import numpy as np

from spectr.kernels.cpu.library import Library, library
from spectr.kernels.cpu.pool import CLOSED, STATE, STATE_BYTES

__all__ = ["Threads", "threads"]

_JOIN_TIMEOUT = 5.0  # seconds that the end of the process waits for a thread


class Threads:
    """A pool of `count` threads, including the caller. The others are started by the first call, and sleep while
    idle."""

    def __init__(self, kernels: Library, count: int) -> None:
        self.count = count
        self._room = np.zeros(STATE_BYTES + 64, np.uint8)
        self._start = -self._room.ctypes.data % 64  # threads must not share a cache line
        self._state = self._room[self._start : self._start + STATE_BYTES].view(np.int64)
        self._state[STATE.places["threads"]], self._state[STATE.places["gate"]] = count, CLOSED
        pointer, whole = ctypes.c_void_p, ctypes.c_int64
        self._run = kernels.function("run", pointer, whole, pointer, pointer)
        self._work = kernels.function("work", pointer, whole, whole)
        self._wake = kernels.function("wake", pointer)
        self._decode = kernels.address("decode")
        self._workers: list[threading.Thread] = []
        self._lock = threading.Lock()

    def run(self, program: int, call: int) -> None:
        """Run the decoder with tables at these addresses."""
        with self._lock:
            if len(self._workers) < self.count - 1:
                self._start_workers()
            self._run(self._state.ctypes.data, self._decode, program, call)

    def _start_workers(self) -> None:
        """Start the other threads. They run compiled code only, without holding the interpreter lock."""
        calls = int(self._state[STATE.places["job"]])
        for number in range(1, self.count):
            arguments = (self._state.ctypes.data, calls, number)
            worker = threading.Thread(target=self._work, args=arguments, daemon=True, name=f"spectr-{number}")
            worker.start()
            self._workers.append(worker)

    def close(self) -> None:
        """Stop the other threads; the next call starts new ones."""
        with self._lock:
            if self._workers:
                self._state[STATE.places["stops"]] = 1
                self._wake(self._state.ctypes.data)
                for worker in self._workers:
                    worker.join(_JOIN_TIMEOUT)
                self._state[STATE.places["stops"]] = 0
                self._workers = []


_made: dict[int, Threads] = {}
_making = threading.Lock()


def threads(count: int) -> Threads:
    """Return the pool of `count` threads, which all callers share."""
    with _making:
        if count not in _made:
            library().load(set())
            _made[count] = Threads(library(), count)
        return _made[count]


@atexit.register
def _close() -> None:
    """Stop all threads before the code that they run is unloaded."""
    for made in _made.values():
        made.close()


os.register_at_fork(after_in_child=_made.clear)  # a forked process has only the thread that forked
