"""A lane: rows that share steps, with one drafter and one rule. It admits requests and makes room for them."""

from collections import deque
from contextlib import nullcontext

import torch

from spectr.engine.memory import LaneMemory, rounded_slots
from spectr.engine.parts import EngineParts
from spectr.engine.placement import Placement
from spectr.engine.prefill import prefill
from spectr.engine.runner import StepRunner
from spectr.engine.state import RequestState
from spectr.errors import ArgumentError

__all__ = ["Lane"]

_IDLE_CHUNKS = 8  # chunks of prompt tokens that a turn prefills while no row decodes
_LEAST_PIECE = 4  # prefill of less than this part of a chunk takes as long as of this part, so it waits for a turn
_HEADROOM = 512  # tokens that a row has room for beyond its text when it begins, unless its limit is closer


class Lane:
    """The requests that wait for a row, and those that have one."""

    def __init__(self, parts: EngineParts, *, on_host: bool, optimality_gap: bool, traces: bool = False) -> None:
        self.parts, self.device = parts, parts.target.device
        self.queue: deque[RequestState] = deque()
        self.memory = LaneMemory(parts)
        self.placement = Placement(parts, self.memory)
        self.runner = StepRunner(parts, self.placement, on_host=on_host, optimality_gap=optimality_gap, traces=traces)
        self.preemptions = 0  # how often requests began again because memory was short
        self._reserves_all = False  # whether rows are allocated up to the limit of their requests

    @property
    def active(self) -> list[RequestState]:
        """The requests that take part in steps, by row."""
        return self.placement.active

    @property
    def prefilling(self) -> list[RequestState]:
        """The requests whose prompts are being prefilled, by row."""
        return self.placement.prefilling

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.queue or self.prefilling or self.active or self.runner.launched)

    @property
    def tokens(self) -> int:
        """The number of tokens of the texts in rows."""
        return sum(len(state.text) for state in [*self.active, *self.prefilling])

    @property
    def room(self) -> int:
        """The number of tokens that all rows together have room for."""
        return len(self.memory) * self.memory.slots

    def turn(self) -> None:
        """Admit requests, prefill a part of their prompts, and take one step of the active rows."""
        runner = self.runner
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            self._remove([state for state in [*self.active, *self.prefilling] if state.is_done])  # cancelled
            self._admit()
            if self.active and self._has_room_for_a_step():
                runner.launch()
            while runner.launched and (len(runner.launched) > runner.lag or not self.active):
                self._remove(runner.read_next())
            runner.drop_abandoned()
            self._reserves_all &= not self.is_idle

    def fail(self, error: BaseException) -> None:
        """End every request with one error."""
        for state in [*self.queue, *self.prefilling, *self.active]:
            state.delivery.fail(error)

    def _remove(self, ended: list[RequestState]) -> None:
        if ended:
            self.placement.remove(ended, len(self.runner.launched))

    # Admission

    def _admit(self) -> None:
        """Give rows to requests in the order of arrival and prefill their prompts, within the budget of a turn."""
        chunk = self.parts.chunk
        budget = chunk * (1 if self.active else _IDLE_CHUNKS)
        while self.prefilling or self._begin_cohort():
            budget -= prefill(self.placement, budget)
            self.runner.has_prefilled = True
            if self.prefilling or budget < chunk // _LEAST_PIECE:
                return

    def _begin_cohort(self) -> bool:
        """Give rows to the next requests whose prompts can be prefilled together; False if there are none."""
        cohort: list[RequestState] = []
        try:
            self._choose(cohort)
        except BaseException:
            self.queue.extendleft(reversed(cohort))  # where `fail` finds them
            raise
        if cohort:
            self.placement.begin(cohort)
        return bool(cohort)

    def _choose(self, cohort: list[RequestState]) -> None:
        """Move requests from the queue to a cohort as long as they can join it and there is room."""
        longest = 0
        while self.queue and len(self.active) + len(cohort) < self.parts.rows:
            state = self.queue[0]
            if state.is_done:
                self.queue.popleft()
                continue
            if cohort and not self.placement.can_join(state, cohort, longest):
                return
            if not self._make_room(len(self.active) + len(cohort) + 1, state):
                return
            longest = max(longest, len(state.text))
            cohort.append(self.queue.popleft())

    # Room

    def _make_room(self, rows: int, state: RequestState) -> bool:
        """Allocate `rows` rows that have room for a request; False if it must wait until others have ended. A request
        that has no room even alone fails."""
        needed = self._needed_slots(len(state.text) + _HEADROOM, state)
        kept = min(self.parts.min_rows, rows + len(self.placement.prefixes), self.parts.rows)
        if self.memory.rows is not None and max(rows, kept) <= len(self.memory) and needed <= self.memory.slots:
            return True
        slots = max(self.memory.slots, rounded_slots(needed))
        try:
            self.memory.grow(max(rows, kept), slots)
            return True
        except (ArgumentError, torch.OutOfMemoryError):
            self.placement.prefixes.clear()
        try:
            self.memory.grow(rows, slots)
        except (ArgumentError, torch.OutOfMemoryError) as error:
            if self.active or self.prefilling or rows > 1:
                return False
            self.placement.clear()
            try:
                self.memory.grow(1, needed)
            except (ArgumentError, torch.OutOfMemoryError):
                self.queue.popleft().delivery.fail(error)
                return False
        return True

    def _needed_slots(self, length: int, state: RequestState) -> int:
        """The slots that a row needs while its text has at most `length` tokens, or its limit if that is less."""
        longest = state.request.limit if self._reserves_all else min(state.request.limit, length)
        return longest + 3 * self.runner.scratch_slots + 2

    def _has_room_for_a_step(self) -> bool:
        """Make room for the tokens that another step may add. Where memory is short, all requests are preempted; False
        if none is active then."""
        ahead = (len(self.runner.launched) + 1) * max(self.placement.widest, self.runner.scratch_slots)
        needed = max(self._needed_slots(len(state.text) + ahead, state) for state in self.active)
        if needed <= self.memory.slots:
            return True
        try:
            self.memory.grow(len(self.memory), rounded_slots(needed))
        except (ArgumentError, torch.OutOfMemoryError):
            self._preempt_all()
        return bool(self.active)

    def _preempt_all(self) -> None:
        """Free all memory and queue every request again with its text so far. As many as there is room for continue;
        the others wait."""
        while self.runner.launched:
            self._remove(self.runner.read_next())
        waiting = [state for state in [*self.active, *self.prefilling] if not state.is_done]
        for state in waiting:
            state.prefilled, state.delivery.prompt_logprobs = 0, None
        self.queue.extendleft(reversed(waiting))
        self.placement.clear()
        self._reserves_all = True
        self.preemptions += 1
