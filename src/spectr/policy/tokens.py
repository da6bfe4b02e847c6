"""Settings that consist of tokens: a bias per token, bad words, and sets of tokens. They are checked and immutable."""

import math
from collections.abc import Iterable, Iterator, Mapping
from numbers import Integral, Real
from typing import Any

from spectr.errors import ArgumentError

__all__ = ["Bias", "as_tokens", "as_words"]


def _token(value: Any, setting: str) -> int:
    if not isinstance(value, Integral) or value < 0:
        raise ArgumentError(f"{setting} must name tokens by ids, integers from 0 on, got {value!r}")
    return int(value)


def _addend(value: Any) -> float:
    if not isinstance(value, Real) or not value < math.inf:
        raise ArgumentError(f"logit_bias must add finite numbers, or -inf to exclude a token, got {value!r}")
    return float(value)


class Bias(Mapping[int, float]):
    """A bias for the logits of some tokens, −inf to exclude one; immutable and hashable.

    >>> Bias({7: 2, 3: -math.inf})
    {3: -inf, 7: 2.0}
    """

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[int, float]) -> None:
        if not isinstance(values, Mapping):
            raise ArgumentError(f"logit_bias must be a mapping from token ids to numbers, got {values!r}")
        self._values = dict(sorted((_token(token, "logit_bias"), _addend(value)) for token, value in values.items()))

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


def as_tokens(ids: Any, setting: str) -> tuple[int, ...]:
    """Return the tokens of a setting in order; a user may pass one id, several, or None for none.

    >>> as_tokens([7, 3, 7], "suppress_tokens"), as_tokens(2, "forced_eos_token_id")
    ((3, 7), (2,))
    """
    several: Any = () if ids is None else (ids,) if isinstance(ids, Integral) else ids
    if isinstance(several, str) or not isinstance(several, Iterable):
        raise ArgumentError(f"{setting} must be token ids, such as [5, 6], got {several!r}")
    return tuple(sorted({_token(token, setting) for token in several}))


def as_words(words: Any) -> tuple[tuple[int, ...], ...]:
    """Return bad words as sequences of tokens, of which the last must not follow the others.

    >>> as_words([[5], [1, 2, 3]])
    ((5,), (1, 2, 3))
    """
    return tuple(_word(word) for word in _items(words))


def _items(words: Any) -> Iterable[Any]:
    if isinstance(words, str) or not isinstance(words, Iterable):
        raise ArgumentError(f"bad_words must be sequences of token ids, such as [[5], [6, 7]], got {words!r}")
    return words


def _word(word: Any) -> tuple[int, ...]:
    tokens = tuple(_token(token, "bad_words") for token in _items(word))
    if not tokens:
        raise ArgumentError("bad_words must be sequences of at least one token id each, got an empty one")
    return tokens
