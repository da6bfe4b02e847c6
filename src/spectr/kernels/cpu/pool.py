"""Threads that run one function together: what they share, how they wait for one another, how work is handed out.

All threads run the whole function. Within a stage each takes the next piece of work from a counter, so that a thread
that is not scheduled delays a stage by one piece at most. At the end of a stage they meet at a barrier. Whoever waits
spins for some microseconds, then sleeps until it is woken: on a busy machine a waiting thread gives its core away.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from spectr.kernels.cpu.emit import I32, I64, PTR, Body, Table, Variable
from spectr.kernels.cpu.processor import Processor

__all__ = ["STATE", "STATE_BYTES", "TASK", "Crew", "emit_run", "emit_wake", "emit_worker"]

_LINE = 8  # entries of a table in a cache line
STATE = Table(
    "threads", "function", "program", "call", "stops", *(f"_{n}" for n in range(5, 8)),
    "job", *(f"_{n}" for n in range(9, 16)),  # counts calls; what workers wait for
    "idle", *(f"_{n}" for n in range(17, 24)),  # workers that sleep
    "phase", *(f"_{n}" for n in range(25, 32)),  # counts barriers; what threads at a barrier wait for
    "arrived", *(f"_{n}" for n in range(33, 40)),
    "asleep", *(f"_{n}" for n in range(41, 48)),  # threads that sleep at the barrier
    "next", *(f"_{n}" for n in range(49, 56)),  # the next piece of work of the stage
)  # fmt: skip
"""What the threads share; what different threads write lies in different cache lines."""
STATE_BYTES = 8 * len(STATE)

_SPINS = 4000  # looks at a value before a thread sleeps: some tens of microseconds
_WAIT, _WAKE = 128, 129  # of Linux's futex, within one process
_FUTEX = {"x86_64": 202, "aarch64": 98}


class Crew:
    """The threads, as the body of a function sees them."""

    def __init__(self, body: Body, state: Any) -> None:
        self.body, self.state = body, state

    def place(self, name: str) -> Any:
        """Where a shared value lies."""
        return self.body.at(self.state, 8 * STATE.places[name])

    def read(self, name: str) -> Any:
        return self.body.builder.load_atomic(self.place(name), "acquire", 8, typ=I64)

    def write(self, name: str, value: Any) -> None:
        self.body.builder.atomic_rmw("xchg", self.place(name), self.body.whole(value), "seq_cst")

    def count(self, name: str, by: int = 1) -> Any:
        """Add to a shared value; what it was before."""
        return self.body.builder.atomic_rmw("add", self.place(name), I64(by), "seq_cst")

    @contextmanager
    def pieces(self, count: Any) -> Iterator[Any]:
        """A stage: pieces 0 to `count` − 1, each taken by one thread; all are done when it is over."""
        body = self.body
        piece = Variable(body, I64)
        ask, inside, after = (body.function.append_basic_block(name) for name in ("ask", "piece", "shared"))
        body.builder.branch(ask)
        body.builder.position_at_end(ask)
        piece.set(self.count("next"))
        body.builder.cbranch(body.less(piece.get(), count), inside, after)
        body.builder.position_at_end(inside)
        yield piece.get()
        body.builder.branch(ask)
        body.builder.position_at_end(after)
        self.meet_again()

    def meet_again(self) -> None:
        """Call the function in which threads meet."""
        self.body.call(_barrier(self.body), self.state)

    def meet(self) -> None:
        """The body of that function: wait for all threads. The last one sets back the counter of pieces and wakes those
        that sleep."""
        body = self.body
        phase = self.read("phase")
        is_last = body.builder.icmp_signed("==", body.add(self.count("arrived"), 1), self.read("threads"))
        with body.builder.if_else(is_last) as (last, others):
            with last:
                self.write("arrived", 0)
                self.write("next", 0)
                self.write("phase", body.add(phase, 1))
                self.wake("phase", "asleep")
            with others:
                self.wait("phase", "asleep", phase)

    def begin(self) -> None:
        """Let the workers run what the shared state says."""
        self.count("job")
        self.wake("job", "idle")

    def wake(self, name: str, sleepers: str) -> None:
        """Wake all that sleep until a value changes."""
        body = self.body
        with body.when(body.builder.icmp_signed(">", self.read(sleepers), I64(0))):
            self._futex(name, _WAKE, I32(1 << 30))

    def wait(self, name: str, sleepers: str, value: Any) -> None:
        """Wait until a shared value is another one."""
        body, left = self.body, Variable(self.body, I64, self.body.whole(_SPINS))
        with body.repeat() as until:
            _pause(body)
            left.set(body.sub(left.get(), 1))
            with body.when(body.builder.icmp_signed("==", left.get(), I64(0))):
                self.count(sleepers)
                self._futex(name, _WAIT, body.builder.trunc(value, I32))
                self.count(sleepers, -1)
                left.set(body.whole(1))
            until(body.builder.icmp_signed("!=", self.read(name), value))

    def _futex(self, name: str, operation: int, value: Any) -> None:
        """On the lower half of a shared value. A value that has changed meanwhile is not waited for."""
        body = self.body
        syscall = body.outside("syscall", I64, [I64], varies=True)
        nothing = body.builder.inttoptr(I64(0), PTR)
        number = _FUTEX[body.processor.machine]
        body.builder.call(syscall, [I64(number), self.place(name), I32(operation), value, nothing, nothing, I32(0)])


def _barrier(body: Body) -> Any:
    """The function in which threads meet, once in a module."""
    if "meet" in body.module.globals:
        return body.module.globals["meet"]
    made = Body(body.module, "meet", (PTR,), body.processor, is_public=False)
    Crew(made, made.arguments[0]).meet()
    return made.finish()


def _pause(body: Body) -> None:
    """Tell the processor that this is a loop that waits."""
    if body.processor.machine == "x86_64":
        body.builder.call(body.outside("llvm.x86.sse2.pause", ir.VoidType(), []), [])
    else:
        body.builder.call(body.outside("llvm.aarch64.hint", ir.VoidType(), [I32]), [I32(1)])


TASK = (PTR, PTR, PTR, I64)
"""Arguments of a function that threads run: program, call, shared state, number of the thread."""


def emit_run(module: ir.Module, processor: Processor) -> None:
    """The function `run`: arguments are the shared state, and a function of `TASK` with its program and call. All
    threads run it; it returns when this one is done, behind a barrier."""
    body = Body(module, "run", (PTR, I64, PTR, PTR), processor)
    state, function, program, call = body.arguments
    crew = Crew(body, state)
    for name, value in (("function", function), ("program", program), ("call", call)):
        body.store(value, crew.place(name), 0, 8)
    crew.begin()
    body.call_address(function, TASK, program, call, state, 0)
    body.finish()


def emit_wake(module: ir.Module, processor: Processor) -> None:
    """The function `wake`: workers look at the shared state, which is its argument, and end if they shall."""
    body = Body(module, "wake", (PTR,), processor)
    Crew(body, body.arguments[0]).begin()
    body.finish()


def emit_worker(module: ir.Module, processor: Processor) -> None:
    """The function `work` of a thread beside the first: wait for a call, run it, wait for the next; until told to
    stop. Arguments: the shared state, how many calls there were when the thread was made, and its number."""
    body = Body(module, "work", (PTR, I64, I64), processor)
    state, before, thread = body.arguments
    crew, seen = Crew(body, state), Variable(body, I64, before)
    with body.repeat() as until:
        crew.wait("job", "idle", seen.get())
        seen.set(body.add(seen.get(), 1))
        stops = body.builder.icmp_signed("!=", crew.read("stops"), I64(0))
        with body.when(body.builder.not_(stops)):
            function, program, call = (
                body.load(kind, crew.place(name), 0, 8)
                for name, kind in (("function", I64), ("program", PTR), ("call", PTR))
            )
            body.call_address(function, TASK, program, call, state, thread)
        until(stops)
    body.finish()
