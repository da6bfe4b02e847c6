"""Which request is in which row of a lane.

Active rows, which decode, come first (0 to A − 1), so that a step computes no others. The rows after them prefill their
prompts, one cohort at a time. The rows behind those belonged to requests that have ended; their caches are kept until
the rows are needed, and a request whose prompt has a prefix in common with one of them, or with an active row, copies
that prefix and prefills the rest.
"""

from collections.abc import Callable, Sequence
from typing import Any

from spectr.draft.traits import takes_predictions
from spectr.engine.memory import LaneMemory
from spectr.engine.parts import EngineParts
from spectr.engine.prefix import PrefixCache, common_prefix
from spectr.engine.state import RequestState

__all__ = ["Placement"]


class Placement:
    """The requests in the rows of a lane, and the prefixes in its other rows."""

    def __init__(self, parts: EngineParts, memory: LaneMemory) -> None:
        self.parts, self.memory = parts, memory
        self.active: list[RequestState] = []  # in rows 0 to A − 1
        self.prefilling: list[RequestState] = []  # the cohort in the rows after those
        self.prefixes = PrefixCache()
        self.reuses_prefixes = parts.reuses_prefixes and parts.target.keeps_prefixes
        self.widest = 1  # the most tokens that any step could add to a row

    def can_join(self, state: RequestState, cohort: list[RequestState], longest: int) -> bool:
        """Whether a request can prefill together with a cohort whose longest text has `longest` tokens. Prompts are
        padded to the longest, and a request that shares a prefix with one of the cohort waits to copy it."""
        if state.request.prompt_logprobs is not None or cohort[0].request.prompt_logprobs is not None:
            return False
        if max(longest, len(state.text)) * (len(cohort) + 1) > max(self.parts.chunk, longest):
            return False
        if not self.reuses_prefixes:
            return True
        known = self.prefixes.longest_match(state.text, state.scope, self._active_prefixes())[1]
        alike = [other for other in cohort if other.scope == state.scope]
        shared = max((common_prefix(state.text[:-1], other.text[:-1]) for other in alike), default=0)
        return shared < max(known, 1) + self.prefixes.min_tokens

    def begin(self, cohort: list[RequestState]) -> None:
        """Put requests into the rows after the active ones, with the prefixes that other rows already have."""
        self.prefilling, first = cohort, len(self.active)
        rows, session, drafting = self.memory.opened()
        known = [self._known_prefix(state, row) for row, state in enumerate(cohort, start=first)]
        self._copy_prefixes(known)
        rows.put(first, [state.resumed for state in cohort], self.parts.stops)
        for row, (state, (_, count)) in enumerate(zip(cohort, known, strict=True), start=first):
            request, state.host_text = state.request, rows.history.host[row]
            state.prefilled = count
            drafting.begin(row, state.text, request.limit, request.source)
            if takes_predictions(drafting):
                drafting.set_prediction(row, request.prediction, len(request.prompt))
            if len(state.text) == len(request.tokens):
                state.delivery.reused = state.prefilled
            if request.grammar is not None and state.walk is None:
                state.walk = request.grammar.walk(request.generated, self.parts.stops | request.stop_ids)
            if request.source is not None:
                self.parts.target.encode_row(session, row, list(request.source))
            self.prefixes.drop(row)
        self.parts.target.rewind(self.prefill_window(), [state.prefilled for state in cohort])

    def _known_prefix(self, state: RequestState, row: int) -> tuple[int, int]:
        """The row that shares the longest prefix with a request, and how many tokens of it can be used."""
        if not self.reuses_prefixes or state.request.prompt_logprobs is not None:
            return row, 0
        return self.prefixes.longest_match(state.text, state.scope, self._active_prefixes(), here=row)

    def _active_prefixes(self) -> dict[int, tuple[list[int], Any]]:
        """The tokens that the active rows are known to have cached, with their scopes."""
        return {row: (state.text[: self._cached_tokens(state)], state.scope) for row, state in enumerate(self.active)}

    def _cached_tokens(self, state: RequestState) -> int:
        """A lower bound of the tokens that target and drafter both have: the drafter may lack those of the last
        step."""
        return max(state.prefilled, len(state.text) - 1 - self.widest)

    def _copy_prefixes(self, known: list[tuple[int, int]]) -> None:
        """Copy prefixes (row, tokens) into the rows of the cohort, and move prefixes out of rows that are about to
        be overwritten."""
        first, rows = len(self.active), len(self.memory)
        copied = [(source, row, count) for row, (source, count) in enumerate(known, start=first) if source != row]
        displaced = [row for row, (source, count) in enumerate(known, start=first) if source != row or count == 0]
        copied += self.prefixes.relocate(displaced, range(first + len(known), rows))
        if copied:
            sources, targets, counts = (list(column) for column in zip(*copied, strict=True))
            self.memory.copy_caches(sources, targets, max(counts))

    def prefill_window(self) -> Any:
        """The target's session of the rows that prefill."""
        first, longest = len(self.active), max(state.prefilled for state in self.prefilling)
        return self.parts.target.window(self.memory.session, first, first + len(self.prefilling), longest)

    def activate(self) -> None:
        """Let the cohort, whose prompts are prefilled, take part in steps."""
        rows, _, _ = self.memory.opened()
        rows.activate(len(self.active), len(self.prefilling))
        self.active += self.prefilling
        self.prefilling = []

    def remove(self, ended: Sequence[RequestState], launched: int) -> None:
        """Move rows so that the active ones come first, then those that prefill, then those that have ended, whose
        prefixes are kept. `launched` steps have not been read, and may have added tokens."""
        rows, _, _ = self.memory.opened()
        gone, before, running = set(ended), [*self.active, *self.prefilling], len(self.active)
        cached = [self._cached_tokens(s) if row < running else s.prefilled for row, s in enumerate(before)]
        order = _compacted(before, running, gone)
        remaining = [before[row] for row in order if before[row] not in gone]
        count = sum(state not in gone for state in self.active)
        self.active, self.prefilling = remaining[:count], remaining[count:]
        moved = [(old, new) for new, old in enumerate(order) if old != new]
        if moved:
            sources, targets = [old for old, _ in moved], [new for _, new in moved]
            longest = max(len(before[old].text) for old in sources) + (launched + 1) * self.widest
            rows.copy_rows(sources, targets)
            self.memory.copy_caches(sources, targets, min(longest, self.memory.slots))
        first = len(remaining)
        rows.deactivate(first, len(before) - first)
        for new in range(first, len(before)):
            self._keep_prefix(new, before[order[new]], cached[order[new]])

    def _keep_prefix(self, row: int, state: RequestState, cached: int) -> None:
        """Keep the first `cached` tokens of a request that has ended, unless they cannot be trusted."""
        is_sound = state.delivery.error is None and state.request.prompt_logprobs is None
        if self.reuses_prefixes and is_sound:
            self.prefixes.keep(row, state.text[:cached], state.scope)
        else:
            self.prefixes.drop(row)

    def clear(self) -> None:
        """Forget all requests and prefixes, and free the memory of the rows."""
        self.active, self.prefilling = [], []
        self.prefixes.clear()
        self.memory.close()


def _compacted(before: Sequence[RequestState], active: int, gone: set[RequestState]) -> list[int]:
    """Return the old row of each new row, such that few rows move: active, prefilling, ended. Before, the first
    `active` rows were active and the others prefilled."""
    groups: list[Callable[[int], bool]] = [
        lambda row: row < active and before[row] not in gone,
        lambda row: row >= active and before[row] not in gone,
        lambda row: before[row] in gone,
    ]
    order = [-1] * len(before)
    start = 0
    for belongs in groups:
        rows = [row for row in range(len(before)) if belongs(row)]
        places = range(start, start + len(rows))
        staying = {row for row in rows if row in places}
        movers = iter(row for row in rows if row not in staying)
        for place in places:
            order[place] = place if place in staying else next(movers)
        start += len(rows)
    return order
