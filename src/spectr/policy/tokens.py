"""Settings that name tokens: a bias per token, bad words, and sets. Checked once; their tensors are kept per device."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

from spectr.errors import ArgumentError

__all__ = ["Bias", "Tokens", "Words"]


def _token(value: Any, setting: str) -> int:
    if not isinstance(value, Integral) or value < 0:
        raise ArgumentError(f"{setting} must name tokens by ids, integers from 0 on, got {value!r}")
    return int(value)


def _addend(value: Any) -> float:
    if not isinstance(value, Real) or not value < math.inf:
        raise ArgumentError(f"logit_bias must add finite numbers, or -inf to exclude a token, got {value!r}")
    return float(value)


def _within(top: int, vocabulary: int, setting: str) -> None:
    if top >= vocabulary:
        raise ArgumentError(f"{setting} must name tokens below {vocabulary}, the size of the vocabulary, got {top}")


class Bias(Mapping[int, float]):
    """What is added to the logits of some tokens; −inf excludes one. Immutable.

    >>> Bias({7: 2, 3: -math.inf})
    {3: -inf, 7: 2.0}
    """

    __slots__ = ("_tensors", "_values", "struck")

    def __init__(self, values: Mapping[int, float]) -> None:
        if not isinstance(values, Mapping):
            raise ArgumentError(f"logit_bias must be a mapping from token ids to numbers, got {values!r}")
        self._values = dict(sorted((_token(token, "logit_bias"), _addend(value)) for token, value in values.items()))
        self.struck = frozenset(token for token, value in self._values.items() if value == -math.inf)
        self._tensors: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def __getitem__(self, token: int) -> float:
        return self._values[token]

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __hash__(self) -> int:
        return hash(frozenset(self._values.items()))

    def __repr__(self) -> str:
        return repr(self._values)

    def __reduce__(self) -> tuple[Any, ...]:
        return Bias, (self._values,)

    @torch.inference_mode(False)
    def on(self, device: torch.device, vocabulary: int) -> tuple[Tensor, Tensor]:
        """Ids (K,) and what is added to them (K,), float64."""
        _within(max(self._values, default=0), vocabulary, "logit_bias")
        if device not in self._tensors:
            ids, values = list(self._values), list(self._values.values())
            self._tensors[device] = (
                torch.tensor(ids, dtype=torch.int64, device=device),
                torch.tensor(values, dtype=torch.float64, device=device),
            )
        return self._tensors[device]


class Tokens(Sequence[int]):
    """The tokens that a setting names: one id, several, or None for no token. Immutable.

    >>> Tokens([7, 3, 7], "suppress_tokens"), Tokens(2, "forced_eos_token_id")
    ((3, 7), (2,))
    """

    __slots__ = ("_ids", "_setting", "_tensors")

    def __init__(self, ids: Iterable[int] | int | None, setting: str) -> None:
        given: Any = () if ids is None else (ids,) if isinstance(ids, Integral) else ids
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise ArgumentError(f"{setting} must be token ids, such as [5, 6], got {given!r}")
        self._ids = tuple(sorted({_token(token, setting) for token in given}))
        self._setting = setting
        self._tensors: dict[torch.device, Tensor] = {}

    def __getitem__(self, place: Any) -> Any:
        return self._ids[place]

    def __len__(self) -> int:
        return len(self._ids)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._ids == tuple(other)

    def __hash__(self) -> int:
        return hash(self._ids)

    def __repr__(self) -> str:
        return repr(self._ids)

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokens, (self._ids, self._setting)

    @torch.inference_mode(False)
    def on(self, device: torch.device, vocabulary: int) -> Tensor:
        """The ids (K,) int64, in order."""
        _within(max(self._ids, default=0), vocabulary, self._setting)
        if device not in self._tensors:
            self._tensors[device] = torch.tensor(self._ids, dtype=torch.int64, device=device)
        return self._tensors[device]


class Words(Sequence[tuple[int, ...]]):
    """Sequences of tokens of which the last must not follow the others. Immutable.

    >>> words = Words([[5], [1, 2, 3]])
    >>> words, words.reach
    (((5,), (1, 2, 3)), 2)
    """

    __slots__ = ("_tensors", "_words", "reach", "struck")

    def __init__(self, words: Iterable[Iterable[int]]) -> None:
        self._words = tuple(_word(word) for word in _items(words))
        self.struck = frozenset(word[-1] for word in self._words)
        self.reach = max((len(word) - 1 for word in self._words), default=0)  # tokens that must be looked back on
        self._tensors: dict[torch.device, tuple[Tensor, Tensor, Tensor]] = {}

    def __getitem__(self, place: Any) -> Any:
        return self._words[place]

    def __len__(self) -> int:
        return len(self._words)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._words == tuple(tuple(word) for word in other)

    def __hash__(self) -> int:
        return hash(self._words)

    def __repr__(self) -> str:
        return repr(self._words)

    def __reduce__(self) -> tuple[Any, ...]:
        return Words, (self._words,)

    @torch.inference_mode(False)
    def on(self, device: torch.device, vocabulary: int) -> tuple[Tensor, Tensor, Tensor]:
        """Single tokens (K,); the last tokens (W,) of longer words; what stands before them (W, reach), aligned to
        the right and padded with -1."""
        _within(max((max(word) for word in self._words), default=0), vocabulary, "bad_words")
        if device not in self._tensors:
            long = [word for word in self._words if len(word) > 1]
            before = [[-1] * (self.reach + 1 - len(word)) + list(word[:-1]) for word in long]
            single, last = [word[0] for word in self._words if len(word) == 1], [word[-1] for word in long]
            self._tensors[device] = (
                torch.tensor(single, dtype=torch.int64, device=device),
                torch.tensor(last, dtype=torch.int64, device=device),
                torch.tensor(before, dtype=torch.int64, device=device).view(len(long), self.reach),
            )
        return self._tensors[device]


def _items(words: Any) -> Iterable[Any]:
    if isinstance(words, str) or not isinstance(words, Iterable):
        raise ArgumentError(f"bad_words must be sequences of token ids, such as [[5], [6, 7]], got {words!r}")
    return words


def _word(word: Any) -> tuple[int, ...]:
    tokens = tuple(_token(token, "bad_words") for token in _items(word))
    if not tokens:
        raise ArgumentError("bad_words must be sequences of at least one token id each, got an empty one")
    return tokens
