"""A small language model as the drafter: one batched call for each depth of the tree.

It has the committed text in its own session. Tokens that it has not read when a step begins (the bonus token, and
accepted tokens that it never scored) are read in the call that scores the root, so a step needs no extra call for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from spectr.draft.plan import Drawn, Plan, Planned, draw
from spectr.draft.stateless import SingleChoice
from spectr.rows import cached_arange, copy_to_device
from spectr.trees import Frontier
from spectr.types import Draft, Drafting, Opening, Scene, TreeModel

__all__ = ["LACKING", "ModelDrafter", "ModelDrafting", "PendingTokens", "fit_vocabulary", "session_slots"]

LACKING = 100.0
"""How far below its best logit a drafter ranks tokens that its vocabulary lacks. They are hardly ever drafted, and a
distribution remains where a policy allows no other tokens."""

_MOST_PENDING = 32  # unread tokens that are read in a step's first call; if there are more, they are read before


def fit_vocabulary(logits: Tensor, vocabulary: int) -> Tensor:
    """Fit logits (…, U) to a target with another, padded, vocabulary: tokens that the target lacks are cut off, and
    tokens that the drafter lacks are appended with the lowest logit."""
    missing = vocabulary - logits.shape[-1]
    if missing <= 0:
        return logits[..., :vocabulary]
    last = logits.amax(-1, keepdim=True).float() - LACKING
    return torch.cat([logits, last.to(logits.dtype).expand(*logits.shape[:-1], missing)], -1)


def session_slots(slots: int, plan: Plan) -> int:
    """Return the slots of a drafter's own session for texts of up to `slots` tokens: the unread tokens of a row and
    the nodes of its tree are scratch behind the text."""
    return slots + _MOST_PENDING + plan.scored


@dataclass(frozen=True, slots=True)
class ModelDrafter(Planned):
    """Drafts with any model that scores trees."""

    model: TreeModel
    plan: Plan
    name: ClassVar[str] = "model"
    capturable: ClassVar[bool] = True

    def open(self, opening: Opening) -> Drafting:
        """Open a session of the draft model."""
        session = self.model.open(opening.rows, session_slots(opening.slots, self.plan))
        return ModelDrafting(self.model, self.plan, session, opening)


def _in_vocabulary(tokens: Sequence[int], size: int) -> list[int]:
    """Replace tokens that a vocabulary of `size` tokens lacks by token 0."""
    return [token if token < size else 0 for token in tokens]


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """The tokens that were not read when the step began, which take the first W scratch slots."""

    tokens: Tensor  # (B, W), left-aligned
    count: Tensor  # (B,): how many of them a row has
    seen: Tensor  # (B, W) bool: which of them are tokens and not padding


class ModelDrafting(SingleChoice):
    """The session of a draft model, and how many tokens of each row's text it has read."""

    def __init__(self, model: TreeModel, plan: Plan, session: Any, opening: Opening) -> None:
        self.model, self.plan, self.session, self.vocabulary = model, plan, session, opening.vocabulary
        if opening.captures:
            model.capture_prefill(session)
        self._largest = plan  # the plan may be replaced by one that scores no more nodes
        self.counts = torch.zeros(opening.rows, dtype=torch.int64, device=model.device)  # tokens read of each row
        self._skipped = [0] * opening.rows  # tokens at the beginning of a text that it never reads
        self._restarted: dict[int, Sequence[int]] = {}  # texts of rows that begin with other tokens than their caches
        self._window: Any = None  # of the session, for the step under way
        self._pending: PendingTokens | None = None
        self._drawn: Drawn | None = None
        self._active: Tensor | None = None

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> None:
        """Begin a row. Of a text that is too long for the model's context only the end is read: as much as leaves room
        for the tokens to come, but at least half of the context."""
        self._read_last(row, text, max(self.model.context - (limit - len(text)), self.model.context // 2, 1))
        if source is not None:
            self.model.encode_row(
                self.session, row, _in_vocabulary(source[: self.model.context], self.model.vocabulary)
            )

    def _read_last(self, row: int, text: Sequence[int], most: int) -> None:
        """Skip all but the last `most` tokens of a text. The row may have a prefix of the text in its cache, copied
        from another row. If that row skipped fewer or more tokens, the cache is dropped."""
        skipped = max(0, len(text) - 1 - most)
        self._restarted.pop(row, None)
        if skipped != self._skipped[row]:
            self._skipped[row], self._restarted[row], self.counts[row] = skipped, text, skipped
            self.model.rewind(self.model.window(self.session, row, row + 1, 0), [0])

    def _unread(self, row: int, tokens: list[int], start: int) -> tuple[list[int], int]:
        """Return the tokens to read now that the target has read `tokens` of a row, from `start` on, and the position
        of the first. A row whose cache was dropped reads the prefix as well."""
        skipped, text = self._skipped[row], self._restarted.get(row)
        if text is not None and start > skipped:
            tokens, start = [*text[skipped:start], *tokens], skipped
        else:
            tokens, start = tokens[max(0, skipped - start) :], max(start, skipped)
        if tokens:
            self._restarted.pop(row, None)
        return tokens, start

    def drop(self, first: int, starts: Sequence[int]) -> None:
        """Drop what rows from `first` on have read from positions `starts` on."""
        rows, device = range(first, first + len(starts)), self.counts.device
        skipped = [self._skipped[row] for row in rows]
        ends = [max(at, skip) for at, skip in zip(starts, skipped, strict=True)]
        slots = [at - skip for at, skip in zip(ends, skipped, strict=True)]
        self.model.rewind(self.model.window(self.session, first, first + len(starts), max(slots)), slots)
        self.counts[first : first + len(starts)].clamp_(copy_to_device(skipped, device), copy_to_device(ends, device))

    def read(self, first: int, texts: Sequence[list[int]], starts: Sequence[int]) -> None:
        """Read prompt tokens after the target has. A row that lags behind reads what it missed when it drafts
        again."""
        rows = range(first, first + len(texts))
        unread = [self._unread(row, text, at) for row, text, at in zip(rows, texts, starts, strict=True)]
        tokens, starts = [part for part, _ in unread], [at for _, at in unread]
        self.drop(first, starts)
        if not any(tokens) or self._lags(rows, starts):
            return
        slots = [at - self._skipped[row] for row, at in zip(rows, starts, strict=True)]
        window = self.model.window(self.session, first, first + len(texts), max(slots))
        self._read(window, first, [_in_vocabulary(part, self.model.vocabulary) for part in tokens], slots)
        ends = [at + len(part) for at, part in zip(starts, tokens, strict=True)]
        self.counts[first : first + len(texts)].copy_(copy_to_device(ends, self.counts.device))

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """Copy rows as far as they were read."""
        self.model.copy_rows(self.session, sources, targets, most)
        device = self.counts.device
        self.counts[copy_to_device(targets, device)] = self.counts[copy_to_device(sources, device)].clamp_max(most)
        copied = [(self._skipped[row], self._restarted.get(row)) for row in sources]
        for row, (skipped, text) in zip(targets, copied, strict=True):
            self._skipped[row] = skipped
            self._restarted.pop(row, None)
            if text is not None:
                self._restarted[row] = text

    def make_room(self, rows: int, slots: int) -> None:
        """Allocate room in the draft model's session."""
        self.model.make_room(self.session, rows, session_slots(slots, self._largest))
        extra = max(0, rows - len(self.counts))
        self.counts = torch.nn.functional.pad(self.counts, (0, extra))
        self._skipped += [0] * extra

    def propose(self, scene: Scene) -> Draft:
        """Draw a tree by the plan, with one call of the model for each depth."""
        self._window = self.model.window(self.session, 0, len(scene.root), scene.longest)
        pending = self._pending = self._pending_tokens(scene)
        self._active = scene.active
        self._drawn = draw(self.plan, scene, lambda frontier: self._logits(pending, frontier))
        return self._drawn.draft

    def keep(self, path: Tensor) -> None:
        """Commit the pending tokens and the accepted nodes that were scored; the others are pending in the next
        step."""
        assert self._pending is not None
        assert self._drawn is not None
        assert self._active is not None
        width = self._pending.tokens.shape[1]
        text = torch.where(self._pending.seen & self._active[:, None], cached_arange(width, path.device), -1)
        kept = torch.cat([text, self._reusable(path, self._drawn, width)], 1)
        self.model.keep(self._window, kept)
        self.counts[: len(path)] += (kept >= 0).sum(-1)  # in place, since captured steps refer to this tensor

    def _lags(self, rows: Sequence[int], starts: Sequence[int]) -> bool:
        """Whether a row has read fewer tokens of its text than `starts` says. Checked on a CPU only: elsewhere the host
        would have to wait."""
        if self.counts.device.type != "cpu":
            return False
        read = self.counts[rows[0] : rows[-1] + 1].tolist()
        return any(count < start for count, start in zip(read, starts, strict=True))

    def _read(self, window: Any, first: int, texts: list[list[int]], slots: list[int]) -> None:
        """Read texts after the first `slots` tokens of the rows of a window, which begins with row `first`."""
        self.model.read(window, texts, slots)

    def _reusable(self, path: Tensor, drawn: Drawn, width: int) -> Tensor:
        """The scratch slots (B, D) of accepted nodes that need not be read again, -1 for the others."""
        scored = drawn.scored.gather(1, path.clamp_min(0))
        return torch.where((path >= 0) & (scored >= 0), scored + width - 1, -1)

    def _pending_tokens(self, scene: Scene) -> PendingTokens:
        """The tokens since the last step; one token for a row that has ended."""
        read, length = self.counts[: len(scene.root)], scene.texts.length
        width = scene.unread
        if width is None:
            width = int(torch.where(scene.active, length - read, 1).max())
            if width > _MOST_PENDING:
                self._catch_up(scene)
                width = 1
        count = torch.where(scene.active, length - read, 1).clamp(1, width)
        places = cached_arange(width, count.device)
        at = (length - count)[:, None] + places
        tokens = scene.texts.tokens.gather(1, at.clamp(0, scene.texts.tokens.shape[1] - 1)).clamp_min(0)
        return PendingTokens(tokens, count, places < count[:, None])

    def _catch_up(self, scene: Scene) -> None:
        """Read all but the last token of every row, after steps in which this drafter was not used."""
        rows, ends = len(scene.root), [length - 1 for length in scene.texts.length.tolist()]
        starts = [max(at, skip) for at, skip in zip(self.counts[:rows].tolist(), self._skipped, strict=False)]
        slots = [start - skip for start, skip in zip(starts, self._skipped, strict=False)]
        texts = [row[at:end] for row, at, end in zip(scene.texts.tokens.tolist(), starts, ends, strict=True)]
        self.model.rewind(self._window, slots)
        self._read(self._window, 0, [_in_vocabulary(text, self.model.vocabulary) for text in texts], slots)
        self.counts[:rows] = copy_to_device(list(map(max, starts, ends)), self.counts.device)
        self._window = self.model.window(self.session, 0, rows, scene.longest)

    def _logits(self, pending: PendingTokens, frontier: Frontier) -> Tensor:
        """Raw logits (B, M, V) over the target's vocabulary."""
        logits = self._root_logits(pending) if frontier.depth == 0 else self._logits_below(pending, frontier)
        return fit_vocabulary(logits, self.vocabulary)

    def _score(self, tokens: Tensor, ancestors: Tensor, depth: Tensor, *, only: Tensor | None = None) -> Tensor:
        lacking = self.model.vocabulary < self.vocabulary
        known = torch.where(tokens < self.model.vocabulary, tokens, 0) if lacking else tokens
        return self.model.score(self._window, known, ancestors, depth, only=only)

    def _root_logits(self, pending: PendingTokens) -> Tensor:
        """Logits after the root, which is the last of the pending tokens."""
        batch, width = pending.tokens.shape
        places = cached_arange(width, pending.tokens.device)
        causal = (places[:, None] >= places).expand(batch, -1, -1)
        return self._score(pending.tokens, causal, places.expand(batch, -1), only=pending.count[:, None] - 1)

    def _logits_below(self, pending: PendingTokens, frontier: Frontier) -> Tensor:
        """Logits after nodes below the root, which attend to all pending tokens and to their ancestors."""
        batch, count, _ = frontier.ancestors.shape
        text = pending.seen[:, None].expand(batch, count, -1)
        depth = (pending.count[:, None] + (frontier.depth - 1)).expand(batch, count)
        return self._score(frontier.tokens, torch.cat([text, frontier.ancestors[..., 1:]], -1), depth)
