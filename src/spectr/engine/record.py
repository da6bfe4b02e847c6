"""Records of steps for a witness, which checks them while the engine runs (see `spectr.audit.witness`).

A record has copies of what the verdict was computed from and of what came out. The engine does not depend on how a step
is checked.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from spectr.engine.request import Request
from spectr.types import Draft
from spectr.verify import Rule

__all__ = ["Evidence", "PendingEvidence", "RecordedRow", "RowVerdict", "StepRecord", "StepWitness", "copy_evidence"]


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a verdict was computed from."""

    draft: Draft
    logits: Tensor  # (B, N, V): the target's, before any policy
    allowed: Tensor | None = None  # (B, N, V) bool: the tokens that grammars allow; None if no row has one


@dataclass(frozen=True, slots=True)
class RowVerdict:
    """What was decided for one row, before its text was cut at its end."""

    tokens: tuple[int, ...]  # the accepted tokens, and the one after them
    accepted: int
    corrected: bool
    count: int  # how many of the tokens belong to the text
    finish_reason: str | None
    fault: int  # a `Fault` of `readout`


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """A row that took part in a step."""

    row: int  # its index in the tensors
    request: Request
    text: tuple[int, ...]  # prompt and text before the step, as they were delivered
    verdict: RowVerdict


@dataclass(slots=True)
class PendingEvidence:
    """Evidence that is being copied to the host."""

    copy: Evidence
    event: Any = None

    def wait(self) -> Evidence:
        """Wait for the copy and return it."""
        if self.event is not None:
            self.event.synchronize()
        return self.copy


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step and the rows that took part."""

    rule: Rule
    stops: frozenset[int]  # tokens that end every text
    rows: list[RecordedRow]
    evidence: PendingEvidence


class StepWitness(Protocol):
    """Checks steps while the engine runs."""

    def wants_step(self) -> bool:
        """Whether the witness wants a record of the next step; called once per step."""
        ...

    def add(self, record: StepRecord) -> None:
        """Take a record; must return at once."""
        ...


def copy_evidence(evidence: Evidence, rows: int, *, laws: bool) -> PendingEvidence:
    """Copy the evidence of the first rows, with the draft distributions if `laws`, without waiting. On a GPU the
    copies are queued behind the step on the same stream, because the next replay of a graph overwrites its tensors."""
    on_gpu = evidence.logits.device.type == "cuda"

    def copied(values: Tensor | None) -> Any:
        if values is None:
            return None
        if not on_gpu:
            return values[:rows].clone()
        copy = torch.empty((rows, *values.shape[1:]), dtype=values.dtype, pin_memory=True)
        return copy.copy_(values[:rows], non_blocking=True)

    copy = Evidence(_copied_draft(evidence.draft, copied, laws), copied(evidence.logits), copied(evidence.allowed))
    if not on_gpu:
        return PendingEvidence(copy)
    event = torch.cuda.Event()
    event.record()
    return PendingEvidence(copy, event)


def _copied_draft(draft: Draft, copied: Callable[[Tensor | None], Any], laws: bool) -> Draft:
    """A draft with copies of the tensors that a verdict depends on."""
    return replace(
        draft, tokens=copied(draft.tokens), parents=copied(draft.parents), alive=copied(draft.alive),
        fixed=copied(draft.fixed), laws=copied(draft.laws) if laws else None, predicted=None, origin=None,
    )  # fmt: skip
