"""What the host reads of a step: a few integers for each row, and log-probabilities if they were asked for."""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import torch
from torch import Tensor

from spectr.engine.metrics import StepCounts, child_ranks
from spectr.engine.record import Evidence, RowVerdict
from spectr.engine.request import StepTree, TokenLogprobs, TreeNode
from spectr.errors import ArgumentError, LawError
from spectr.rows import cached_arange
from spectr.trees import Topology
from spectr.types import ORIGINS, Draft, Verdict

__all__ = ["Fault", "HostReadout", "PendingReadout", "RowReadout", "StepReadout", "copy_to_host", "pack"]

_REASONS = (None, "stop", "length")
_FIELDS = 7  # integers of a row before its tokens


class Fault(IntEnum):
    """Why a row has no distribution to sample a token from."""

    NONE = 0  # it has one
    NONFINITE_LOGITS = 1  # the target's logits are NaN or infinite
    NO_TOKEN_LEFT = 2  # the settings of the policy exclude every token
    GRAMMAR_DEAD_END = 3  # the grammar admits no token


@dataclass(frozen=True, slots=True)
class TreeReadout:
    """The trees of a step as tensors."""

    nodes: Tensor  # (B, N, 4) int64: token, parent, whether it is alive, index in ORIGINS or -1
    probabilities: Tensor  # (B, N, 2) float32: of the token under the draft, -1 if unknown, and under the target
    path: Tensor  # (B, D) int64: accepted nodes, padded with -1
    added: Tensor  # (B,) float32: the probability of the token that was added


@dataclass(frozen=True, slots=True)
class StepReadout:
    """A step as tensors."""

    numbers: Tensor  # (B, 8 + 2 D) int64, see `pack`
    logprobs: Tensor | None = None  # (B, D + 1, 1 + K) float32: of the token, and of the likeliest
    likeliest: Tensor | None = None  # (B, D + 1, K) int64
    best: Tensor | None = None  # (B, D + 1): the acceptance probabilities of the best coupling
    tree: TreeReadout | None = None
    evidence: Evidence | None = None  # for the witness; stays on the device

    @property
    def width(self) -> int:
        """The most tokens that the step can have added to a row."""
        return (self.numbers.shape[1] - _FIELDS + 1) // 2


@dataclass(frozen=True, slots=True)
class RowReadout:
    """What a step did to one row."""

    tokens: list[int]  # cut at a stop token, at the limit, and where there was no distribution
    finish_reason: str | None
    counts: StepCounts
    logprobs: list[TokenLogprobs] | None
    error: Exception | None  # why no token could be sampled after these
    tree: StepTree | None = None


def pack(draft: Draft, tree: Topology, verdict: Verdict, ended: tuple[Tensor, Tensor, Tensor], fault: Tensor) -> Tensor:
    """Pack a step into integers (B, 8 + 2 D). Each row has the number of accepted nodes, whether the last token is a
    correction, the number of nodes drafted, the fault, how many tokens belong to the text, why the text ends, how many
    tokens agree with its prediction; then the D + 1 tokens and the ranks of the D accepted nodes. `ended` are the
    emitted tokens (B, D + 1), their count (B,) and the reason (B,)."""
    emitted, count, reason = ended
    ranks = child_ranks(tree, verdict) if draft.tokens.shape[1] > 1 else torch.zeros_like(verdict.path)
    drafted = draft.alive.sum(-1) - 1
    predicted = _predicted(draft, emitted, count)
    fields = [verdict.length, verdict.corrected.long(), drafted, fault, count, reason, predicted]
    return torch.cat([torch.stack(fields, -1), emitted, ranks], 1)


def _predicted(draft: Draft, emitted: Tensor, count: Tensor) -> Tensor:
    """(B,): how many of the first `count` (B,) emitted tokens (B, D + 1) agree with the row's prediction, up to the
    first that differs."""
    if draft.predicted is None:
        return torch.zeros_like(count)
    width = min(emitted.shape[1], draft.predicted.shape[1])
    places = cached_arange(width, emitted.device)
    same = (emitted[:, :width] == draft.predicted[:, :width]) & (places < count[:, None])
    return same.long().cumprod(-1).sum(-1)


@dataclass(slots=True)
class PendingReadout:
    """A readout on its way to the host."""

    copy: StepReadout
    event: Any = None

    def wait(self, origin: str = "drafter") -> "HostReadout":
        """Wait for the copy. `origin` is the origin of drafts that do not name one."""
        if self.event is not None:
            self.event.synchronize()
        return HostReadout(self.copy, origin)


def copy_to_host(readout: StepReadout) -> PendingReadout:
    """Copy a readout to the host without waiting. Each copy has its own memory, because the next step may be launched
    before it is read."""
    if readout.numbers.device.type != "cuda":
        return PendingReadout(readout)

    def pinned(values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        copy = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        return copy.copy_(values, non_blocking=True)

    numbers = pinned(readout.numbers)
    assert numbers is not None
    tree = readout.tree
    if tree is not None:
        parts: list[Any] = [pinned(part) for part in (tree.nodes, tree.probabilities, tree.path, tree.added)]
        tree = TreeReadout(*parts)
    copy = StepReadout(numbers, pinned(readout.logprobs), pinned(readout.likeliest), pinned(readout.best), tree)
    event = torch.cuda.Event()
    event.record()
    return PendingReadout(copy, event)


class HostReadout:
    """A readout on the host."""

    def __init__(self, readout: StepReadout, origin: str = "drafter") -> None:
        self._readout, self._origin = readout, origin
        self._rows: list[list[int]] = readout.numbers.tolist()

    @property
    def width(self) -> int:
        """The most tokens that the step can have added to a row."""
        return self._readout.width

    def row(self, row: int, top: int | None) -> RowReadout:
        """Return what a step did to one row, with log-probabilities of the `top` likeliest tokens unless `top` is
        None."""
        length, corrected, drafted, fault, count, reason, predicted, *rest = self._rows[row]
        ranks = rest[self.width :][:length]
        best = None if self._readout.best is None else self._readout.best[row].tolist()[: length + 1]
        counts = StepCounts(drafted, length + 1, bool(corrected), ranks, best, predicted).cut(count)
        error = _error(fault) if fault else None
        logprobs, tree = self._logprobs(row, count, top), self._tree(row)
        return RowReadout(rest[:count], _REASONS[reason], counts, logprobs, error, tree)

    def _tree(self, row: int) -> StepTree | None:
        """The tree of one row, without dead nodes."""
        if (trees := self._readout.tree) is None:
            return None
        path = [node for node in trees.path[row].tolist() if node >= 0]
        places, nodes = dict[int, int](), list[TreeNode]()
        for number, ((token, parent, alive, origin), (draft, target)) in enumerate(
            zip(trees.nodes[row].tolist(), trees.probabilities[row].tolist(), strict=True)
        ):
            if not alive:
                continue
            places[number] = len(nodes)
            name = self._origin if origin < 0 else ORIGINS[origin]
            known = number > 0, number in path, name
            nodes.append(_node(token, places.get(parent, 0), (draft, target), known))
        return StepTree(nodes, places[path[-1]] if path else 0, float(trees.added[row]))

    def verdict(self, row: int) -> RowVerdict:
        """Return what was decided for one row, for the witness."""
        length, corrected, _, fault, count, reason = self._rows[row][:6]
        tokens = self._rows[row][_FIELDS : _FIELDS + length + 1]
        return RowVerdict(tuple(tokens), length, bool(corrected), count, _REASONS[reason], fault)

    def _logprobs(self, row: int, count: int, top: int | None) -> list[TokenLogprobs] | None:
        if self._readout.logprobs is None or top is None:
            return None
        likeliest = self._readout.likeliest
        values = self._readout.logprobs[row, :count, : 1 + top].tolist()
        tokens = [[]] * count if likeliest is None else likeliest[row, :count, :top].tolist()
        return [TokenLogprobs(v[0], tuple(zip(t, v[1:], strict=True))) for v, t in zip(values, tokens, strict=True)]


def _node(token: int, parent: int, probabilities: tuple[float, float], known: tuple[bool, bool, str]) -> TreeNode:
    """A node; `known` is whether it is below the root, whether it was accepted, and its origin."""
    (draft, target), (is_draft, accepted, origin) = probabilities, known
    if not is_draft:
        return TreeNode(token, None, None, None, False, origin)
    return TreeNode(token, parent, None if draft < 0 else draft, target, accepted, origin)


def _error(fault: int) -> Exception:
    if fault == Fault.NONFINITE_LOGITS:
        return LawError(
            "the target's logits must be numbers, and after this text they are NaN or infinite; load it in another "
            'dtype, such as dtype="bfloat16" or "float32", or look at its weights'
        )
    if fault == Fault.GRAMMAR_DEAD_END:
        return ArgumentError(
            "a grammar must admit some token after every text that it admits so far, and after this text it admits "
            "none: it cannot be continued, or not with the tokens of this model; look at the rule that comes next"
        )
    return ArgumentError(
        "logit_bias, bad_words, suppress_tokens, begin_suppress_tokens, no_repeat_ngram_size, min_new_tokens, "
        "min_length, allowed, processors and grammar must leave at least one token, and they leave none after this text"
    )
