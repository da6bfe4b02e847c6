"""A small language model as the drafter: one batched call for each depth of the tree.

It remembers the committed text in a session of its own. What it has not read yet when a step begins (the bonus token,
and accepted tokens that it never scored) goes before the root into the first call, so a step has no call of its own for
catching up.
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

__all__ = ["LACKING", "ModelDrafter", "ModelDrafting", "PendingTokens", "fitted", "session_slots"]

LACKING = 100.0
"""How far below its best logit a drafter ranks tokens that it lacks: hardly ever drafted, and yet a law is left where a
policy leaves no others."""

_AT_ONCE = 32  # unread tokens that go into a step's first call; more are read before


def fitted(logits: Tensor, vocabulary: int) -> Tensor:
    """Logits (…, U) for a target of another, padded, vocabulary: what the target lacks goes, what the drafter lacks
    comes last."""
    missing = vocabulary - logits.shape[-1]
    if missing <= 0:
        return logits[..., :vocabulary]
    last = logits.amax(-1, keepdim=True).float() - LACKING
    return torch.cat([logits, last.to(logits.dtype).expand(*logits.shape[:-1], missing)], -1)


def session_slots(slots: int, plan: Plan) -> int:
    """Slots of a drafter's own session where texts come to `slots` tokens: in a step's first call the tokens that a row
    has not read stand behind the text, and in the others the tree does too."""
    return slots + _AT_ONCE + plan.scored


@dataclass(frozen=True, slots=True)
class ModelDrafter(Planned):
    """Any model that scores trees, with a plan."""

    model: TreeModel
    plan: Plan
    name: ClassVar[str] = "model"
    capturable: ClassVar[bool] = True

    def open(self, opening: Opening) -> Drafting:
        """Room for the rows in a session of its own."""
        session = self.model.open(opening.rows, session_slots(opening.slots, self.plan))
        return ModelDrafting(self.model, self.plan, session, opening)


def _known(tokens: Sequence[int], size: int) -> list[int]:
    """Tokens of the target that the drafter does not have are read as its first."""
    return [token if token < size else 0 for token in tokens]


@dataclass(frozen=True, slots=True)
class PendingTokens:
    """The text not read when the step began: `count` (B,) tokens of each row, in the first W scratch places."""

    tokens: Tensor  # (B, W), a row's tokens first
    count: Tensor  # (B,)
    seen: Tensor  # (B, W) bool: places that hold text


class ModelDrafting(SingleChoice):
    """A session of the draft model, and how much of each row's text it has read."""

    def __init__(self, model: TreeModel, plan: Plan, session: Any, opening: Opening) -> None:
        self.model, self.plan, self.session, self.vocabulary = model, plan, session, opening.vocabulary
        if opening.captures:
            model.capture_prefill(session)
        self._largest = plan  # another may take its place, and none that scores more nodes
        self.counts = torch.zeros(opening.rows, dtype=torch.int64, device=model.device)  # tokens read of each row
        self._skipped = [0] * opening.rows  # tokens at the beginning of a text that it has no room for
        self._window: Any = None  # of the session, for the step under way
        self._pending: PendingTokens | None = None
        self._drawn: Drawn | None = None
        self._active: Tensor | None = None

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> bool:
        """Of a text that this model has no room for the end is read: what leaves room for the tokens to come, or half
        of the context if they are many."""
        most = max(self.model.context - (limit - len(text)), self.model.context // 2, 1)
        self._skipped[row] = max(0, len(text) - 1 - most)
        if source is not None:
            self.model.encode_row(self.session, row, _known(source[: self.model.context], self.model.vocabulary))
        return self._skipped[row] == 0

    def read(self, first: int, texts: Sequence[list[int]], starts: Sequence[int]) -> None:
        """Read along with the target. A row that lags behind reads what it missed when it drafts again."""
        rows = range(first, first + len(texts))
        skipped = [self._skipped[row] for row in rows]
        tokens = [text[max(0, skip - at) :] for text, at, skip in zip(texts, starts, skipped, strict=True)]
        starts = [max(0, at - skip) for at, skip in zip(starts, skipped, strict=True)]
        window = self.model.window(self.session, first, first + len(texts), max(starts))
        self.model.rewind(window, list(starts))
        counts, device = self.counts[first : first + len(texts)], self.counts.device
        most = [at + skip for at, skip in zip(starts, skipped, strict=True)]
        counts.clamp_(copy_to_device(skipped, device), copy_to_device(most, device))
        if not any(tokens) or self._lags(rows, starts):
            return
        self._read(window, first, [_known(part, self.model.vocabulary) for part in tokens], list(starts))
        ends = [start + len(part) for start, part in zip(most, tokens, strict=True)]
        counts.copy_(copy_to_device(ends, device))

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """As far as they were read."""
        self.model.copy_rows(self.session, sources, targets, most)
        device = self.counts.device
        self.counts[copy_to_device(targets, device)] = self.counts[copy_to_device(sources, device)].clamp_max(most)
        for target, skipped in zip(targets, [self._skipped[row] for row in sources], strict=True):
            self._skipped[target] = skipped

    def make_room(self, rows: int, slots: int) -> None:
        """In a session of its own."""
        self.model.make_room(self.session, rows, session_slots(slots, self._largest))
        extra = max(0, rows - len(self.counts))
        self.counts = torch.nn.functional.pad(self.counts, (0, extra))
        self._skipped += [0] * extra

    def propose(self, scene: Scene) -> Draft:
        """Draw by the plan, each depth one call."""
        self._window = self.model.window(self.session, 0, len(scene.root), scene.longest)
        pending = self._pending = self._pending_tokens(scene)
        self._active = scene.active
        self._drawn = draw(self.plan, scene, lambda frontier: self._logits(pending, frontier))
        return self._drawn.draft

    def keep(self, path: Tensor) -> None:
        """Commit the unread text and those accepted nodes that were scored; the rest is read next time."""
        assert self._pending is not None
        assert self._drawn is not None
        assert self._active is not None
        width = self._pending.tokens.shape[1]
        text = torch.where(self._pending.seen & self._active[:, None], cached_arange(width, path.device), -1)
        kept = torch.cat([text, self._kept(path, self._drawn, width)], 1)
        self.model.keep(self._window, kept)
        self.counts[: len(path)] += (kept >= 0).sum(-1)  # in place: a captured step finds it there again

    def _lags(self, rows: Sequence[int], starts: Sequence[int]) -> bool:
        """Whether some row has read less than it is taken to have; where the host need not wait, it looks."""
        if self.counts.device.type != "cpu":
            return False
        read = self.counts[rows[0] : rows[-1] + 1].tolist()
        return any(count - self._skipped[row] < start for row, count, start in zip(rows, read, starts, strict=True))

    def _read(self, window: Any, first: int, texts: list[list[int]], starts: list[int]) -> None:
        """Read texts that stand at `starts` in the rows of a window, the first of which is `first`."""
        self.model.read(window, texts, starts)

    def _kept(self, path: Tensor, drawn: Drawn, width: int) -> Tensor:
        """Scratch places (B, D) of accepted nodes that need not be read again, -1 for the others."""
        scored = drawn.scored.gather(1, path.clamp_min(0))
        return torch.where((path >= 0) & (scored >= 0), scored + width - 1, -1)

    def _pending_tokens(self, scene: Scene) -> PendingTokens:
        """The tokens that came since; of a row that has ended, one."""
        read, length = self.counts[: len(scene.root)], scene.texts.length
        width = scene.unread
        if width is None:
            width = int(torch.where(scene.active, length - read, 1).max())
            if width > _AT_ONCE:
                self._catch_up(scene)
                width = 1
        count = torch.where(scene.active, length - read, 1).clamp(1, width)
        places = cached_arange(width, count.device)
        at = (length - count)[:, None] + places
        tokens = scene.texts.tokens.gather(1, at.clamp(0, scene.texts.tokens.shape[1] - 1)).clamp_min(0)
        return PendingTokens(tokens, count, places < count[:, None])

    def _catch_up(self, scene: Scene) -> None:
        """Read all but the last token of every row, after a pause."""
        rows, lengths = len(scene.root), scene.texts.length.tolist()
        skipped = self._skipped[:rows]
        starts = [max(0, at - skip) for at, skip in zip(self.counts[:rows].tolist(), skipped, strict=True)]
        texts = [
            row[at + skip : length - 1]
            for row, at, skip, length in zip(scene.texts.tokens.tolist(), starts, skipped, lengths, strict=True)
        ]
        self._read(self._window, 0, [_known(text, self.model.vocabulary) for text in texts], starts)
        ends = [at + len(text) + skip for at, text, skip in zip(starts, texts, skipped, strict=True)]
        self.counts[:rows] = copy_to_device(ends, self.counts.device)
        self._window = self.model.window(self.session, 0, rows, scene.longest)

    def _logits(self, pending: PendingTokens, frontier: Frontier) -> Tensor:
        """Raw logits over the target's vocabulary."""
        found = self._first(pending) if frontier.depth == 0 else self._deeper(pending, frontier)
        return fitted(found, self.vocabulary)

    def _score(self, tokens: Tensor, ancestors: Tensor, depth: Tensor, *, only: Tensor | None = None) -> Tensor:
        lacking = self.model.vocabulary < self.vocabulary
        known = torch.where(tokens < self.model.vocabulary, tokens, 0) if lacking else tokens
        return self.model.score(self._window, known, ancestors, depth, only=only)

    def _first(self, pending: PendingTokens) -> Tensor:
        """After the root, the last of the unread text."""
        batch, width = pending.tokens.shape
        places = cached_arange(width, pending.tokens.device)
        causal = (places[:, None] >= places).expand(batch, -1, -1)
        return self._score(pending.tokens, causal, places.expand(batch, -1), only=pending.count[:, None] - 1)

    def _deeper(self, pending: PendingTokens, frontier: Frontier) -> Tensor:
        """Below the root: a node sees all of the unread text, and its ancestors."""
        batch, count, _ = frontier.ancestors.shape
        text = pending.seen[:, None].expand(batch, count, -1)
        depth = (pending.count[:, None] + (frontier.depth - 1)).expand(batch, count)
        return self._score(frontier.tokens, torch.cat([text, frontier.ancestors[..., 1:]], -1), depth)
