"""Runs a benchmark: all methods generate every text in turn, and every text is on disk before the next begins."""

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spectr.bench.grid import Grid
from spectr.bench.journal import Journal
from spectr.bench.machine import hardware, load, versions, watching_memory
from spectr.bench.methods import Contender, Field, as_contender, contenders, weights_of
from spectr.bench.summary import summarise
from spectr.bench.tasks import Task, tasks
from spectr.bench.turns import Plan, Turn, plan
from spectr.bench.writers import BenchRequest, TransformersWriter, Written, open_endpoint, requests
from spectr.errors import ArgumentError, MismatchError
from spectr.lm import LM
from spectr.lm import load as load_lm

__all__ = ["Bench", "Progress", "run"]

_BUSY = 0.5  # processes per core above which timings are unreliable
_WARM = 8  # tokens of the warm-up of every method


@dataclass(frozen=True, slots=True)
class Progress:
    """Callbacks that report the progress of a run."""

    say: Callable[[str], None] = lambda _: None
    expect: Callable[[int], None] = lambda _: None  # called with the number of remaining cells
    tick: Callable[[], None] = lambda: None  # called after each cell


@dataclass(frozen=True, slots=True)
class Bench:
    """The settings of a run, and the file of its result."""

    target: str
    out: Path
    grid: Grid = field(default_factory=Grid)
    drafter: str | None = None  # None: the default of spectr.load
    loading: dict[str, Any] = field(default_factory=dict)  # device, dtype
    endpoints: tuple[str, ...] = ()
    prefix: str = ""  # prefix of the source of an encoder-decoder model
    strict: bool = False  # refuse a method that cannot run, instead of leaving it out
    minutes: float | None = None  # stop after the turn in which this time is exceeded
    command: str = ""


def _record(turn: Turn, contender: Contender, written: Written) -> dict[str, Any]:
    """Return the measurements of one text."""
    stats, item = written.stats, turn.item
    tokens = None if written.tokens is None else ",".join(map(str, written.tokens)).encode()
    return {
        "study": turn.study, "task": item.task.name, "prompt": item.number, "temperature": item.temperature,
        "round": turn.round, "seed": item.request.seed,
        "method": contender.method, "drafts": contender.drafts, "length": contender.length,
        "drafter": contender.drafter, "lossless": contender.lossless,
        "prompt_tokens": len(item.request.source or item.request.prompt),
        "tokens": written.count, "seconds": written.seconds, "steps": written.steps, "parts": written.parts,
        "drafted": None if stats is None else stats.drafted,
        "reached": None if stats is None else stats.reached,
        "kept": None if stats is None else stats.kept,
        "ranks": None if stats is None else stats.ranks,
        "digest": None if tokens is None else hashlib.sha256(tokens).hexdigest()[:16],
    }  # fmt: skip


def _about(bench: Bench, lm: LM, given: tuple[Task, ...]) -> dict[str, Any]:
    """Return the settings that must be equal for a run to be continued."""
    from spectr.models.trained import fingerprint

    net = lm.opened.target.model
    words = "".join(repr(task.prompts) for task in given)
    return {
        "format": 2,
        "target": {
            "name": Path(bench.target).name,
            "fingerprint": fingerprint(net)[:16],
            "weights": sum(weights.numel() for weights in net.parameters()),
            "vocabulary": lm.engine.target.vocabulary,
        },
        "drafter": {
            "name": _called(bench, lm),
            "kind": lm.engine.drafter.name,
            "rule": lm.engine.rule.card.name,
            "weights": weights_of(lm.engine.drafter),
        },
        "device": str(net.device),
        "dtype": str(net.dtype).removeprefix("torch."),
        "grid": asdict(replace(bench.grid, tasks=tuple(task.name for task in given))),
        "tasks": {t.name: {"kind": t.kind, "origin": t.origin, "prompts": len(t.prompts)} for t in given},
        "prompts": hashlib.sha256((words + bench.prefix).encode()).hexdigest()[:16],
        "endpoints": list(bench.endpoints),
        "hardware": hardware(net.device),
        "versions": versions(),
    }


def _called(bench: Bench, lm: LM) -> str:
    """Return the drafter's name without the folders before it."""
    return lm.engine.drafter.name if bench.drafter is None else "+".join(Path(p).name for p in bench.drafter.split("+"))


class _Sitting:
    """One process that works on a run; a run may have several."""

    def __init__(self, bench: Bench, lm: LM, journal: Journal, progress: Progress) -> None:
        self.bench, self.lm, self.journal, self.progress = bench, lm, journal, progress
        self.number = sum(cell["study"] == "sitting" for cell in journal.cells.values())
        self._warm: set[str] = set()
        self._until = None if bench.minutes is None else time.monotonic() + 60 * bench.minutes

    @property
    def is_late(self) -> bool:
        """Whether the time limit has passed."""
        return self._until is not None and time.monotonic() > self._until

    def begin(self) -> None:
        """Record the command, the time and the load of this sitting, and warn if the machine is busy."""
        now = datetime.now(UTC).isoformat(timespec="seconds")
        wanted, cores = load(), self.journal.head["hardware"]["cores"]
        if wanted is not None and wanted > _BUSY * cores:
            self.progress.say(
                f"this machine is busy: its load is {wanted:.1f} on {cores} cores, so timings are unreliable"
            )
        about = {"study": "sitting", "command": self.bench.command, "begun": now, "load": wanted}
        self.journal.add(f"sitting {self.number}", about)

    def work(self, doing: Plan) -> None:
        """Measure the missing cells until the time limit."""
        for number, turn in enumerate(doing.turns):
            if self.is_late:
                return
            self._turn(turn, number)
        for name, measure in doing.cells:
            if self.is_late:
                return
            if name not in self.journal.cells:
                self._keep(name, measure())

    def _turn(self, turn: Turn, number: int) -> None:
        missing = [one for one in turn.order(number) if turn.name(one) not in self.journal.cells]
        for contender in missing:
            self._warm_up(turn, contender)
        for contender in missing:
            self._keep(turn.name(contender), self._write(turn, contender))
        if missing:
            item = turn.item
            self.progress.say(f"{turn.study} {item.task.name} {item.number}, T={item.temperature:g}")

    def _warm_up(self, turn: Turn, contender: Contender) -> None:
        """Generate a few tokens that are not measured."""
        if contender.key not in self._warm:
            contender.writer.write(turn.item.shorter(_WARM))
            self._warm.add(contender.key)

    def _write(self, turn: Turn, contender: Contender) -> dict[str, Any]:
        with watching_memory(self.lm.opened.target.model.device) as peak:
            written = contender.writer.write(turn.item)
            memory = peak()
        record = _record(turn, contender, written)
        return {**record, "memory": memory, "load": load(), "sitting": self.number}

    def _keep(self, name: str, found: dict[str, Any]) -> None:
        self.journal.add(name, found)
        self.progress.tick()


def _tried(field: Field, item: BenchRequest, *, strict: bool) -> Field:
    """Remove the transformers methods that fail with this pair of models, after a trial of two tokens each."""
    able, left = [], dict(field.left_out)
    for contender in field.contenders:
        try:
            if isinstance(contender.writer, TransformersWriter):
                contender.writer.write(item)
            able.append(contender)
        except Exception as error:  # errors of transformers, of any kind
            reason = f"transformers refuses: {' '.join(str(error).split())}"
            if strict:
                raise MismatchError(f"{contender.method} cannot run; {reason}") from error
            left[contender.method] = reason
    return Field(tuple(able), left)


def run(bench: Bench, progress: Progress) -> dict[str, Any]:
    """Measure the cells that the result file lacks, and return the whole result. An interrupted run keeps its cells."""
    given = tasks(bench.grid.tasks, bench.grid.prompts)
    endpoints = [as_contender(open_endpoint(url)) for url in bench.endpoints]
    chosen = {} if bench.drafter is None else {"drafter": bench.drafter}
    lm = load_lm(bench.target, **chosen, **bench.loading, progress=progress.say)
    sizes = (bench.grid.drafts, bench.grid.lengths)
    who = contenders(lm, bench.grid.methods, _called(bench, lm), sizes, strict=bench.strict)
    items, too_long = requests(lm, given, bench.grid.tokens, bench.prefix)
    if not items:
        raise ArgumentError("no prompt and its answer fit into the model's context; lower --tokens")
    who = _tried(who, items[0].shorter(2), strict=bench.strict)
    doing = plan(bench.grid, lm, items, (*who.contenders, *endpoints))
    left_out = {**who.left_out, **doing.left_out}
    for name, reason in left_out.items():
        progress.say(f"left out {name}: {reason}")
    journal = Journal(bench.out, _about(bench, lm, given))
    return _finished(_Sitting(bench, lm, journal, progress), doing, {"left_out": left_out, "too_long": too_long})


def _finished(sitting: _Sitting, doing: Plan, more: dict[str, Any]) -> dict[str, Any]:
    """Measure, and write the result even after an error."""
    journal, progress, names = sitting.journal, sitting.progress, doing.names()
    missing = [name for name in names if name not in journal.cells]
    progress.expect(len(missing))
    interrupted = False
    try:
        if missing:
            sitting.begin()
            with suppress(KeyboardInterrupt):
                interrupted = True
                sitting.work(doing)
                interrupted = False
    finally:
        left = sum(name not in journal.cells for name in names)
        data = {**more, "cells_missing": left, "interrupted": interrupted, **summarise(journal.cells)}
        journal.finish(data)
    return {"head": journal.head, **data}
