"""Rows that share a step: one rule, one drafter, one tree. Requests come and go, each in a row of its own.

Active rows stand in places 0 to A − 1, so that a step looks at no others; the rows behind them are reading their
prompts, a cohort at a time. A request that ends gives its place to another row. What is behind all of these is kept
until the room is needed: a request that begins like one of those texts, or like an active one, copies what they have in
common and reads the rest.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from spectr.draft.reference import LENGTH, ReferringDrafting
from spectr.engine.grammars import RowGrammars
from spectr.engine.handle import Delivery
from spectr.engine.prefix import Beginnings, common_start
from spectr.engine.readout import HostReadout, PendingReadout, StepReadout, copy_to_host
from spectr.engine.record import PendingEvidence, StepRecord, WatchedRow, Witness, copy_evidence
from spectr.engine.request import Request, Step, TokenLogprobs
from spectr.engine.rows import Rows
from spectr.engine.step import StepParts, run_step
from spectr.errors import ArgumentError
from spectr.grammar import GrammarWalk
from spectr.models.graphs import Captured
from spectr.policy import PolicyRows
from spectr.policy.history import HostText
from spectr.policy.rows import MASKED
from spectr.rows import cached_arange, copy_to_device
from spectr.types import Drafter, Drafting, Opening, TreeModel
from spectr.verify import Rule

__all__ = ["EngineParts", "Lane", "Seat"]

_SIZES = (256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
"""Slots of a row, and of the part of it that a captured step looks at."""
_ALONE = 8  # times as many prompt tokens are read at once where no other text goes on
_SCORED_CHUNK = 64  # prompt tokens read at once where their log-probabilities are wanted
_AHEAD = 512  # tokens that a row has room for beyond its text when it begins, if its limit is further away
_LIKELIEST = (0, 5, 20)  # how many log-probabilities captured steps give


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A target, a drafter and a rule that fit together, and how they are run."""

    target: TreeModel
    drafter: Drafter
    rule: Rule
    stops: frozenset[int] = frozenset()  # tokens that end every text
    rows: int = 64  # most requests that run at once
    captures: bool = False  # replay steps as graphs
    chunk: int = 512  # most prompt tokens that are read between two steps
    reuses: bool = True  # copy the beginning of a prompt from a text that began alike; benchmarks read every prompt
    kept: int = 4  # rows there are at least, where memory allows, so that texts that have ended can be gone on with
    policies: type[PolicyRows] = PolicyRows  # what computes the policies of rows; audits plant faults there
    witness: Witness | None = None  # checks some of the steps while they run
    forced: bool = True  # draft text that grammars force; benchmarks compare

    @property
    def drafts_forced_text(self) -> bool:
        """Under the race alone: under other rules the text depends on what is drafted."""
        return self.forced and self.rule.card.name == "race"


@dataclass(slots=True, eq=False)
class Seat:
    """A request in a lane: its text as far as the host has read it, and how much of that its row has."""

    delivery: Delivery
    text: list[int]
    read: int = 0  # tokens that target and drafter have read
    is_whole: bool = True  # its beginning may be copied
    host: HostText = field(default_factory=HostText)  # what users' functions see
    walk: GrammarWalk | None = None  # where its text stands in its grammar, once it has had a row

    @property
    def request(self) -> Request:
        """What is asked for."""
        return self.delivery.request

    @property
    def resumed(self) -> Request:
        """What is asked for, going on from the text so far."""
        return replace(self.request, generated=self.text[len(self.request.prompt) :])

    @property
    def scope(self) -> tuple[Any, str]:
        """What two requests must have in common for one to copy the beginning of the other."""
        return self.request.source, self.request.cache_scope

    @property
    def unread(self) -> int:
        """Tokens to read before it can take part in steps: all but the last."""
        return len(self.text) - 1 - self.read

    @property
    def is_done(self) -> bool:
        """Whether nothing more is wanted of it."""
        return self.delivery.has_ended or self.delivery.is_cancelled


@dataclass(frozen=True, slots=True)
class _Flight:
    """A step that was launched and not yet read: who stood in its rows."""

    seats: list[Seat]
    readout: PendingReadout
    marks: list[float]  # times before draft, target and rule, and after; none if it was replayed
    choice: int  # of the drafter
    evidence: PendingEvidence | None = None  # if a witness wants it


class Lane:
    """Requests that wait, read and run."""

    def __init__(self, parts: EngineParts, *, on_host: bool, optimality_gap: bool, traces: bool = False) -> None:
        self.parts, self.optimality_gap, self.traces = parts, optimality_gap, traces
        self.nodes = parts.drafter.nodes  # counted once: some drafters add up a tree
        self.device = parts.target.device
        can_be_late = self.device.type == "cuda" and not on_host and getattr(parts.drafter, "capturable", False)
        self.lag = 1 if can_be_late else 0
        self.reuses = parts.reuses and parts.target.keeps_beginnings
        self.captures = can_be_late and parts.captures and parts.rule.card.capturable
        self.captures = self.captures and not (optimality_gap or traces)  # those look at all distributions
        self.queue: deque[Seat] = deque()
        self.active: list[Seat] = []
        self.reading: list[Seat] = []
        self.flights: deque[_Flight] = deque()
        self.beginnings = Beginnings()
        self.graphs = Captured()
        self._rows: Rows | None = None
        self._session: Any = None
        self._drafting: Drafting | None = None
        self._slots = 0
        self._version = -1  # of the tensors that graphs were made with
        self._width = 1  # most tokens of the last step
        self._widest = 1  # of any step
        self._since = time.perf_counter()  # when the last step was read
        self._has_read_prompts = False  # since then
        self.starts_over = 0  # how often requests began again for want of memory
        self._reserves_all = False  # room up to the limit of a request is made when it begins

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.queue or self.reading or self.active or self.flights)

    @property
    def tokens(self) -> int:
        """Tokens of the texts that run or are being read."""
        return sum(len(seat.text) for seat in [*self.active, *self.reading])

    @property
    def room(self) -> int:
        """Tokens that all rows together have room for."""
        rows = self._rows
        return 0 if rows is None else len(rows) * self._slots

    def turn(self) -> None:
        """Let requests in, read a part of their prompts, and take one step of those that have read them."""
        with torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext():
            self._drop_cancelled()
            self._admit()
            if self.active and self._has_room_for_a_step():
                self._launch()
            while self.flights and (len(self.flights) > self.lag or not self.active):
                self._read(self.flights.popleft())
            while self.flights and all(seat.is_done for seat in self.flights[-1].seats):
                self.flights.pop()  # launched before the last of them had ended: nobody waits for it
            self._reserves_all &= not self.is_idle

    def fail(self, error: BaseException) -> None:
        """End every request with one error."""
        for seat in [*self.queue, *self.reading, *self.active]:
            seat.delivery.fail(error)

    # Requests come

    def _admit(self) -> None:
        """Seat requests and read their prompts, in the order they came, as far as the budget of a turn goes."""
        budget = self.parts.chunk * (1 if self.active else _ALONE)
        while self.reading or self._seat():
            budget -= self._read_prompts(budget)
            if self.reading or budget <= 0:
                return

    def _seat(self) -> bool:
        """Give rows to the requests that come next and whose prompts can be read together."""
        cohort: list[Seat] = []
        longest = 0
        while self.queue and len(self.active) + len(cohort) < self.parts.rows:
            seat = self.queue[0]
            if seat.is_done:
                self.queue.popleft()
                continue
            if cohort and not self._fits_in(seat, cohort, longest):
                break
            if not self._make_room(len(self.active) + len(cohort) + 1, seat):
                break
            longest = max(longest, len(seat.text))
            cohort.append(self.queue.popleft())
        if not cohort:
            return False
        self.reading = cohort
        self._begin(cohort)
        return True

    def _fits_in(self, seat: Seat, cohort: list[Seat], longest: int) -> bool:
        """Whether a request can read with others: the prompts are padded to the longest, and one that begins like
        another waits for it."""
        if seat.request.prompt_logprobs is not None or cohort[0].request.prompt_logprobs is not None:
            return False
        if max(longest, len(seat.text)) * (len(cohort) + 1) > max(self.parts.chunk, longest):
            return False
        if not self.reuses:
            return True
        known = self.beginnings.longest(seat.text, seat.scope, self._living())[1]
        alike = [other for other in cohort if other.scope == seat.scope]
        likeliest = max((common_start(seat.text[:-1], other.text[:-1]) for other in alike), default=0)
        return likeliest < max(known, 1) + self.beginnings.least

    def _begin(self, cohort: list[Seat]) -> None:
        """Put requests into the rows behind the active ones, with what is known of their beginnings."""
        rows, session, drafting = self._state()
        first = len(self.active)
        known = [self._known(seat, row) for row, seat in enumerate(cohort, start=first)]
        copied = [(source, row, count) for row, (source, count) in enumerate(known, start=first) if source != row]
        displaced = [row for row, (source, count) in enumerate(known, start=first) if source != row or count == 0]
        copied += self.beginnings.saved(displaced, range(first + len(cohort), len(rows)))
        if copied:
            sources, targets, counts = (list(column) for column in zip(*copied, strict=True))
            self.parts.target.copy_rows(session, sources, targets, max(counts))
            drafting.copy_rows(sources, targets, max(counts))
        rows.put(first, [seat.resumed for seat in cohort], self.parts.stops)
        for row, (seat, (_, count)) in enumerate(zip(cohort, known, strict=True), start=first):
            request, seat.host = seat.request, rows.history.host[row]
            seat.is_whole = drafting.begin(row, seat.text, request.limit, request.source)
            if isinstance(drafting, ReferringDrafting):
                drafting.predict(row, request.reference, len(request.prompt))
            seat.read = count if seat.is_whole else 0
            if len(seat.text) == len(request.tokens):
                seat.delivery.reused = seat.read
            if request.grammar is not None and seat.walk is None:
                seat.walk = request.grammar.walk(request.generated, self.parts.stops | request.stop_ids)
            if request.source is not None:
                self.parts.target.encode_row(session, row, list(request.source))
            self.beginnings.forget(row)
        starts = [seat.read for seat in cohort]
        self.parts.target.rewind(self._window(session, first, first + len(cohort)), starts)

    def _known(self, seat: Seat, row: int) -> tuple[int, int]:
        """The row whose text begins most like this one, and how many of its tokens can be taken."""
        if not self.reuses or seat.request.prompt_logprobs is not None:
            return row, 0
        return self.beginnings.longest(seat.text, seat.scope, self._living(), here=row)

    def _living(self) -> dict[int, tuple[list[int], Any]]:
        """What the active rows surely have read."""
        return {
            row: (seat.text[: self._surely_read(seat)], seat.scope)
            for row, seat in enumerate(self.active)
            if seat.is_whole
        }

    def _surely_read(self, seat: Seat) -> int:
        """Tokens that target and drafter have both read: the drafter may lack those of the last step."""
        return max(seat.read, len(seat.text) - 1 - self._widest)

    def _read_prompts(self, budget: int) -> int:
        """Read on in the prompts of the cohort; those that are read take part in the next step. How many tokens it
        were."""
        first, cohort = len(self.active), self.reading
        if cohort[0].request.prompt_logprobs is not None:
            count = self._score_prompt(cohort[0], first)
        else:
            width = max(1, budget // len(cohort))
            texts = [seat.text[seat.read : min(len(seat.text) - 1, seat.read + width)] for seat in cohort]
            self._read_along(first, texts)
            count = sum(map(len, texts))
        self._has_read_prompts = True
        if any(seat.unread > 0 for seat in cohort):
            return count
        rows, _, _ = self._state()
        rows.activate(first, len(cohort))
        self.active += cohort
        self.reading = []
        return count

    def _read_along(self, first: int, texts: list[list[int]]) -> None:
        """Target and drafter read more of the cohort's prompts."""
        _, session, drafting = self._state()
        starts = [seat.read for seat in self.reading]
        if any(texts):
            window = self._window(session, first, first + len(texts))
            self.parts.target.read(window, texts, starts)
        drafting.read(first, texts, starts)
        for seat, text in zip(self.reading, texts, strict=True):
            seat.read += len(text)

    def _score_prompt(self, seat: Seat, row: int) -> int:
        """Read a part of a prompt and look at the distribution of each of its tokens."""
        _, session, drafting = self._state()
        tokens = seat.text[seat.read : min(len(seat.text) - 1, seat.read + _SCORED_CHUNK)]
        top = seat.request.prompt_logprobs or 0
        found = seat.delivery.prompt_logprobs or [None]
        if tokens:
            window = self.parts.target.window(session, row, row + 1, seat.read)
            ids = copy_to_device([tokens], self.device)
            places = cached_arange(len(tokens), self.device)
            logits = self.parts.target.score(window, ids, (places[:, None] >= places)[None], places[None])
            self.parts.target.keep(window, places[None])
            following = seat.text[seat.read + 1 : seat.read + 1 + len(tokens)]
            found = [*found, *_prompt_logprobs(logits[0], following, top)]
        drafting.read(row, [tokens], [seat.read])
        seat.read += len(tokens)
        seat.delivery.prompt_logprobs = found[: len(seat.request.prompt)]
        return len(tokens)

    # Steps

    def _launch(self) -> None:
        """Take one step of the active rows."""
        rows, session, drafting = self._state()
        count = len(self.active)
        if not self.flights:
            self._since = time.perf_counter()  # the time before belongs to no step
        wide = min(1 << (count - 1).bit_length(), len(rows)) if self.captures else count
        choice = drafting.choose(count)
        features = rows.features(count, exactly=not self.captures)
        grammars = self._grammars()
        if isinstance(drafting, ReferringDrafting):
            for row, seat in enumerate(self.active):
                if seat.walk is not None:
                    drafting.refer(row, seat.walk.forced(LENGTH))
        features |= frozenset() if grammars is None else {MASKED}
        longest = max(len(seat.text) for seat in self.active) + len(self.flights) * self._widest
        if self.captures:
            longest = self._looked_at(longest)
        asks = self.device.type == "cpu" or drafting.is_behind
        parts = StepParts(
            self.parts.target, None, drafting, self.parts.rule, rows.window(wide), features, longest,
            None if asks else self._width, self._wanted_logprobs(), self.optimality_gap,
            self.traces, self.parts.witness is not None, grammars,
        )  # fmt: skip

        def step(marks: list[float]) -> StepReadout:
            return run_step(replace(parts, session=self.parts.target.window(session, 0, wide, longest)), marks)

        marks: list[float] = []
        if self.captures and not asks:
            version = rows.version + getattr(drafting, "version", 0)
            if self._version != version:
                self.graphs, self._version = Captured(), version
            reach = parts.rows.policies.reach if "no_repeat_ngram_size" in features else 0
            key = (wide, longest, choice, features, parts.unread, parts.logprobs, reach)
            found = self.graphs(key, lambda _: step([]), rows.active)
        else:
            found = step(marks)
        readout = copy_to_host(found)
        self._width = found.width
        self._widest = max(self._widest, self._width)
        self.flights.append(_Flight(list(self.active), readout, marks, choice, self._evidence(found)))

    def _evidence(self, readout: StepReadout) -> PendingEvidence | None:
        """A copy of what the step just launched decides with, if a witness wants this step."""
        witness = self.parts.witness
        if witness is None or readout.evidence is None or not witness.wants_step():
            return None
        return copy_evidence(readout.evidence, len(self.active), laws=self.parts.rule.card.needs_laws)

    def _grammars(self) -> RowGrammars | None:
        """Those of the active rows, if some have one. Under the race the text does not depend on drafts, so that where
        the host would have to wait for each depth, the first depth alone is masked."""
        walks = [seat.walk for seat in self.active]
        if not any(walks):
            return None
        masks_all = self.device.type == "cpu" or self.parts.rule.card.name != "race"
        return RowGrammars(walks, self.parts.target.vocabulary, self.device, masks_all)

    def _looked_at(self, longest: int) -> int:
        """The bound that stands in a captured step: one of few."""
        most = self.nodes
        return min(next((size for size in _SIZES if size >= longest + most), self._slots), self._slots) - most

    def _wanted_logprobs(self) -> int | None:
        """How many log-probabilities the active rows want at most; one of few where steps are captured."""
        wanted = max((-1 if s.request.logprobs is None else s.request.logprobs for s in self.active), default=-1)
        if wanted < 0:
            return None
        return next((count for count in _LIKELIEST if count >= wanted), wanted) if self.captures else wanted

    def _read(self, flight: _Flight) -> None:
        """Tell the requests of a step what it gave them, and let those go that have ended."""
        readout, ended, tokens = flight.readout.wait(self._usual_origin(flight.choice)), list[Seat](), 0
        self._show(flight, readout)
        now = time.perf_counter()
        took = [self._since, self._since, now, now]  # a replayed step is one piece, and counts as the target's
        for row, seat in enumerate(flight.seats):
            if seat.is_done:
                continue
            step = self._told(seat, readout, row, flight.marks or took)
            tokens += 0 if step is None else len(step.tokens)
            if step is None or step.finish_reason is not None:
                ended.append(seat)
        if flight.marks or not self._has_read_prompts:
            seconds = flight.marks[-1] - flight.marks[0] if flight.marks else now - self._since
            self._state()[2].observe(len(flight.seats), flight.choice, tokens / len(flight.seats), seconds)
        self._since, self._has_read_prompts = now, False
        if ended:
            self._let_go(ended)

    def _usual_origin(self, choice: int) -> str:
        """Where drafts come from in a step that says nothing else."""
        drafter: Any = self.parts.drafter
        chosen = drafter.drafters[choice] if hasattr(drafter, "drafters") else drafter
        return "lookup" if chosen.name == "lookup" else "drafter"

    def _show(self, flight: _Flight, readout: HostReadout) -> None:
        """Give the witness a step that it wants, with the texts as they were before it: steps are read in order."""
        if flight.evidence is None or self.parts.witness is None:
            return
        rows = [
            WatchedRow(row, seat.request, tuple(seat.text), readout.verdict(row))
            for row, seat in enumerate(flight.seats)
            if not seat.is_done
        ]
        self.parts.witness.add(StepRecord(self.parts.rule, self.parts.stops, rows, flight.evidence))

    def _told(self, seat: Seat, readout: HostReadout, row: int, marks: list[float]) -> Step | None:
        """Deliver what a step did to one row; None if it failed, which ends this request and no other."""
        request = seat.request
        try:
            found = readout.row(row, request.logprobs)
            text, end = ("", None) if request.reader is None else request.reader.feed(found.tokens)
            count = len(found.tokens) if end is None else end
            seat.host.commit(found.tokens[:count])  # an error beyond the end of the text is none
            if seat.walk is not None:
                seat.walk.commit(found.tokens[:count])
                if end is None and seat.walk.error is not None:
                    raise seat.walk.error
            if end is None and found.error is not None:
                raise found.error
            reason = found.finish_reason if end is None else "stop"
            if reason is not None and request.reader is not None:
                text += request.reader.finish()
        except Exception as error:
            seat.delivery.fail(error)
            return None
        counted = found.counted.cut(count)
        seat.text += found.tokens[:count]
        logprobs = None if found.logprobs is None else found.logprobs[:count]
        step = Step(
            found.tokens[:count], len(counted.ranks), counted.corrected, reason, logprobs, text, counted.drafted,
            found.tree,
        )  # fmt: skip
        seat.delivery.add(step, counted, marks)
        return step

    # Requests go

    def _drop_cancelled(self) -> None:
        """Let go of those that nobody waits for; in the queue they are passed over when their turn comes."""
        gone = [seat for seat in [*self.active, *self.reading] if seat.is_done]
        if gone:
            self._let_go(gone)

    def _let_go(self, ended: Sequence[Seat]) -> None:
        """Rows change places, so that those that go on stand first, then those that read, then those that ended."""
        rows, session, drafting = self._state()
        gone, before = set(ended), [*self.active, *self.reading]
        running = len(self.active)
        known = [self._surely_read(seat) if row < running else seat.read for row, seat in enumerate(before)]
        order = _compacted(before, running, gone)
        going = [before[row] for row in order if before[row] not in gone]
        count = sum(seat not in gone for seat in self.active)
        self.active, self.reading = going[:count], going[count:]
        moved = [(old, new) for new, old in enumerate(order) if old != new]
        if moved:
            sources, targets = [old for old, _ in moved], [new for _, new in moved]
            most = max(len(before[old].text) for old in sources) + (len(self.flights) + 1) * self._widest
            most = min(most, self._slots)
            rows.copy_rows(sources, targets)
            self.parts.target.copy_rows(session, sources, targets, most)
            drafting.copy_rows(sources, targets, most)
        first = len(self.active) + len(self.reading)
        rows.deactivate(first, len(before) - first)
        for new in range(first, len(before)):
            old = order[new]
            seat = before[old]
            is_sound = seat.delivery.error is None and seat.request.prompt_logprobs is None
            if self.reuses and seat.is_whole and is_sound:
                self.beginnings.keep(new, seat.text[: known[old]], seat.scope)
            else:
                self.beginnings.forget(new)

    # Room

    def _state(self) -> tuple[Rows, Any, Drafting]:
        """What the rows have, the target's session and the drafter's."""
        assert self._rows is not None
        assert self._drafting is not None
        return self._rows, self._session, self._drafting

    def _window(self, session: Any, first: int, stop: int) -> Any:
        """The rows that read, as a session."""
        longest = max(seat.read for seat in self.reading)
        return self.parts.target.window(session, first, stop, longest)

    def _make_room(self, rows: int, seat: Seat) -> bool:
        """Room for so many rows, one of them for a request; False if it has to wait for others to end. What there is no
        room for at all ends with an error."""
        needed = self._needed(len(seat.text) + _AHEAD, seat)
        wanted = max(rows, min(self.parts.kept, rows + len(self.beginnings), self.parts.rows))
        if self._rows is not None and wanted <= len(self._rows) and needed <= self._slots:
            return True
        slots = max(self._slots, next((size for size in _SIZES if size >= needed), needed))
        try:
            self._grow(wanted, slots)
            return True
        except (ArgumentError, torch.OutOfMemoryError):
            self.beginnings.clear()
        try:
            self._grow(rows, slots)
        except (ArgumentError, torch.OutOfMemoryError) as error:
            if self.active or self.reading or rows > 1:
                return False
            self.close()
            try:
                self._grow(1, needed)
            except (ArgumentError, torch.OutOfMemoryError):
                self.queue.popleft().delivery.fail(error)
                return False
        return True

    def _needed(self, length: int, seat: Seat) -> int:
        """Slots of a row for a request whose text has so many tokens at most for now."""
        longest = seat.request.limit if self._reserves_all else min(seat.request.limit, length)
        return longest + 3 * self.nodes + 2

    def _has_room_for_a_step(self) -> bool:
        """Make room for what another step may add; where memory is short, requests begin again, the first first."""
        ahead = (len(self.flights) + 1) * max(self._widest, self.nodes)
        needed = max(self._needed(len(seat.text) + ahead, seat) for seat in self.active)
        if needed <= self._slots:
            return True
        slots = next((size for size in _SIZES if size >= needed), needed)
        try:
            self._grow(len(self._state()[0]), slots)
        except (ArgumentError, torch.OutOfMemoryError):
            self._start_over()
        return bool(self.active)

    def _start_over(self) -> None:
        """Give all room back and queue every request again with its text so far: as many as there is room for run on,
        the others wait."""
        while self.flights:
            self._read(self.flights.popleft())
        waiting = [seat for seat in [*self.active, *self.reading] if not seat.is_done]
        for seat in waiting:
            seat.read, seat.delivery.prompt_logprobs = 0, None
        self.active, self.reading = [], []
        self.queue.extendleft(reversed(waiting))
        self.close()
        self._reserves_all = True
        self.starts_over += 1

    def _grow(self, rows: int, slots: int) -> None:
        """Room for so many rows and tokens."""
        if self._rows is None:
            self._open(rows, slots)
            return
        if rows <= len(self._rows) and slots <= self._slots:
            return
        rows = max(len(self._rows), 1 << (rows - 1).bit_length()) if rows > len(self._rows) else len(self._rows)
        rows, slots = min(rows, max(self.parts.rows, 1)), max(slots, self._slots)
        if self.captures:
            self.graphs = Captured()
        self.parts.target.make_room(self._session, rows, slots)
        self._state()[2].make_room(rows, slots)
        self._rows.make_room(rows, slots)
        self._slots = slots

    def _open(self, rows: int, slots: int) -> None:
        """The first rows."""
        if self.device.type == "cuda":
            rows, slots = max(rows, min(self.parts.kept, self.parts.rows)), max(slots, 1024)
        target, drafter = self.parts.target, self.parts.drafter
        with torch.inference_mode(False):
            session = target.open(rows, slots, features=getattr(drafter, "wants_features", None))
            if self.parts.captures:
                target.capture_prefill(session)
            opening = Opening(rows, slots, target.vocabulary, session, self.device, self.parts.captures)
            drafting = drafter.open(opening)
        self._rows = Rows(rows, slots, target.vocabulary, self.device, self.parts.policies)
        self._session, self._drafting, self._slots = session, drafting, slots

    def close(self) -> None:
        """Give all room back."""
        self._rows = self._session = self._drafting = None
        self._slots = 0
        self.graphs, self.beginnings = Captured(), Beginnings()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


def _compacted(before: Sequence[Seat], active: int, gone: set[Seat]) -> list[int]:
    """Which old row stands in each place, so that few move: the active ones, those that read, those that ended."""
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


def _prompt_logprobs(logits: torch.Tensor, following: list[int], top: int) -> list[TokenLogprobs]:
    """Of each token that follows, under the distribution (T, V) before it, and of the likeliest."""
    law = logits.float().log_softmax(-1)
    own = law.gather(-1, torch.tensor(following, device=law.device)[:, None])[:, 0].tolist()
    best = law.topk(min(top, law.shape[-1]), -1)
    likeliest = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [TokenLogprobs(v, tuple(zip(*b, strict=True))) for v, b in zip(own, likeliest, strict=True)]
