"""What a witness is given of a step: what the verdict was made of, and what came out, in memory of its own.

A witness checks steps while the engine runs: see `spectr.audit.witness`. The engine knows what is written here, and
nothing of how a step is checked.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from spectr.engine.request import Request
from spectr.types import Draft
from spectr.verify import Rule

__all__ = ["Evidence", "PendingEvidence", "RowVerdict", "StepRecord", "WatchedRow", "Witness", "copy_evidence"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict was made of."""

    draft: Draft
    logits: Tensor  # (B, N, V): the target's, before any policy
    allowed: Tensor | None = None  # (B, N, V) bool: what grammars let follow, where some row has one


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """What was decided for one row, before its text was cut where it ends."""

    tokens: tuple[int, ...]  # the accepted ones, and the one after them
    accepted: int
    corrected: bool
    count: int  # how many of the tokens belong to the text
    finish_reason: str | None
    fault: int  # why there was no distribution after those, see `readout`


@dataclass(frozen=True, slots=True)
class WatchedRow:
    """A row that took part in a step."""

    row: int  # where it stands in the tensors
    request: Request
    text: tuple[int, ...]  # prompt and text before the step, as they were delivered
    verdict: RowVerdict


@dataclass(slots=True)
class PendingEvidence:
    """Evidence on its way to the host."""

    held: Evidence
    event: Any = None

    def wait(self) -> Evidence:
        """The evidence, once it is there."""
        if self.event is not None:
            self.event.synchronize()
        return self.held


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of some rows."""

    rule: Rule
    stops: frozenset[int]  # tokens that end every text
    rows: list[WatchedRow]
    evidence: PendingEvidence


class Witness(Protocol):
    """Something that checks steps."""

    def wants_step(self) -> bool:
        """Whether it wants a record of the next step; asked once for each step."""
        ...

    def add(self, record: StepRecord) -> None:
        """Take a record; must return at once."""
        ...


def copy_evidence(evidence: Evidence, rows: int, *, laws: bool) -> PendingEvidence:
    """Copy what belongs to the first rows, with the draft laws if they are wanted, without waiting. On a GPU the copies
    are queued behind the step, on the same stream: the next replay of a graph writes over what it read and made."""
    is_late = evidence.logits.device.type == "cuda"

    def copied(values: Tensor | None) -> Any:
        if values is None:
            return None
        if not is_late:
            return values[:rows].clone()
        held = torch.empty((rows, *values.shape[1:]), dtype=values.dtype, pin_memory=True)
        return held.copy_(values[:rows], non_blocking=True)

    held = Evidence(_each(evidence.draft, copied, laws), copied(evidence.logits), copied(evidence.allowed))
    if not is_late:
        return PendingEvidence(held)
    event = torch.cuda.Event()
    event.record()
    return PendingEvidence(held, event)


def _each(draft: Draft, copied: Callable[[Tensor | None], Any], laws: bool) -> Draft:
    """A draft with copies of what a verdict depends on."""
    return replace(
        draft, tokens=copied(draft.tokens), parents=copied(draft.parents), alive=copied(draft.alive),
        fixed=copied(draft.fixed), laws=copied(draft.laws) if laws else None, predicted=None, origin=None,
    )  # fmt: skip
