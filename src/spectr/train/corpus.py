"""Texts with their true features, ready for training: kept where there is room, in batches of about equal lengths."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.models.tap import last_state, tap
from spectr.models.target import Target
from spectr.train.samples import Text
from spectr.types import Layers

__all__ = ["Batch", "Corpus"]


@dataclass(frozen=True, slots=True)
class Batch:
    """Padded texts."""

    tokens: Tensor  # (B, T) int64
    features: Tensor  # (B, T, F)
    start: Tensor  # (B,) where the answers begin
    length: Tensor  # (B,)

    def counted(self, depth: int) -> Tensor:
        """(B, T) bool: positions whose next token belongs to the answer, with a draft of `depth` that began in it."""
        at = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (at >= self.start[:, None] - 2 + depth) & (at < self.length[:, None] - 1)


@torch.no_grad()
def _features(target: Target, tokens: Tensor, length: Tensor, taps: Layers) -> Tensor:
    """What enters the output layer and leaves the tapped layers at every token (B, T, F) of right-padded texts."""
    seen = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
    with tap(target.head, last_state, [target.layers[at] for at in taps]) as entered:
        target.model(input_ids=tokens, attention_mask=seen.long(), use_cache=False)
    return entered[0]


class Corpus:
    """Texts, and where the features of each begin in one long tensor."""

    def __init__(self, texts: list[Text], device: torch.device, taps: Layers = ()) -> None:
        self.texts, self.device, self.taps = texts, device, taps
        self.starts = [0]
        for text in texts:
            self.starts.append(self.starts[-1] + len(text.tokens))
        self.features: Tensor | None = None  # (all tokens, F)

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return self.starts[-1]

    def describe(self, target: Target, budget: int, progress: Callable[[int], None] = lambda _: None) -> None:
        """Compute all features, `budget` tokens a call."""
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        for group in self.groups(budget, random.Random(0)):
            tokens, length = self._padded(group)
            found = _features(target, tokens, length, self.taps)
            if self.features is None:
                self.features = torch.empty(self.tokens, found.shape[-1], dtype=dtype, device=self.device)
            for row, at in enumerate(group):
                count = len(self.texts[at].tokens)
                self.features[self.starts[at] : self.starts[at] + count] = found[row, :count].to(dtype)
            progress(sum(len(self.texts[at].tokens) for at in group))

    def groups(self, budget: int, order: random.Random) -> list[list[int]]:
        """All texts in groups of at most `budget` padded tokens, in random order; lengths within a group are close."""
        jitter = {at: len(text.tokens) * order.uniform(0.9, 1.1) for at, text in enumerate(self.texts)}
        groups, longest = [list[int]()], 0
        for at in sorted(jitter, key=jitter.__getitem__):
            longest = max(longest, len(self.texts[at].tokens))
            if groups[-1] and longest * (len(groups[-1]) + 1) > budget:
                groups.append([])
                longest = len(self.texts[at].tokens)
            groups[-1].append(at)
        order.shuffle(groups)
        return groups

    def batches(self, budget: int, order: random.Random) -> Iterator[Batch]:
        """One pass over all texts."""
        for group in self.groups(budget, order):
            yield self.batch(group)

    def batch(self, group: list[int]) -> Batch:
        """These texts, padded."""
        assert self.features is not None
        tokens, length = self._padded(group)
        starts = torch.tensor([self.starts[at] for at in group], device=self.device)
        places = torch.arange(tokens.shape[1], device=self.device).minimum(length[:, None] - 1)
        features = self.features[starts[:, None] + places]
        begun = torch.tensor([self.texts[at].start for at in group], device=self.device)
        return Batch(tokens, features, begun, length)

    def _padded(self, group: list[int]) -> tuple[Tensor, Tensor]:
        rows = [self.texts[at].tokens for at in group]
        longest = max(map(len, rows))
        tokens = torch.tensor([row + [0] * (longest - len(row)) for row in rows], device=self.device)
        return tokens, torch.tensor([len(row) for row in rows], device=self.device)
