"""Checks a share of a running engine's steps in the background, each against policy, coins and rule computed anew.

witness = Witness(share=0.01)
engine = engine.with_parts(witness=witness)
…
witness.checked, witness.violations, witness.failures

A step is chosen by a hash of the witness's seed and the number of the step, so that what is checked does not depend on
what is generated. The engine pays for copies of what the step decided with; a thread does the rest. If it falls
behind, steps that were chosen are skipped and counted.
"""

import atexit
import logging
import threading
import time
import weakref
from collections import Counter, deque
from dataclasses import replace
from typing import Any

from spectr.audit.reference_coins import mixed
from spectr.audit.row_check import Failure, check_row, uncovered
from spectr.checks import whole
from spectr.engine.record import Evidence, StepRecord, WatchedRow
from spectr.errors import ArgumentError

__all__ = ["Witness"]

_LOGGER = logging.getLogger("spectr")
_CHOICE = 0x510E527FADE682D1
_KEPT = 8  # failures that are kept whole
_PATIENCE = 30.0  # seconds that the end of the process waits for the row that is being checked


class _Work:
    """Records that wait for the thread, at most so many."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.news = threading.Condition()
        self.waiting: deque[StepRecord] = deque()
        self.is_busy = self.is_closed = False

    @property
    def is_full(self) -> bool:
        return len(self.waiting) >= self.room

    def put(self, record: StepRecord) -> None:
        """Let a record wait."""
        with self.news:
            self.waiting.append(record)
            self.news.notify_all()

    def take(self) -> StepRecord | None:
        """The next record, when there is one; None once it is closed."""
        with self.news:
            self.is_busy = False
            self.news.notify_all()
            self.news.wait_for(lambda: self.waiting or self.is_closed)
            if self.is_closed:
                return None
            self.is_busy = True
            return self.waiting.popleft()

    def close(self) -> None:
        """Let nothing wait any more."""
        with self.news:
            self.is_closed = True
            self.news.notify_all()


_running: dict[threading.Thread, _Work] = {}


@atexit.register
def _close() -> None:
    """End all threads before the interpreter does."""
    for thread, work in list(_running.items()):
        work.close()
        thread.join(_PATIENCE)


def _serve(found: "weakref.ref[Witness]", work: _Work) -> None:
    """Check records until nobody holds the witness any more, or it is closed."""
    try:
        while (record := work.take()) is not None:
            witness = found()
            if witness is None:
                return
            witness._check(record)
            del witness, record  # nobody but its owner holds it while it waits
    finally:
        _running.pop(threading.current_thread(), None)


class Witness:
    """Checks a `share` of all steps. `room` is how many chosen steps may wait for the thread, each with copies of its
    logits. Failures are kept without prompt and text unless `keeps_texts`."""

    def __init__(self, share: float = 0.01, *, seed: int = 0, room: int = 4, keeps_texts: bool = False) -> None:
        if not 0 <= share <= 1:
            raise ArgumentError(f"share must lie between 0 (no step is checked) and 1 (every step is), got {share}")
        self.share, self.seed, self.keeps_texts = share, seed, keeps_texts
        self._work = _Work(whole("room", room, 1))
        self._thread: threading.Thread | None = None
        self._steps = self._skipped = self._checked = self._rows = self._near_ties = self._violations = 0
        self._seconds = 0.0
        self._not_covered: Counter[str] = Counter()
        self._failures: list[Failure] = []
        weakref.finalize(self, self._work.close)

    @property
    def steps(self) -> int:
        """Steps that the engine took."""
        return self._steps

    @property
    def checked(self) -> int:
        """Steps that were checked."""
        return self._checked

    @property
    def rows(self) -> int:
        """Rows of these steps that were checked."""
        return self._rows

    @property
    def near_ties(self) -> int:
        """Rows that were decided otherwise than in float64, as rounding explains."""
        return self._near_ties

    @property
    def violations(self) -> int:
        """Rows that got other tokens than they should have, which rounding does not explain."""
        return self._violations

    @property
    def skipped(self) -> int:
        """Steps that were chosen and not checked, since the thread was behind."""
        return self._skipped

    @property
    def not_covered(self) -> dict[str, int]:
        """Rows of checked steps that could not be checked, by the reason: a rule or hooks without a reference."""
        return dict(self._not_covered)

    @property
    def seconds(self) -> float:
        """Processor time that the checks took."""
        return self._seconds

    @property
    def failures(self) -> list[Failure]:
        """The first violations, whole."""
        return list(self._failures)

    @property
    def holds(self) -> bool:
        """Whether no violation was found."""
        return self._violations == 0

    @property
    def counts(self) -> dict[str, float]:
        """Every count by its name, for metrics."""
        names = ("steps", "checked", "rows", "near_ties", "violations", "skipped", "seconds")
        return {name: getattr(self, name) for name in names} | {"not_covered": self._not_covered.total()}

    def as_json(self) -> dict[str, Any]:
        """All counts, what was not covered by its reason, and the failures in words."""
        failures = [str(failure) for failure in self.failures]
        return {"share": self.share, **self.counts, "not_covered": self.not_covered, "failures": failures}

    def wants_step(self) -> bool:
        """Whether the next step is one of those to check; one for which there is no room is skipped."""
        number = self._steps
        self._steps += 1
        if self._work.is_closed or (mixed(_CHOICE, self.seed, number) >> 11) * 2.0**-53 >= self.share:
            return False
        has_room = not self._work.is_full
        self._skipped += not has_room
        return has_room

    def add(self, record: StepRecord) -> None:
        """Check a step, later and elsewhere."""
        if self._work.is_full:
            self._skipped += 1
        elif not self._work.is_closed:
            self._work.put(record)
            self._start()

    def _start(self) -> None:
        """Have a thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=_serve, args=(weakref.ref(self), self._work), daemon=True)
            _running[self._thread] = self._work
            self._thread.start()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to check; False if that took longer than `timeout` seconds."""
        work = self._work
        with work.news:
            return work.news.wait_for(lambda: work.is_closed or not (work.waiting or work.is_busy), timeout)

    def close(self) -> None:
        """Check no more steps, and wait for the thread to end; what was counted stays."""
        self._work.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)

    def _check(self, record: StepRecord) -> None:
        """Check the rows of a step, as the thread does."""
        start = time.thread_time()
        for row in record.rows:
            if self._work.is_closed:
                return
            try:
                self._check_row(record, record.evidence.wait(), row)
            except Exception as error:  # a fault of the check, and not of the engine
                self._pass_over(error)
        self._checked += 1
        self._seconds += time.thread_time() - start

    def _pass_over(self, error: Exception) -> None:
        """Count a row whose check failed; log the first one of each kind."""
        reason = f"an error of the check, {type(error).__name__}"
        if reason not in self._not_covered:
            _LOGGER.warning("spectr: a step could not be checked", exc_info=error)
        self._not_covered[reason] += 1

    def _check_row(self, record: StepRecord, evidence: Evidence, row: WatchedRow) -> None:
        reason = uncovered(record, evidence, row)
        if reason is not None:
            self._not_covered[reason] += 1
            return
        found = check_row(record, evidence, row)
        self._rows += 1
        self._near_ties += found.is_near_tie
        if found.failure is not None:
            self._report(found.failure)

    def _report(self, failure: Failure) -> None:
        """Count a violation; log and keep the first ones."""
        self._violations += 1
        if len(self._failures) < _KEPT:
            kept = failure if self.keeps_texts else replace(failure, text=None)
            self._failures.append(kept)
            _LOGGER.error("spectr: a step did not do what it should: %s", kept)
