"""The bytes of a model's tokens, in the form that xgrammar requires."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spectr.errors import ArgumentError, MissingExtraError
from spectr.grammar.masks import packed

__all__ = ["Vocabulary", "xgrammar"]

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf]")
_PROBE = '{"Qzxvb": [1, 2.5, true], "b c": null}'  # contains a word that is not one token of any tokenizer


def xgrammar() -> Any:
    """Import and return the package xgrammar, or raise MissingExtraError."""
    try:
        import xgrammar as package
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "xgrammar":
            raise
        raise MissingExtraError("xgrammar", "grammar", "structured output") from None
    return package


@dataclass(frozen=True)
class Vocabulary:
    """The text of each token as bytes, empty for tokens without text: special ones, and those beyond the tokenizer's
    vocabulary. Tokens with bytes of surrogates count as tokens without text."""

    pieces: tuple[bytes, ...]
    stops: frozenset[int]
    # Splits a text into tokens.
    encode: Callable[[str], list[int]] | None = field(default=None, compare=False, repr=False)

    @classmethod
    def of(
        cls, tokenizer: Any, size: int, stops: Iterable[int], encode: Callable[[str], list[int]] | None = None
    ) -> "Vocabulary":
        """Return the vocabulary of a tokenizer whose model has logits for `size` tokens, of which `stops` end a text.

        `encode` splits a text into tokens, without special ones; it must be thread-safe."""
        ends = frozenset(stop for stop in stops if stop < size)
        try:
            info = xgrammar().TokenizerInfo.from_huggingface(
                tokenizer, vocab_size=size, stop_token_ids=sorted(ends) or [0]
            )
        except (ValueError, AttributeError, RuntimeError) as error:
            raise ArgumentError(
                f"a grammar requires a tokenizer of the transformers library with its vocabulary: {error}"
            ) from error
        pieces = list(info.decoded_vocab)
        for token, added in getattr(tokenizer, "added_tokens_decoder", {}).items():
            if token < size:
                pieces[token] = b"" if added.special else added.content.encode()
        for token in {*getattr(tokenizer, "all_special_ids", ()), *ends}:
            if token < size:
                pieces[token] = b""
        _check_spelling(tokenizer, pieces)
        return cls(tuple(b"" if _SURROGATE.search(piece) else piece for piece in pieces), ends, encode)

    @property
    def size(self) -> int:
        """The number of logits of the model."""
        return len(self.pieces)

    @cached_property
    def info(self) -> Any:
        """The vocabulary as xgrammar's object. Tokens without text are never allowed, except stop tokens at an end."""
        package = xgrammar()
        return package.TokenizerInfo(
            list(self.pieces), package.VocabType.RAW, vocab_size=self.size, stop_token_ids=self._ends
        )

    @property
    def _ends(self) -> list[int]:
        """The stop tokens; without any, a token without text, because xgrammar would otherwise guess some."""
        return sorted(self.stops) or [next((at for at, piece in enumerate(self.pieces) if not piece), self.size - 1)]

    def first_bytes(self, tokens: "np.ndarray[Any, Any]") -> set[int]:
        """Return the set of first bytes of these tokens."""
        return set(np.unique(self._firsts[tokens]).tolist()) - {-1}

    @cached_property
    def _firsts(self) -> "np.ndarray[Any, Any]":
        return np.array([piece[0] if piece else -1 for piece in self.pieces], dtype=np.int16)

    @cached_property
    def heads(self) -> frozenset[int]:
        """Tokens that end with a byte after which some bytes would form a surrogate, which xgrammar allows."""
        return frozenset(token for token, piece in enumerate(self.pieces) if piece.endswith(b"\xed"))

    @cached_property
    def tails(self) -> Tensor:
        """A mask (W,) int32 without the tokens that begin with such bytes."""
        valid = [not b"\xa0" <= piece[:1] <= b"\xbf" for piece in self.pieces]
        return packed(torch.tensor(valid))


def _check_spelling(tokenizer: Any, pieces: list[bytes]) -> None:
    """Refuse tokenizers whose tokens do not spell the text, such as those that mark continuations of words."""
    ids = list(tokenizer(_PROBE, add_special_tokens=False)["input_ids"])
    if any(token in getattr(tokenizer, "all_special_ids", ()) or token >= len(pieces) for token in ids):
        return  # the tokenizer does not know all of these characters
    spelled = b"".join(pieces[token] for token in ids)
    if spelled.removeprefix(b" ") != _PROBE.encode():
        raise ArgumentError(
            f"a grammar requires a tokenizer whose tokens spell the text, and this one spells {_PROBE!r} as "
            f"{spelled.decode(errors='replace')!r}; use a model with a byte-level or byte-fallback tokenizer"
        )
