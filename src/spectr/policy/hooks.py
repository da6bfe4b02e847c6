"""What users plug in: masks of allowed tokens, and logits processors. These run on the host, node by node or in groups.

Their answers must depend on the text alone, else drafting would change the law. They are asked about drafts too, hence
about texts that may never be, such as those beyond a stop string: what they raise there is put off until a text gets
there, as it would without drafts.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectr.errors import ArgumentError
from spectr.policy.filters import exclude
from spectr.policy.history import History, Past

__all__ = ["Allowed", "Processor", "as_hook", "as_processors", "process", "strike_disallowed"]

Allowed = Callable[[list[int]], Iterable[int] | Tensor | None]
"""From a whole text, prompt included, to the tokens that may follow: ids, a bool mask (V,), or None for all. Asked only
about texts that it allowed itself, and that no stop token has ended."""

Processor = Callable[[Tensor, Tensor], Tensor]
"""From texts (K, L) int64 of one length and their logits (K, V) to other logits, as transformers' LogitsProcessor. What
it says of a text must not depend on its place among the K."""

_BY_ROW = {
    "PrefixConstrainedLogitsProcessor": "give its function as allowed=",
    "EncoderRepetitionPenaltyLogitsProcessor": "use repetition_penalty",
    "EncoderNoRepeatNGramLogitsProcessor": "use bad_words, or a processor that finds the prompt in the text",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "leave guidance_scale off",
    "ClassifierFreeGuidanceLogitsProcessor": "leave guidance_scale off",
    "SynthIDTextWatermarkLogitsProcessor": "use a watermark that remembers nothing",
}
"""Processors of transformers that remember the rows of a batch, and what to do instead. A tree has other rows: its
nodes."""


def as_processors(given: Any) -> tuple[Processor, ...]:
    """Processors as users give them, lists in lists: none, one, or several."""
    if given is None:
        return ()
    if isinstance(given, list | tuple):
        return tuple(single for part in given for single in as_processors(part))
    if not callable(given):
        raise ArgumentError(f"processors must be a sequence of functions of ids and logits, got {given!r}")
    for kind in type(given).__mro__:
        if kind.__name__ in _BY_ROW:
            raise ArgumentError(
                f"processors must look at each text alone, and {kind.__name__} goes by the rows of a batch or by the "
                f"calls before; {_BY_ROW[kind.__name__]}"
            )
    return (given,)


def as_hook(given: Any) -> Allowed | None:
    """A mask hook, or none."""
    if given is None or callable(given):
        hook: Allowed | None = given
        return hook
    raise ArgumentError(f"allowed must be a function from a text to the ids that may follow, got {given!r}")


def strike_disallowed(logits: Tensor, past: Past, allowed: Sequence[Allowed | None]) -> Tensor:
    """Logits (B, M, V) of the tokens that the hook of each row lets follow each node's text."""
    history, masks = past.history, []
    for row, paths in enumerate(past.lists()):
        masks += [_mask(history, allowed[row], row, path) for path in paths]
    return exclude(logits, ~torch.stack(masks).view(logits.shape).to(logits.device)) if masks else logits


def _all(history: History) -> Tensor:
    return torch.ones(history.vocabulary, dtype=torch.bool)


def _mask(history: History, hook: Allowed | None, row: int, path: tuple[int, ...]) -> Tensor:
    """The allowed tokens (V,) after a path. Below a token that was not allowed, or the end of the text, no text gets
    to: any law will do there, and nobody is asked."""
    if hook is None or not history.host[row].stops.isdisjoint(path):
        return _all(history)
    for place, token in enumerate(path):
        if not _ask(history, hook, row, path[:place])[token]:
            return _all(history)
    return _ask(history, hook, row, path)


def _ask(history: History, hook: Allowed, row: int, path: tuple[int, ...]) -> Tensor:
    """The hook's answer, remembered until the next commit."""
    known = history.host[row].answers
    if path not in known:
        try:
            known[path] = _read(hook([*history.host[row].tokens, *path]), history.vocabulary)
        except Exception as error:  # a user's own, of any kind: it is raised once a text gets there
            history.host[row].defer(path, error)
            known[path] = _all(history)
    return known[path]


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


@dataclass(frozen=True, slots=True)
class _Group:
    """Nodes of equal length of text."""

    rows: list[int]
    nodes: list[int]
    texts: Tensor  # (K, L) int64, with left padding

    def split(self) -> Iterator["_Group"]:
        """Each node alone."""
        for at, (row, node) in enumerate(zip(self.rows, self.nodes, strict=True)):
            yield _Group([row], [node], self.texts[at : at + 1])


def process(logits: Tensor, past: Past, processors: Sequence[Sequence[Processor]]) -> Tensor:
    """Logits (B, M, V) after the custom processors of each row, which are called once for each length of text."""
    processed = logits.clone()
    alike: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
    for row, own in enumerate(processors):
        alike[tuple(map(id, own))].add(row)
    for rows in alike.values():
        own = processors[min(rows)]
        for group in _groups(past, rows) if own else ():
            processed[group.rows, group.nodes] = _processed(logits, past, own, group).to(logits.dtype)
    return processed


def _processed(logits: Tensor, past: Past, processors: Sequence[Processor], group: _Group) -> Tensor:
    """Logits (K, V) of a group. If a processor raises, each node is asked about alone, to see which text it was."""
    scores = logits[group.rows, group.nodes]
    try:
        return _chained(processors, group.texts, scores)
    except Exception as error:  # of a user's function, as above
        if len(group.rows) > 1:
            return torch.cat([_processed(logits, past, processors, alone) for alone in group.split()])
        if not past.drafting:
            path = past.paths[group.rows[0], group.nodes[0]].tolist()
            past.history.host[group.rows[0]].defer(tuple(token for token in path if token >= 0), error)
        return scores


def _chained(processors: Sequence[Processor], texts: Tensor, scores: Tensor) -> Tensor:
    """One processor after the other."""
    for processor in processors:
        given: Any = processor(texts, scores)
        if not isinstance(given, Tensor) or given.shape != scores.shape:
            found = tuple(given.shape) if isinstance(given, Tensor) else repr(given)
            raise ArgumentError(
                f"processors must return logits of the shape they get, {tuple(scores.shape)}, got {found} from "
                f"{processor!r}"
            )
        scores = given
    return scores


def _groups(past: Past, rows: set[int]) -> Iterator[_Group]:
    """The nodes of these rows, by length of text."""
    history, paths = past.history, past.paths
    texts = [
        torch.tensor([*host.padding, *host.tokens], dtype=torch.int64, device=paths.device) for host in history.host
    ]
    groups: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for row, lengths in enumerate(past.lengths.tolist()):
        for node, length in enumerate(lengths if row in rows else []):
            groups[len(texts[row]) + length].append((row, node, length))
    for group in groups.values():
        ids = torch.stack([torch.cat([texts[row], paths[row, node, :length]]) for row, node, length in group])
        yield _Group([row for row, _, _ in group], [node for _, node, _ in group], ids)
