"""Texts with the target's hidden states ("features"), on the device, in groups of similar lengths.

Groups have one of a few shapes, and batches are gathered on the device, so that a captured training step can be
replayed on any of them.
"""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.models.features import capture_features, last_state
from spectr.models.logits import scale_and_cap
from spectr.models.target import Target
from spectr.train.samples import Text
from spectr.types import Layers

__all__ = ["Batch", "Corpus", "target_logits"]

_ROWS = 4096  # rows of logits in float32 at a time


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch of padded texts."""

    tokens: Tensor  # (B, T) int64
    features: Tensor  # (B, T, F)
    start: Tensor  # (B,) the index at which the answer begins
    length: Tensor  # (B,)
    normalizers: dict[float, Tensor]  # (B, T) by temperature; see `Corpus`

    def counted(self, depth: int) -> Tensor:
        """Mark positions (B, T) whose next token belongs to the answer, for a draft of `depth` that began in it."""
        at = torch.arange(self.tokens.shape[1], device=self.tokens.device)
        return (at >= self.start[:, None] - 2 + depth) & (at < self.length[:, None] - 1)


@torch.no_grad()
def _features(target: Target, tokens: Tensor, length: Tensor, layers: Layers) -> Tensor:
    """Return the input of the output layer and the outputs of some layers, (B, T, F), of right-padded texts."""
    seen = torch.arange(tokens.shape[1], device=tokens.device) < length[:, None]
    with capture_features(target.output_layer, last_state, [target.layers[at] for at in layers]) as entered:
        target.model(input_ids=tokens, attention_mask=seen.long(), use_cache=False)
    return entered[0]


def target_logits(target: Target, states: Tensor) -> Tensor:
    """Return the target's logits (N, V) for inputs (N, H) of its output layer."""
    output: Any = target.output_layer
    config = target.model.config.get_text_config(decoder=True)
    return scale_and_cap(output(states.to(output.weight.dtype)), config)


class Corpus:
    """All texts in one tensor, with the index at which each begins.

    For a head that drafts some tokens only, it also has the target's *normalizers*: the logarithm of the sum over the
    whole vocabulary that turns logits at a temperature into log-probabilities."""

    def __init__(self, texts: list[Text], device: torch.device, feature_layers: Layers = ()) -> None:
        self.lengths, self.device, self.feature_layers = [len(text.tokens) for text in texts], device, feature_layers
        self.quantum = 64 if device.type == "cuda" else 1  # widths of groups are multiples of this
        self._tokens = torch.tensor([token for text in texts for token in text.tokens], device=device)
        self._length = torch.tensor(self.lengths, device=device)
        self._begin = self._length.cumsum(0) - self._length
        self._start = torch.tensor([text.start for text in texts], device=device)
        self.features: Tensor | None = None  # (all tokens, F)
        self._normalizers = dict[float, Tensor]()  # (all tokens,) by temperature

    @property
    def tokens(self) -> int:
        """The number of tokens of all texts."""
        return sum(self.lengths)

    def compute_features(
        self,
        target: Target,
        budget: int,
        progress: Callable[[int], None] = lambda _: None,
        temperatures: Collection[float] = (),
    ) -> None:
        """Compute the features of all texts, `budget` tokens per call, and normalizers at these temperatures."""
        self._normalizers = {one: torch.zeros(self.tokens, device=self.device) for one in set(temperatures)}
        dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        width = (1 + len(self.feature_layers)) * target.width
        self.features = torch.zeros(self.tokens, width, dtype=dtype, device=self.device)
        for group in self.groups(budget, random.Random(0)):
            texts = torch.tensor(group, device=self.device)
            width = max(self.lengths[at] for at in group)
            tokens, length = self._gather(self._tokens, texts, width), self._length[texts]
            features = _features(target, tokens, length, self.feature_layers)
            places = torch.arange(width, device=self.device)
            real = places < length[:, None]
            where = (self._begin[texts][:, None] + places)[real]
            self.features[where] = features[real].to(dtype)
            if self._normalizers:
                self._normalize(target, features[..., : target.width][real], where)
            progress(sum(self.lengths[at] for at in group))

    @torch.no_grad()
    def _normalize(self, target: Target, states: Tensor, where: Tensor) -> None:
        """Compute the normalizers at some places (N,) from the inputs (N, H) of the target's output layer."""
        for rows, at in zip(states.split(_ROWS), where.split(_ROWS), strict=True):
            logits = target_logits(target, rows).float()
            for temperature, kept in self._normalizers.items():
                kept[at] = (logits / temperature).logsumexp(-1)

    def width(self, group: list[int]) -> int:
        """Return the length of the longest text of a group, rounded up."""
        return -(-max(self.lengths[at] for at in group) // self.quantum) * self.quantum

    def groups(self, budget: int, order: random.Random) -> list[list[int]]:
        """Return all texts in groups of at most `budget` padded tokens and similar lengths, in random order."""
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
        """Return a batch of the texts with indices (B,), padded to `width`; -1 stands for an empty text."""
        if self.features is None:
            raise ArgumentError("a corpus must have features before it is used for training; call compute_features")
        at = texts.clamp_min(0)
        length = torch.where(texts >= 0, self._length[at], 0)
        features = self._gather(self.features, at, width)
        normalizers = {one: self._gather(kept, at, width) for one, kept in self._normalizers.items()}
        return Batch(self._gather(self._tokens, at, width), features, self._start[at], length, normalizers)

    def _gather(self, source: Tensor, texts: Tensor, width: int) -> Tensor:
        """Gather (B, T, …) from a tensor over all tokens; the last entry of a text is repeated beyond its end."""
        places = torch.arange(width, device=self.device).minimum(self._length[texts][:, None] - 1)
        return source[self._begin[texts][:, None] + places]
