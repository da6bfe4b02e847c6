"""Checks a share of a running engine's steps in the background, by recomputing policy, coins and rule.

witness = Witness(share=0.01)
engine = engine.with_parts(witness=witness)
…
witness.checked, witness.violations, witness.failures

A step is chosen by a hash of the witness's seed and the number of the step, so that the choice does not depend on the
generated text. The engine only copies the inputs of the decision; a thread does the rest. If it falls behind, chosen
steps are skipped and counted.
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
from spectr.engine.record import Evidence, RecordedRow, StepRecord
from spectr.errors import ArgumentError

__all__ = ["Witness"]

_LOGGER = logging.getLogger("spectr")
_CHOICE = 0x510E527FADE682D1
_KEPT = 8  # failures that are kept in full
_PATIENCE = 30.0  # seconds to wait at exit for the row that is being checked


class _Work:
    """The queue of records for the thread, with at most `room` entries."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.news = threading.Condition()
        self.waiting: deque[StepRecord] = deque()
        self.is_busy = self.is_closed = False

    @property
    def is_full(self) -> bool:
        return len(self.waiting) >= self.room

    def put(self, record: StepRecord) -> None:
        """Append a record."""
        with self.news:
            self.waiting.append(record)
            self.news.notify_all()

    def take(self) -> StepRecord | None:
        """Wait for the next record and return it; None once the queue is closed."""
        with self.news:
            self.is_busy = False
            self.news.notify_all()
            self.news.wait_for(lambda: self.waiting or self.is_closed)
            if self.is_closed:
                return None
            self.is_busy = True
            return self.waiting.popleft()

    def close(self) -> None:
        """Close the queue and wake its threads."""
        with self.news:
            self.is_closed = True
            self.news.notify_all()


_running: dict[threading.Thread, _Work] = {}


@atexit.register
def _close() -> None:
    """End all threads before the interpreter exits."""
    for thread, work in list(_running.items()):
        work.close()
        thread.join(_PATIENCE)


def _check_until_closed(reference: "weakref.ref[Witness]", work: _Work) -> None:
    """Check records until the witness is garbage-collected or closed."""
    try:
        while (record := work.take()) is not None:
            witness = reference()
            if witness is None:
                return
            witness._check(record)
            del witness, record  # while waiting the thread must not keep the witness alive
    finally:
        _running.pop(threading.current_thread(), None)


class Witness:
    """Checks a `share` of all steps. At most `room` chosen steps wait for the thread, each with copies of its logits.
    Failures are kept without prompt and text unless `keeps_texts`."""

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
        """The number of steps the engine has taken."""
        return self._steps

    @property
    def checked(self) -> int:
        """The number of checked steps."""
        return self._checked

    @property
    def rows(self) -> int:
        """The number of checked rows."""
        return self._rows

    @property
    def near_ties(self) -> int:
        """The number of rows whose decision differs from float64's by rounding only."""
        return self._near_ties

    @property
    def violations(self) -> int:
        """The number of rows with wrong tokens that rounding does not explain."""
        return self._violations

    @property
    def skipped(self) -> int:
        """The number of chosen steps that were not checked because the thread was behind."""
        return self._skipped

    @property
    def not_covered(self) -> dict[str, int]:
        """The number of rows that could not be checked, by reason: a rule or hooks without a reference."""
        return dict(self._not_covered)

    @property
    def seconds(self) -> float:
        """The processor time of the checks."""
        return self._seconds

    @property
    def failures(self) -> list[Failure]:
        """The first violations in full."""
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

    def as_data(self) -> dict[str, Any]:
        """Return all counts, rows not covered by reason, and the failures as sentences."""
        failures = [str(failure) for failure in self.failures]
        return {"share": self.share, **self.counts, "not_covered": self.not_covered, "failures": failures}

    as_json = as_data
    """The former name of `as_data`."""

    def wants_step(self) -> bool:
        """Return whether to check the next step; a chosen step is skipped if the queue is full."""
        number = self._steps
        self._steps += 1
        if self._work.is_closed or (mixed(_CHOICE, self.seed, number) >> 11) * 2.0**-53 >= self.share:
            return False
        has_room = not self._work.is_full
        self._skipped += not has_room
        return has_room

    def add(self, record: StepRecord) -> None:
        """Queue a step for the background thread."""
        if self._work.is_full:
            self._skipped += 1
        elif not self._work.is_closed:
            self._work.put(record)
            self._start()

    def _start(self) -> None:
        """Start the thread if it is not running."""
        if self._thread is None:
            self._thread = threading.Thread(
                target=_check_until_closed, args=(weakref.ref(self), self._work), daemon=True
            )
            _running[self._thread] = self._work
            self._thread.start()

    def drain(self, timeout: float | None = None) -> bool:
        """Wait until nothing is left to check; return False if that takes longer than `timeout` seconds."""
        work = self._work
        with work.news:
            return work.news.wait_for(lambda: work.is_closed or not (work.waiting or work.is_busy), timeout)

    def close(self) -> None:
        """Stop checking and wait for the thread to end; the counts remain."""
        self._work.close()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_PATIENCE)

    def _check(self, record: StepRecord) -> None:
        """Check the rows of a step; runs in the thread."""
        start = time.thread_time()
        for row in record.rows:
            if self._work.is_closed:
                return
            try:
                self._check_row(record, record.evidence.wait(), row)
            except Exception as error:  # an error of the check, not of the engine
                self._pass_over(error)
        self._checked += 1
        self._seconds += time.thread_time() - start

    def _pass_over(self, error: Exception) -> None:
        """Count a row whose check failed; log the first one of each kind."""
        reason = f"an error of the check, {type(error).__name__}"
        if reason not in self._not_covered:
            _LOGGER.warning("spectr: a step could not be checked", exc_info=error)
        self._not_covered[reason] += 1

    def _check_row(self, record: StepRecord, evidence: Evidence, row: RecordedRow) -> None:
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
