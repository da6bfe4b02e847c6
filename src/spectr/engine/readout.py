"""What the host reads of a step: a few whole numbers for each row, and log-probabilities where they were asked for."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectr.engine.metrics import Counted, child_ranks
from spectr.engine.record import Evidence, RowVerdict
from spectr.engine.request import StepTree, TokenLogprobs, TreeNode
from spectr.errors import ArgumentError, LawError
from spectr.rows import cached_arange
from spectr.trees import Topology
from spectr.types import ORIGINS, Draft, Verdict

__all__ = ["HostReadout", "PendingReadout", "RowReadout", "StepReadout", "copy_to_host", "pack"]

_REASONS = (None, "stop", "length")
_FIELDS = 7  # numbers of a row before its tokens
SOUND, NO_NUMBERS, NO_TOKENS, NO_WAY_ON = 0, 1, 2, 3  # what is wrong with a row


@dataclass(frozen=True, slots=True)
class TreeReadout:
    """The trees of a step as tensors."""

    nodes: Tensor  # (B, N, 4) int64: token, parent, whether it is alive, place in ORIGINS or -1
    chances: Tensor  # (B, N, 2) float32: of the token under the draft's distribution, -1 if unknown, and the model's
    path: Tensor  # (B, D) int64: accepted nodes, padded with -1
    added: Tensor  # (B,) float32: the chance of the token that was added


@dataclass(frozen=True, slots=True)
class StepReadout:
    """A step as tensors."""

    numbers: Tensor  # (B, 8 + 2 D) int64, see `pack`
    logprobs: Tensor | None = None  # (B, D + 1, 1 + K) float32: of the token, and of the likeliest
    likeliest: Tensor | None = None  # (B, D + 1, K) int64
    best: Tensor | None = None  # (B, D + 1): what the best coupling would accept
    tree: TreeReadout | None = None
    evidence: Evidence | None = None  # for a witness; stays on the device

    @property
    def width(self) -> int:
        """Most tokens that a row can have got."""
        return (self.numbers.shape[1] - _FIELDS + 1) // 2


@dataclass(frozen=True, slots=True)
class RowReadout:
    """What a step did to one row."""

    tokens: list[int]  # cut at a stop token and at the limit, and where there was no distribution
    finish_reason: str | None
    counted: Counted
    logprobs: list[TokenLogprobs] | None
    error: Exception | None  # why no token could be drawn after these
    tree: StepTree | None = None


def pack(draft: Draft, tree: Topology, verdict: Verdict, ended: tuple[Tensor, Tensor, Tensor], fault: Tensor) -> Tensor:
    """(B, 8 + 2 D) int64: of each row the accepted nodes, whether it was corrected, the nodes drafted, what is wrong
    with it, how many tokens belong to the text, why it ends and how many tokens its reference predicted; the tokens,
    and the rank of each accepted one. `ended` are the tokens emitted (B, D + 1), their count (B,) and the reason
    (B,)."""
    emitted, count, reason = ended
    ranks = child_ranks(tree, verdict) if draft.tokens.shape[1] > 1 else torch.zeros_like(verdict.path)
    drafted = draft.alive.sum(-1) - 1
    predicted = _predicted(draft, emitted, count)
    fields = [verdict.length, verdict.corrected.long(), drafted, fault, count, reason, predicted]
    return torch.cat([torch.stack(fields, -1), emitted, ranks], 1)


def _predicted(draft: Draft, emitted: Tensor, count: Tensor) -> Tensor:
    """(B,): how many of the first `count` (B,) emitted tokens (B, D + 1), up to the first that differs, are what the
    row's reference says."""
    if draft.predicted is None:
        return torch.zeros_like(count)
    width = min(emitted.shape[1], draft.predicted.shape[1])
    places = cached_arange(width, emitted.device)
    same = (emitted[:, :width] == draft.predicted[:, :width]) & (places < count[:, None])
    return same.long().cumprod(-1).sum(-1)


@dataclass(slots=True)
class PendingReadout:
    """A readout on its way to the host."""

    held: StepReadout
    event: Any = None

    def wait(self, origin: str = "drafter") -> "HostReadout":
        """What it says, once it is there; `origin` is where drafts come from that say nothing else."""
        if self.event is not None:
            self.event.synchronize()
        return HostReadout(self.held, origin)


def copy_to_host(readout: StepReadout) -> PendingReadout:
    """Send a readout to the host without waiting. Each goes into memory of its own: the step after it may be launched
    before it is read."""
    if readout.numbers.device.type != "cuda":
        return PendingReadout(readout)

    def copy_to_device(values: Tensor | None) -> Tensor | None:
        if values is None:
            return None
        held = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        return held.copy_(values, non_blocking=True)

    numbers = copy_to_device(readout.numbers)
    assert numbers is not None
    tree = readout.tree
    if tree is not None:
        parts: list[Any] = [copy_to_device(part) for part in (tree.nodes, tree.chances, tree.path, tree.added)]
        tree = TreeReadout(*parts)
    held = StepReadout(
        numbers, copy_to_device(readout.logprobs), copy_to_device(readout.likeliest), copy_to_device(readout.best), tree
    )
    event = torch.cuda.Event()
    event.record()
    return PendingReadout(held, event)


class HostReadout:
    """A step on the host."""

    def __init__(self, readout: StepReadout, origin: str = "drafter") -> None:
        self._readout, self._origin = readout, origin
        self._rows: list[list[int]] = readout.numbers.tolist()

    @property
    def width(self) -> int:
        """Most tokens that a row can have got."""
        return self._readout.width

    def row(self, row: int, top: int | None) -> RowReadout:
        """What a step did to one row, with log-probabilities of the `top` likeliest tokens if they are wanted."""
        length, corrected, drafted, fault, count, reason, predicted, *rest = self._rows[row]
        ranks = rest[self.width :][:length]
        best = None if self._readout.best is None else self._readout.best[row].tolist()[: length + 1]
        counted = Counted(drafted, length + 1, bool(corrected), ranks, best, predicted).cut(count)
        error = _error(fault) if fault else None
        logprobs, tree = self._logprobs(row, count, top), self._tree(row)
        return RowReadout(rest[:count], _REASONS[reason], counted, logprobs, error, tree)

    def _tree(self, row: int) -> StepTree | None:
        """The tree of one row, without dead nodes."""
        if (found := self._readout.tree) is None:
            return None
        path = [node for node in found.path[row].tolist() if node >= 0]
        places, nodes = dict[int, int](), list[TreeNode]()
        for number, ((token, parent, alive, origin), (draft, target)) in enumerate(
            zip(found.nodes[row].tolist(), found.chances[row].tolist(), strict=True)
        ):
            if not alive:
                continue
            places[number] = len(nodes)
            name = self._origin if origin < 0 else ORIGINS[origin]
            known = number > 0, number in path, name
            nodes.append(_node(token, places.get(parent, 0), (draft, target), known))
        return StepTree(nodes, places[path[-1]] if path else 0, float(found.added[row]))

    def verdict(self, row: int) -> RowVerdict:
        """What was decided for one row, as a witness wants it."""
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


def _node(token: int, parent: int, chances: tuple[float, float], known: tuple[bool, bool, str]) -> TreeNode:
    """A node; `known` is whether it is below the root, whether it was accepted, and its origin."""
    (draft, target), (is_draft, accepted, origin) = chances, known
    if not is_draft:
        return TreeNode(token, None, None, None, False, origin)
    return TreeNode(token, parent, None if draft < 0 else draft, target, accepted, origin)


def _error(fault: int) -> Exception:
    if fault == NO_NUMBERS:
        return LawError(
            "the target's logits must be numbers, and after this text they are NaN or infinite; load it in another "
            'dtype, such as dtype="bfloat16" or "float32", or look at its weights'
        )
    if fault == NO_WAY_ON:
        return ArgumentError(
            "a grammar must admit some token after every text that it admits so far, and after this text it admits "
            "none: it cannot be continued, or not with the tokens of this model; look at the rule that comes next"
        )
    return ArgumentError(
        "logit_bias, bad_words, suppress_tokens, begin_suppress_tokens, no_repeat_ngram_size, min_new_tokens, "
        "min_length, allowed, processors and grammar must leave at least one token, and they leave none after this text"
    )
