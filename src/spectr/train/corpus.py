"""Texts with their true features, on the device, ready for training: in groups of about equal lengths.

Groups have one of a few shapes and batches are gathered on the device, so that a captured step can be replayed on any
of them.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.models.hidden_states import capture_hidden_states, last_state
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
    with capture_hidden_states(target.head, last_state, [target.layers[at] for at in taps]) as entered:
        target.model(input_ids=tokens, attention_mask=seen.long(), use_cache=False)
    return entered[0]


class Corpus:
    """All texts one after the other, and where each begins."""

    def __init__(self, texts: list[Text], device: torch.device, taps: Layers = ()) -> None:
        self.lengths, self.device, self.taps = [len(text.tokens) for text in texts], device, taps
        self.quantum = 64 if device.type == "cuda" else 1  # widths of groups are multiples of it
        self._tokens = torch.tensor([token for text in texts for token in text.tokens], device=device)
        self._length = torch.tensor(self.lengths, device=device)
        self._begin = self._length.cumsum(0) - self._length
        self._start = torch.tensor([text.start for text in texts], device=device)
        self.features: Tensor | None = None  # (all tokens, F)

    @property
    def tokens(self) -> int:
        """Of all texts."""
        return sum(self.lengths)

    def describe(self, target: Target, budget: int, progress: Callable[[int], None] = lambda _: None) -> None:
        """Compute all features, `budget` tokens a call."""
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        width = (1 + len(self.taps)) * target.width
        self.features = torch.zeros(self.tokens, width, dtype=dtype, device=self.device)
        for group in self.groups(budget, random.Random(0)):
            texts = torch.tensor(group, device=self.device)
            width = max(self.lengths[at] for at in group)
            tokens, length = self._gather(self._tokens, texts, width), self._length[texts]
            found = _features(target, tokens, length, self.taps)
            places = torch.arange(width, device=self.device)
            real = places < length[:, None]
            self.features[(self._begin[texts][:, None] + places)[real]] = found[real].to(dtype)
            progress(sum(self.lengths[at] for at in group))

    def width(self, group: list[int]) -> int:
        """Tokens of the longest text of a group, rounded up."""
        return -(-max(self.lengths[at] for at in group) // self.quantum) * self.quantum

    def groups(self, budget: int, order: random.Random) -> list[list[int]]:
        """All texts in groups of at most `budget` padded tokens, in random order; lengths within a group are close."""
        jitter = {at: length * order.uniform(0.9, 1.1) for at, length in enumerate(self.lengths)}
        groups, longest = [list[int]()], 0
        for at in sorted(jitter, key=jitter.__getitem__):
            width = -(-max(longest, self.lengths[at]) // self.quantum) * self.quantum
            longest = max(longest, self.lengths[at])
            if groups[-1] and width * (len(groups[-1]) + 1) > budget:
                groups.append([])
                longest = self.lengths[at]
            groups[-1].append(at)
        order.shuffle(groups)
        return groups

    def batch(self, texts: Tensor, width: int) -> Batch:
        """These texts (B,), padded to `width`; -1 is an empty one."""
        if self.features is None:
            raise ArgumentError("a corpus must be described before it is learnt from; call describe")
        at = texts.clamp_min(0)
        length = torch.where(texts >= 0, self._length[at], 0)
        features = self._gather(self.features, at, width)
        return Batch(self._gather(self._tokens, at, width), features, self._start[at], length)

    def _gather(self, source: Tensor, texts: Tensor, width: int) -> Tensor:
        """(B, T, …) of a tensor over all tokens; beyond its end a text's last is repeated."""
        places = torch.arange(width, device=self.device).minimum(self._length[texts][:, None] - 1)
        return source[self._begin[texts][:, None] + places]
