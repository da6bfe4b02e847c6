"""Threads that run one function together: what they share, how they wait for one another, how work is handed out.

The thread that calls runs the whole function; workers that are awake join it and leave before the call returns. Work is
done in stages. Within a stage each thread takes the next piece from a ticket, and the stage is over once all pieces are
done: not once all threads are there. So on a busy machine a worker that is not scheduled delays nobody, unless it holds
a piece; a thread that comes late finds the stages behind it done and goes on to the one under way. Whoever waits spins
for some microseconds, then sleeps until it is woken: a waiting thread gives its core away.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

from spectr.kernels.cpu.emit import I32, I64, PTR, Body, Table, Variable
from spectr.kernels.cpu.processor import Processor

__all__ = ["CLOSED", "STATE", "STATE_BYTES", "TASK", "Crew", "emit_run", "emit_wake", "emit_worker"]

_LINE = 8  # entries of a table in a cache line
STATE = Table(
    "threads", "function", "program", "call", "stops", "base", *(f"_{n}" for n in range(6, 8)),  # base: first stage
    "job", *(f"_{n}" for n in range(9, 16)),  # counts calls; what workers wait for
    "idle", *(f"_{n}" for n in range(17, 24)),  # workers that sleep
    "stage", *(f"_{n}" for n in range(25, 32)),  # counts stages that are over; what threads with no piece wait for
    "done", *(f"_{n}" for n in range(33, 40)),  # pieces of the stage under way
    "asleep", *(f"_{n}" for n in range(41, 48)),  # threads that sleep until it is over
    "ticket", *(f"_{n}" for n in range(49, 56)),  # the stage under way and its next piece
    "gate", *(f"_{n}" for n in range(57, 64)),  # workers inside the function, and whether others may come
    "leaving", *(f"_{n}" for n in range(65, 72)),  # the caller, if it sleeps until they have left
)  # fmt: skip
"""What the threads share; what different threads write lies in different cache lines."""
STATE_BYTES = 8 * len(STATE)

_SPINS = 4000  # looks at a value before a thread sleeps: some tens of microseconds
_PIECE_BITS = 24  # of a ticket; the others count stages
CLOSED = 1 << 32  # of the gate: nobody comes in
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

    def exchange(self, name: str, old: Any, new: Any) -> Any:
        """Put a new value in the place of the old; whether it was that."""
        found = self.body.builder.cmpxchg(self.place(name), old, new, "seq_cst")
        return self.body.builder.extract_value(found, 1)

    def enter(self) -> None:
        """This thread stands before the first stage of the call."""
        self.stage = Variable(self.body, I64, self.read("base"))

    @contextmanager
    def pieces(self, count: Any) -> Iterator[Any]:
        """A stage: pieces 0 to `count` − 1, each taken by one thread; all are done when it is over."""
        body, builder = self.body, self.body.builder
        own, piece, taken = self.stage.get(), Variable(body, I64), Variable(body, I64)
        names = ("stage", "ask", "look", "take", "piece", "last", "wait", "over", "shared")
        stage, ask, look, take, inside, last, wait, over, after = map(body.function.append_basic_block, names)
        builder.cbranch(body.less(0, count), stage, after)  # a stage without pieces is none
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
        body.call(_part(body, "end_stage", Crew._end_stage, I64), self.state, own)
        builder.branch(over)
        builder.position_at_end(wait)
        body.call(_part(body, "await_stage", Crew._await_stage, I64), self.state, own)
        builder.branch(over)
        builder.position_at_end(over)
        self.stage.set(body.add(own, 1))
        builder.branch(after)
        builder.position_at_end(after)

    def _end_stage(self, own: Any) -> None:
        """All pieces are done: let the next stage begin, and wake those that sleep. The count goes back before a ticket
        of the next stage can be had."""
        following = self.body.add(own, 1)
        self.write("done", 0)
        self.write("ticket", self.body.builder.shl(following, I64(_PIECE_BITS)))
        self.write("stage", following)
        self.wake("stage", "asleep")

    def _await_stage(self, own: Any) -> None:
        """Wait until others have done their pieces."""
        self.wait("stage", "asleep", own)

    def open_gate(self) -> None:
        """Let workers in; what they are to run stands in the shared state."""
        self.write("base", self.read("stage"))
        self.write("gate", 0)

    def close_gate(self) -> None:
        """Let nobody in any more, and wait until all have left: behind this nobody looks at the tables of the call."""
        body = self.body
        body.builder.atomic_rmw("or", self.place("gate"), I64(CLOSED), "seq_cst")
        with body.repeat() as until:
            inside = self.read("gate")
            with body.when(body.builder.icmp_signed("!=", inside, I64(CLOSED))):
                self.wait("gate", "leaving", inside)
            until(body.builder.icmp_signed("==", self.read("gate"), I64(CLOSED)))

    @contextmanager
    def inside(self) -> Iterator[None]:
        """What a worker does between coming in and leaving; nothing where the gate is closed."""
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
        """Tell the workers to look at the shared state."""
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


def _part(body: Body, name: str, write: Callable[[Crew, Any], None], *kinds: Any) -> Any:
    """A function of the shared state and more, once in a module, so that it is not repeated in every stage."""
    if name in body.module.globals:
        return body.module.globals[name]
    made = Body(body.module, name, (PTR, *kinds), body.processor, is_public=False)
    write(Crew(made, made.arguments[0]), *made.arguments[1:])
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
    """The function `run`: arguments are the shared state, and a function of `TASK` with its program and call. It
    returns when the function is done and nobody else is in it."""
    body = Body(module, "run", (PTR, I64, PTR, PTR), processor)
    state, function, program, call = body.arguments
    crew = Crew(body, state)
    for name, value in (("function", function), ("program", program), ("call", call)):
        body.store(value, crew.place(name), 0, 8)
    crew.open_gate()
    crew.begin()
    body.call_address(function, TASK, program, call, state, 0)
    crew.close_gate()
    body.finish()


def emit_wake(module: ir.Module, processor: Processor) -> None:
    """The function `wake`: workers look at the shared state, which is its argument, and end if they shall."""
    body = Body(module, "wake", (PTR,), processor)
    Crew(body, body.arguments[0]).begin()
    body.finish()


def emit_worker(module: ir.Module, processor: Processor) -> None:
    """The function `work` of a thread beside the first: wait for a call, take part in it if it is not over, wait for
    the next; until told to stop. Arguments: the shared state, how many calls there were when the thread was made, and
    its number."""
    body = Body(module, "work", (PTR, I64, I64), processor)
    state, before, thread = body.arguments
    crew, seen = Crew(body, state), Variable(body, I64, before)
    with body.repeat() as until:
        crew.wait("job", "idle", seen.get())
        seen.set(crew.read("job"))
        stops = body.builder.icmp_signed("!=", crew.read("stops"), I64(0))
        with body.when(body.builder.not_(stops)), crew.inside():
            function, program, call = (
                body.load(kind, crew.place(name), 0, 8)
                for name, kind in (("function", I64), ("program", PTR), ("call", PTR))
            )
            body.call_address(function, TASK, program, call, state, thread)
        until(stops)
    body.finish()
