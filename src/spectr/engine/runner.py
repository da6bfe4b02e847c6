"""Steps of a lane: launching them, reading what they did, and delivering it to the requests."""

import time
from collections import deque
from dataclasses import dataclass, replace
from typing import Any

from spectr.draft.prediction import LENGTH
from spectr.draft.traits import DrafterTraits, table_version, takes_predictions
from spectr.engine.grammars import RowGrammars
from spectr.engine.parts import EngineParts
from spectr.engine.placement import Placement
from spectr.engine.readout import HostReadout, PendingReadout, StepReadout, copy_to_host
from spectr.engine.record import PendingEvidence, RecordedRow, StepRecord, copy_evidence
from spectr.engine.request import Step
from spectr.engine.state import RequestState
from spectr.engine.step import StepParts, run_step
from spectr.models.graphs import Captured
from spectr.policy.stages import MASKED

__all__ = ["LaunchedStep", "StepRunner"]

_LOGPROB_COUNTS = (0, 5, 20)  # how many log-probabilities captured steps compute: few values mean few graphs


@dataclass(frozen=True, slots=True)
class LaunchedStep:
    """A step that was launched and has not been read, with the requests that were in its rows."""

    states: list[RequestState]
    readout: PendingReadout
    marks: list[float]  # times before draft, target and rule, and after; empty if the step was replayed
    drafter_index: int  # what the drafting chose
    evidence: PendingEvidence | None = None  # for the witness, if it wants this step


class StepRunner:
    """Runs steps of the active rows. On a GPU a step is read after the next one was launched (`lag`), so that the
    device never waits for the host."""

    def __init__(
        self, parts: EngineParts, placement: Placement, *, on_host: bool, optimality_gap: bool, traces: bool
    ) -> None:
        self.parts, self.placement, self.memory = parts, placement, placement.memory
        self.optimality_gap, self.traces = optimality_gap, traces
        self.scratch_slots = DrafterTraits(parts.drafter).scratch_slots  # read once: some drafters compute it
        self.device = parts.target.device
        can_lag = self.device.type == "cuda" and not on_host and DrafterTraits(parts.drafter).capturable
        self.lag = 1 if can_lag else 0
        self.captures = can_lag and parts.captures and parts.rule.card.capturable
        self.captures = self.captures and not (optimality_gap or traces)  # both compute all distributions
        self.launched: deque[LaunchedStep] = deque()
        self.has_prefilled = False  # since the last step was read, which makes its time unusable
        self._version = -1  # of the tensors that the graphs were captured with
        self._width = 1  # the most tokens that the last step could add to a row
        self._widths: dict[tuple[int, int], int] = {}  # the same by rows and what the drafting chose
        self._since = time.perf_counter()  # when the last step was read

    @property
    def unread_tokens(self) -> int:
        """The most tokens that launched steps can have added to a row."""
        return len(self.launched) * self.placement.widest

    def launch(self) -> None:
        """Launch one step of the active rows."""
        rows, session, drafting = self.memory.opened()
        if not self.launched:
            self._since = time.perf_counter()  # the time before belongs to no step
        drafter_index = drafting.choose(len(self.placement.active))
        if takes_predictions(drafting):
            for row, state in enumerate(self.placement.active):
                if state.walk is not None:
                    drafting.set_next_tokens(row, state.walk.forced(LENGTH))
        may_wait = self.device.type == "cpu" or drafting.is_behind  # the drafter may wait for the device
        parts = self._step_parts(drafter_index, may_wait)
        count, longest = len(parts.rows), parts.longest

        def step(marks: list[float]) -> StepReadout:
            window = self.parts.target.window(session, 0, count, longest)
            return run_step(replace(parts, session=window), marks)

        marks: list[float] = []
        if self.captures and not may_wait:
            version = rows.version + table_version(drafting)
            if self._version != version:
                self.memory.graphs, self._version = Captured(), version
            readout = self.memory.graphs(_graph_key(parts, drafter_index), lambda _: step([]), rows.active)
        else:
            readout = step(marks)
        pending = copy_to_host(readout)
        self._width = readout.width
        self._widths[count, drafter_index] = self._width
        self.placement.widest = max(self.placement.widest, self._width)
        states = list(self.placement.active)
        self.launched.append(LaunchedStep(states, pending, marks, drafter_index, self._evidence(readout)))

    def _step_parts(self, drafter_index: int, may_wait: bool) -> StepParts:
        """What a step of the active rows is called with, but for the target's session. Captured steps round the number
        of rows, their length and the set of policy stages up, so that few graphs are captured."""
        rows, _, drafting = self.memory.opened()
        active = self.placement.active
        count = min(1 << (len(active) - 1).bit_length(), len(rows)) if self.captures else len(active)
        stages, grammars = rows.policy_stages(len(active), exactly=not self.captures), self._grammars()
        stages |= frozenset() if grammars is None else {MASKED}
        longest = max(len(state.text) for state in active) + self.unread_tokens
        if self.captures:
            longest = self.memory.rounded_length(longest + self.scratch_slots) - self.scratch_slots
        # A bound may be too large. This one is the same after narrower steps, so that one graph serves all of them.
        unread = max(self._width, self._widths.get((count, drafter_index), 1)) if self.captures else self._width
        return StepParts(
            self.parts.target, None, drafting, self.parts.rule, rows.window(count), stages, longest,
            None if may_wait else unread, self._logprob_count(), self.optimality_gap,
            self.traces, self.parts.witness is not None, grammars,
        )  # fmt: skip

    def _grammars(self) -> RowGrammars | None:
        """The grammars of the active rows, None if no row has one. On a GPU the host waits for every depth that it
        masks; under the race, where the text does not depend on drafts, only the first depth is masked."""
        walks = [state.walk for state in self.placement.active]
        if not any(walks):
            return None
        masks_all = self.device.type == "cpu" or self.parts.rule.card.text_depends_on_drafts
        return RowGrammars(walks, self.parts.target.vocabulary, self.device, masks_all)

    def _logprob_count(self) -> int | None:
        """The most log-probabilities that an active row asks for, None if none does; rounded up where steps are
        captured."""
        counts = [s.request.logprobs for s in self.placement.active if s.request.logprobs is not None]
        if not counts:
            return None
        most = max(counts)
        return next((count for count in _LOGPROB_COUNTS if count >= most), most) if self.captures else most

    def _evidence(self, readout: StepReadout) -> PendingEvidence | None:
        """Copy what the step just launched decides with, if the witness wants this step."""
        witness = self.parts.witness
        if witness is None or readout.evidence is None or not witness.wants_step():
            return None
        return copy_evidence(readout.evidence, len(self.placement.active), laws=self.parts.rule.card.needs_laws)

    def read_next(self) -> list[RequestState]:
        """Read the oldest launched step, deliver it, and return the requests that have ended or failed with it."""
        return self.read(self.launched.popleft())

    def read(self, step: LaunchedStep) -> list[RequestState]:
        """Deliver a step to its requests, and return those that have ended or failed with it."""
        readout = step.readout.wait(DrafterTraits(self.parts.drafter).origin_of(step.drafter_index))
        self.record(step, readout)
        now, ended, tokens = time.perf_counter(), list[RequestState](), 0
        was_needed = not all(state.is_done for state in step.states)  # else launched before the host saw the ends
        replayed = [self._since, self._since, now, now]  # a replayed step is one piece, counted as the target's
        for row, state in enumerate(step.states):
            if state.is_done:
                continue
            delivered = _deliver(state, readout, row, step.marks or replayed)
            tokens += 0 if delivered is None else len(delivered.tokens)
            if delivered is None or delivered.finish_reason is not None:
                ended.append(state)
        if was_needed and (step.marks or not self.has_prefilled):
            seconds = step.marks[-1] - step.marks[0] if step.marks else now - self._since
            self.memory.opened()[2].observe(len(step.states), step.drafter_index, tokens / len(step.states), seconds)
        self._since, self.has_prefilled = now, False
        return ended

    def record(self, step: LaunchedStep, readout: HostReadout) -> None:
        """Give the witness a step that it wants, with the texts from before the step: steps are read in order."""
        if step.evidence is None or self.parts.witness is None:
            return
        rows = [
            RecordedRow(row, state.request, tuple(state.text), readout.verdict(row))
            for row, state in enumerate(step.states)
            if not state.is_done
        ]
        self.parts.witness.add(StepRecord(self.parts.rule, self.parts.stops, rows, step.evidence))

    def drop_abandoned(self) -> None:
        """Drop steps that were launched before all of their requests had ended."""
        while self.launched and all(state.is_done for state in self.launched[-1].states):
            self.launched.pop()


def _graph_key(parts: StepParts, drafter_index: int) -> tuple[Any, ...]:
    """What a captured step depends on besides its tensors."""
    reach = parts.rows.policies.reach if "no_repeat_ngram_size" in parts.policy_stages else 0
    return len(parts.rows), parts.longest, drafter_index, parts.policy_stages, parts.unread, parts.logprobs, reach


def _deliver(state: RequestState, readout: HostReadout, row: int, marks: list[float]) -> Step | None:
    """Deliver what a step did to one row; None if it failed, which ends this request and no other."""
    request = state.request
    try:
        result = readout.row(row, request.logprobs)
        text, end = ("", None) if request.reader is None else request.reader.feed(result.tokens)
        count = len(result.tokens) if end is None else end
        state.host_text.commit(result.tokens[:count])  # errors beyond the end of the text are ignored
        if state.walk is not None:
            state.walk.commit(result.tokens[:count])
            if end is None and state.walk.error is not None:
                raise state.walk.error
        if end is None and result.error is not None:
            raise result.error
        reason = result.finish_reason if end is None else "stop"
        if reason is not None and request.reader is not None:
            text += request.reader.finish()
    except Exception as error:
        state.delivery.fail(error)
        return None
    counts = result.counts.cut(count)
    state.text += result.tokens[:count]
    logprobs = None if result.logprobs is None else result.logprobs[:count]
    step = Step(
        result.tokens[:count], len(counts.ranks), counts.corrected, reason, logprobs, text, counts.drafted, result.tree
    )
    state.delivery.add(step, counts, marks)
    return step
