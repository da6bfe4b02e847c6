"""Users' functions: masks of allowed tokens, and logits processors. They run on the host, node by node or in groups.

Their results must depend on the text only; otherwise drafting would change the distribution. They are also called for
drafts, and so for texts that may never occur, such as those beyond a stop string. An error that they raise there is
deferred until a text gets there, as it would without drafts.
"""

import reprlib
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
"""Takes a whole text, including the prompt, and returns the tokens that may follow: ids, a bool mask (V,), or None for
all. It is called only for texts that it allowed itself and that no stop token has ended."""

Processor = Callable[[Tensor, Tensor], Tensor]
"""Takes texts (K, L) int64 of one length and their logits (K, V), and returns other logits, like a LogitsProcessor of
transformers. The result of a text must not depend on its index among the K."""

_BY_ROW = {
    "PrefixConstrainedLogitsProcessor": "give its function as allowed=",
    "EncoderRepetitionPenaltyLogitsProcessor": "use repetition_penalty",
    "EncoderNoRepeatNGramLogitsProcessor": "use bad_words, or a processor that finds the prompt in the text",
    "UnbatchedClassifierFreeGuidanceLogitsProcessor": "leave guidance_scale off",
    "ClassifierFreeGuidanceLogitsProcessor": "leave guidance_scale off",
    "SynthIDTextWatermarkLogitsProcessor": "use a watermark that remembers nothing",
}
"""Processors of transformers that depend on the rows of a batch, and what to use instead. In a tree the rows of a call
are nodes."""


def as_processors(value: Any) -> tuple[Processor, ...]:
    """Return processors as a tuple: a user may pass None, one, or nested lists."""
    if value is None:
        return ()
    if isinstance(value, list | tuple):
        return tuple(single for part in value for single in as_processors(part))
    if not callable(value):
        raise ArgumentError(f"processors must be a sequence of functions of ids and logits, got {value!r}")
    for kind in type(value).__mro__:
        if kind.__name__ in _BY_ROW:
            raise ArgumentError(
                f"processors must depend on each text only, and {kind.__name__} depends on the rows of a batch or on "
                f"earlier calls; {_BY_ROW[kind.__name__]}"
            )
    return (value,)


def as_hook(value: Any) -> Allowed | None:
    """Return `value` if it is a function or None; raise ArgumentError otherwise."""
    if value is None or callable(value):
        hook: Allowed | None = value
        return hook
    raise ArgumentError(f"allowed must be a function from a text to the ids that may follow, got {value!r}")


def strike_disallowed(logits: Tensor, past: Past, allowed: Sequence[Allowed | None]) -> Tensor:
    """Exclude the tokens that the hook of each row does not allow after each node's text from logits (B, M, V)."""
    history, masks = past.history, []
    for row, paths in enumerate(past.lists()):
        masks += [_mask(history, allowed[row], row, path) for path in paths]
    return exclude(logits, ~torch.stack(masks).view(logits.shape).to(logits.device)) if masks else logits


def _all(history: History) -> Tensor:
    return torch.ones(history.vocabulary, dtype=torch.bool)


def _mask(history: History, hook: Allowed | None, row: int, path: tuple[int, ...]) -> Tensor:
    """Return the allowed tokens (V,) after a path. No text gets below a token that was not allowed or below the end of
    the text: all tokens are allowed there, and the hook is not called."""
    if hook is None or not history.host[row].stops.isdisjoint(path):
        return _all(history)
    for place, token in enumerate(path):
        if not _ask(history, hook, row, path[:place])[token]:
            return _all(history)
    return _ask(history, hook, row, path)


def _ask(history: History, hook: Allowed, row: int, path: tuple[int, ...]) -> Tensor:
    """Call the hook for a path; results are cached until the next commit."""
    known = history.host[row].answers
    if path not in known:
        try:
            known[path] = _read(hook([*history.host[row].tokens, *path]), history.vocabulary)
        except Exception as error:  # of a user's function, so of any kind: it is raised once a text gets there
            history.host[row].defer(path, error)
            known[path] = _all(history)
    return known[path]


def _read(answer: Any, vocabulary: int) -> Tensor:
    """Convert the result of a hook to a bool mask (V,) on the host."""
    if answer is None:
        return torch.ones(vocabulary, dtype=torch.bool)
    is_array = isinstance(answer, Tensor) or hasattr(answer, "__array__")
    wrong = f"allowed must return token ids, a mask of bools, or None for all tokens, got {reprlib.repr(answer)}"
    if not is_array and not isinstance(answer, Iterable):
        raise ArgumentError(wrong)
    given = answer if is_array else list(answer)
    try:
        found = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(wrong) from error
    if found.numel() and (found.is_floating_point() or found.is_complex()):
        raise ArgumentError(wrong)
    values = found.cpu().flatten()
    if values.dtype == torch.bool:
        if values.shape[0] != vocabulary:
            raise ArgumentError(f"allowed must return masks of {vocabulary} tokens, got one of {values.shape[0]}")
        return values
    ids = values.long()
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= vocabulary):
        raise ArgumentError(f"allowed must return ids from 0 to {vocabulary - 1}, got {ids.min()} to {ids.max()}")
    return torch.zeros(vocabulary, dtype=torch.bool).index_fill_(0, ids, True)


@dataclass(frozen=True, slots=True)
class _Group:
    """Nodes whose texts have the same length."""

    rows: list[int]
    nodes: list[int]
    texts: Tensor  # (K, L) int64, including left padding

    def split(self) -> Iterator["_Group"]:
        """Yield a group for each node."""
        for at, (row, node) in enumerate(zip(self.rows, self.nodes, strict=True)):
            yield _Group([row], [node], self.texts[at : at + 1])


def process(logits: Tensor, past: Past, processors: Sequence[Sequence[Processor]]) -> Tensor:
    """Apply the custom processors of each row to logits (B, M, V), with one call for each length of text."""
    processed = logits.clone()
    alike: defaultdict[tuple[int, ...], set[int]] = defaultdict(set)
    for row, own in enumerate(processors):
        alike[tuple(map(id, own))].add(row)
    for rows in alike.values():
        own = processors[min(rows)]
        for group in _groups(past, rows) if own else ():
            result = _processed(logits, past, own, group).to(logits.dtype)
            processed[group.rows, group.nodes] = _without_infinity(result)
    return processed


def _without_infinity(logits: Tensor) -> Tensor:
    """Return logits (K, V) with the limit of the softmax, where some are infinite: they share the whole probability. A
    row with NaN keeps it."""
    forced = torch.where(logits == torch.inf, 0.0, -torch.inf)
    return torch.where(logits.amax(-1, keepdim=True) == torch.inf, forced, logits)


def _processed(logits: Tensor, past: Past, processors: Sequence[Processor], group: _Group) -> Tensor:
    """Return the processed logits (K, V) of a group. If a processor raises, it is called for each node alone, to find
    the text that the error belongs to."""
    scores = logits[group.rows, group.nodes]
    try:
        return _chained(processors, group.texts, scores)
    except Exception as error:  # of a user's function, so of any kind
        if len(group.rows) > 1:
            return torch.cat([_processed(logits, past, processors, alone) for alone in group.split()])
        if not past.drafting:
            path = past.paths[group.rows[0], group.nodes[0]].tolist()
            past.history.host[group.rows[0]].defer(tuple(token for token in path if token >= 0), error)
        return scores


def _chained(processors: Sequence[Processor], texts: Tensor, scores: Tensor) -> Tensor:
    """Apply processors one after the other."""
    for processor in processors:
        result: Any = processor(texts, scores)
        if not isinstance(result, Tensor) or result.shape != scores.shape:
            found = tuple(result.shape) if isinstance(result, Tensor) else repr(result)
            raise ArgumentError(
                f"processors must return logits of the shape they get, {tuple(scores.shape)}, got {found} from "
                f"{processor!r}"
            )
        scores = result
    return scores


def _groups(past: Past, rows: set[int]) -> Iterator[_Group]:
    """Group the nodes of these rows by the length of their texts."""
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
