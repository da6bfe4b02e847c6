"""A thread pool that runs one function on all threads: shared state, waiting, and distribution of work.

The calling thread runs the whole function; workers that are awake join it and leave before the call returns. Work is
done in stages. Within a stage each thread takes the next piece by a ticket, and the stage ends when all pieces are
done, whether all threads have arrived or not. On a busy machine a worker that is not scheduled therefore delays
nothing, unless it holds a piece; a thread that arrives late skips the stages that are over. A waiting thread spins for
some microseconds and then sleeps until it is woken, so that it does not occupy a core.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from spectr.kernels.cpu.emit import I32, I64, PTR, Body, Table, Variable
from spectr.kernels.cpu.processor import Processor

__all__ = ["CLOSED", "STATE", "STATE_BYTES", "TASK", "ThreadPool", "emit_run", "emit_wake", "emit_worker"]

_LINE = 8  # entries of a table in a cache line
STATE = Table(
    "threads", "function", "program", "call", "stops", "base", *(f"_{n}" for n in range(6, 8)),  # base: first stage
    "job", *(f"_{n}" for n in range(9, 16)),  # counts calls; workers wait for it to change
    "idle", *(f"_{n}" for n in range(17, 24)),  # number of sleeping workers
    "stage", *(f"_{n}" for n in range(25, 32)),  # counts finished stages; threads without a piece wait for it to change
    "done", *(f"_{n}" for n in range(33, 40)),  # finished pieces of the current stage
    "asleep", *(f"_{n}" for n in range(41, 48)),  # threads that sleep until the stage is over
    "ticket", *(f"_{n}" for n in range(49, 56)),  # the current stage and its next piece
    "gate", *(f"_{n}" for n in range(57, 64)),  # workers inside the function, and whether more may enter
    "leaving", *(f"_{n}" for n in range(65, 72)),  # 1 if the caller sleeps until they have left
)  # fmt: skip
"""State that the threads share; values that different threads write are in different cache lines."""
STATE_BYTES = 8 * len(STATE)

_SPINS = 4000  # reads of a value before a thread sleeps: some tens of microseconds
_PIECE_BITS = 24  # low bits of a ticket; the other bits are the stage
CLOSED = 1 << 32  # value of the gate: no worker may enter
_WAIT, _WAKE = 128, 129  # operations of Linux's futex, private to a process
_FUTEX = {"x86_64": 202, "aarch64": 98}


class ThreadPool:
    """Emits code that uses the shared state of the pool."""

    def __init__(self, body: Body, state: Any) -> None:
        self.body, self.state = body, state

    def place(self, name: str) -> Any:
        """Return the address of a shared value."""
        return self.body.at(self.state, 8 * STATE.places[name])

    def read(self, name: str) -> Any:
        return self.body.builder.load_atomic(self.place(name), "acquire", 8, typ=I64)

    def write(self, name: str, value: Any) -> None:
        self.body.builder.atomic_rmw("xchg", self.place(name), self.body.whole(value), "seq_cst")

    def count(self, name: str, by: int = 1) -> Any:
        """Add to a shared value and return the old one."""
        return self.body.builder.atomic_rmw("add", self.place(name), I64(by), "seq_cst")

    def exchange(self, name: str, old: Any, new: Any) -> Any:
        """Replace a shared value if it equals `old`; return whether it did."""
        result = self.body.builder.cmpxchg(self.place(name), old, new, "seq_cst")
        return self.body.builder.extract_value(result, 1)

    def enter(self) -> None:
        """Begin the function: this thread is before the first stage of the call."""
        self.stage = Variable(self.body, I64, self.read("base"))

    @contextmanager
    def pieces(self, count: Any) -> Iterator[Any]:
        """Emit a stage with pieces 0 to `count` − 1, each taken by one thread; all are done when the stage is over."""
        body, builder = self.body, self.body.builder
        own, piece, taken = self.stage.get(), Variable(body, I64), Variable(body, I64)
        names = ("stage", "ask", "look", "take", "piece", "last", "wait", "over", "shared")
        stage, ask, look, take, inside, last, wait, over, after = map(body.function.append_basic_block, names)
        builder.cbranch(body.less(0, count), stage, after)  # a stage without pieces does not count
        builder.position_at_end(stage)
        builder.branch(ask)
        builder.position_at_end(ask)
        taken.set(self.read("ticket"))
        is_under_way = builder.icmp_signed("==", builder.lshr(taken.get(), I64(_PIECE_BITS)), own)
        builder.cbranch(is_under_way, look, over)
        builder.position_at_end(look)
        piece.set(builder.and_(taken.get(), I64((1 << _PIECE_BITS) - 1)))
        builder.cbranch(body.less(piece.get(), count), take, wait)
        builder.position_at_end(take)
        builder.cbranch(self.exchange("ticket", taken.get(), body.add(taken.get(), 1)), inside, ask)
        builder.position_at_end(inside)
        yield piece.get()
        builder.cbranch(builder.icmp_signed("==", body.add(self.count("done"), 1), count), last, ask)
        builder.position_at_end(last)
        body.call(_part(body, "end_stage", ThreadPool._end_stage, I64), self.state, own)
        builder.branch(over)
        builder.position_at_end(wait)
        body.call(_part(body, "await_stage", ThreadPool._await_stage, I64), self.state, own)
        builder.branch(over)
        builder.position_at_end(over)
        self.stage.set(body.add(own, 1))
        builder.branch(after)
        builder.position_at_end(after)

    def _end_stage(self, own: Any) -> None:
        """Begin the next stage and wake the sleeping threads. The count of pieces is reset before tickets of the next
        stage are available."""
        following = self.body.add(own, 1)
        self.write("done", 0)
        self.write("ticket", self.body.builder.shl(following, I64(_PIECE_BITS)))
        self.write("stage", following)
        self.wake("stage", "asleep")

    def _await_stage(self, own: Any) -> None:
        """Wait until other threads have finished their pieces."""
        self.wait("stage", "asleep", own)

    def open_gate(self) -> None:
        """Let workers enter the function that is in the shared state."""
        self.write("base", self.read("stage"))
        self.write("gate", 0)

    def close_gate(self) -> None:
        """Let no more workers enter, and wait until all have left; afterwards no thread reads the tables of the
        call."""
        body = self.body
        body.builder.atomic_rmw("or", self.place("gate"), I64(CLOSED), "seq_cst")
        with body.repeat() as until:
            inside = self.read("gate")
            with body.when(body.builder.icmp_signed("!=", inside, I64(CLOSED))):
                self.wait("gate", "leaving", inside)
            until(body.builder.icmp_signed("==", self.read("gate"), I64(CLOSED)))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """Emit what a worker does between entering and leaving; it is skipped if the gate is closed."""
        body, builder, seen = self.body, self.body.builder, Variable(self.body, I64)
        names = ("ask", "try", "inside", "outside")
        ask, attempt, inside, outside = map(body.function.append_basic_block, names)
        builder.branch(ask)
        builder.position_at_end(ask)
        seen.set(self.read("gate"))
        builder.cbranch(body.less(seen.get(), I64(CLOSED)), attempt, outside)
        builder.position_at_end(attempt)
        builder.cbranch(self.exchange("gate", seen.get(), body.add(seen.get(), 1)), inside, ask)
        builder.position_at_end(inside)
        yield
        self.count("gate", -1)
        self.wake("gate", "leaving")
        builder.branch(outside)
        builder.position_at_end(outside)

    def begin(self) -> None:
        """Wake the workers, so that they read the shared state."""
        self.count("job")
        self.wake("job", "idle")

    def wake(self, name: str, sleepers: str) -> None:
        """Wake all threads that sleep until a value changes."""
        body = self.body
        with body.when(body.builder.icmp_signed(">", self.read(sleepers), I64(0))):
            self._futex(name, _WAKE, I32(1 << 30))

    def wait(self, name: str, sleepers: str, value: Any) -> None:
        """Wait until a shared value differs from `value`."""
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
        """Call futex on the lower half of a shared value; it does not wait if the value has changed meanwhile."""
        body = self.body
        syscall = body.outside("syscall", I64, [I64], varies=True)
        nothing = body.builder.inttoptr(I64(0), PTR)
        number = _FUTEX[body.processor.machine]
        body.builder.call(syscall, [I64(number), self.place(name), I32(operation), value, nothing, nothing, I32(0)])


def _part(body: Body, name: str, write: Callable[[ThreadPool, Any], None], *kinds: Any) -> Any:
    """Return a function of the shared state, emitted once per module, so that its code is not repeated in every
    stage."""
    if name in body.module.globals:
        return body.module.globals[name]
    made = Body(body.module, name, (PTR, *kinds), body.processor, is_public=False)
    write(ThreadPool(made, made.arguments[0]), *made.arguments[1:])
    return made.finish()


def _pause(body: Body) -> None:
    """Emit the processor's hint for a spinning loop."""
    if body.processor.machine == "x86_64":
        body.builder.call(body.outside("llvm.x86.sse2.pause", ir.VoidType(), []), [])
    else:
        body.builder.call(body.outside("llvm.aarch64.hint", ir.VoidType(), [I32]), [I32(1)])


TASK = (PTR, PTR, PTR, I64)
"""Arguments of a function that threads run: program, call, shared state, number of the thread."""


def emit_run(module: ir.Module, processor: Processor) -> None:
    """Emit the function `run`; arguments: the shared state, the address of a function with arguments `TASK`, its
    program and its call. It returns when the function is done and all workers have left it."""
    body = Body(module, "run", (PTR, I64, PTR, PTR), processor)
    state, function, program, call = body.arguments
    pool = ThreadPool(body, state)
    for name, value in (("function", function), ("program", program), ("call", call)):
        body.store(value, pool.place(name), 0, 8)
    pool.open_gate()
    pool.begin()
    body.call_address(function, TASK, program, call, state, 0)
    pool.close_gate()
    body.finish()


def emit_wake(module: ir.Module, processor: Processor) -> None:
    """Emit the function `wake`; argument: the shared state. Workers read it, and end if `stops` is set."""
    body = Body(module, "wake", (PTR,), processor)
    ThreadPool(body, body.arguments[0]).begin()
    body.finish()


def emit_worker(module: ir.Module, processor: Processor) -> None:
    """Emit the function `work`, which workers run: wait for a call, take part in it if it is not over, and repeat until
    `stops` is set. Arguments: the shared state, the number of calls when the thread was started, and its number."""
    body = Body(module, "work", (PTR, I64, I64), processor)
    state, before, thread = body.arguments
    pool, seen = ThreadPool(body, state), Variable(body, I64, before)
    with body.repeat() as until:
        pool.wait("job", "idle", seen.get())
        seen.set(pool.read("job"))
        stops = body.builder.icmp_signed("!=", pool.read("stops"), I64(0))
        with body.when(body.builder.not_(stops)), pool.inside():
            function, program, call = (
                body.load(kind, pool.place(name), 0, 8)
                for name, kind in (("function", I64), ("program", PTR), ("call", PTR))
            )
            body.call_address(function, TASK, program, call, state, thread)
        until(stops)
    body.finish()
