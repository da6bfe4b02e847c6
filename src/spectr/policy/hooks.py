"""What users plug in: masks of allowed tokens, and logits processors. These run on the host, node by node or in groups.

Their answers must depend on the text alone, else drafting would change the law.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.policy.filters import exclude
from spectr.policy.history import History, Past

__all__ = ["Allowed", "Processor", "process", "strike_disallowed"]

Allowed = Callable[[list[int]], Iterable[int] | Tensor | None]
"""From a whole text, prompt included, to the tokens that may follow: ids, a bool mask (V,), or None for all. Asked only
about texts that it allowed itself, and that have not ended."""

Processor = Callable[[Tensor, Tensor], Tensor]
"""From texts (K, L) int64 of one length and their logits (K, V) to other logits, as transformers' LogitsProcessor."""


def strike_disallowed(logits: Tensor, past: Past, allowed: Allowed) -> Tensor:
    """Logits (B, M, V) of the tokens that `allowed` lets follow each node's text."""
    masks = [_mask(past.history, allowed, row, path) for row, paths in enumerate(past.lists()) for path in paths]
    return exclude(logits, ~torch.stack(masks).view(logits.shape).to(logits.device)) if masks else logits


def _mask(history: History, allowed: Allowed, row: int, path: tuple[int, ...]) -> Tensor:
    """The allowed tokens (V,) after a path. Below a token that was not allowed, or the end of the text, no text gets
    to: any law will do there, and nobody is asked."""
    if not history.stops.isdisjoint(path):
        return torch.ones(history.vocabulary, dtype=torch.bool)
    for place, token in enumerate(path):
        if not _ask(history, allowed, row, path[:place])[token]:
            return torch.ones(history.vocabulary, dtype=torch.bool)
    return _ask(history, allowed, row, path)


def _ask(history: History, allowed: Allowed, row: int, path: tuple[int, ...]) -> Tensor:
    """The hook's answer, remembered until the next commit."""
    known = history.answers.setdefault(id(allowed), (allowed, {}))[1]  # held, so that its id stays its own
    if (row, path) not in known:
        known[row, path] = _read(allowed([*history.texts[row], *path]), history.vocabulary)
    return known[row, path]


def _read(answer: Any, vocabulary: int) -> Tensor:
    """An answer as a bool mask (V,) on the host."""
    if answer is None:
        return torch.ones(vocabulary, dtype=torch.bool)
    ready = isinstance(answer, Tensor) or hasattr(answer, "__array__")
    given = torch.as_tensor(answer if ready else list(answer)).cpu().flatten()
    if given.dtype == torch.bool:
        if given.shape[0] != vocabulary:
            raise ArgumentError(f"allowed must return masks of {vocabulary} tokens, got one of {given.shape[0]}")
        return given
    ids = given.long()
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= vocabulary):
        raise ArgumentError(f"allowed must return ids from 0 to {vocabulary - 1}, got {ids.min()} to {ids.max()}")
    return torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, ids, True)


def process(logits: Tensor, past: Past, processors: Sequence[Processor]) -> Tensor:
    """Logits (B, M, V) after custom processors, which are called once for each length of text."""
    processed = logits.clone()
    for rows, nodes, ids in _groups(past):
        scores = logits[rows, nodes]
        for processor in processors:
            given = processor(ids, scores)
            if given.shape != scores.shape:
                raise ArgumentError(
                    f"processors must return logits of the shape they get, {tuple(scores.shape)}, got "
                    f"{tuple(given.shape)} from {processor!r}"
                )
            scores = given
        processed[rows, nodes] = scores.to(logits.dtype)
    return processed


def _groups(past: Past) -> Iterator[tuple[list[int], list[int], Tensor]]:
    """Nodes of equal length of text: their rows, their places, and the texts (K, L) with left padding."""
    history, paths = past.history, past.paths
    texts = [
        torch.tensor([*padding, *text], dtype=torch.int64, device=paths.device)
        for padding, text in zip(history.padding, history.texts, strict=True)
    ]
    groups: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for row, lengths in enumerate(past.lengths.tolist()):
        for node, length in enumerate(lengths):
            groups[len(texts[row]) + length].append((row, node, length))
    for group in groups.values():
        ids = torch.stack([torch.cat([texts[row], paths[row, node, :length]]) for row, node, length in group])
        yield [row for row, _, _ in group], [node for _, node, _ in group], ids
