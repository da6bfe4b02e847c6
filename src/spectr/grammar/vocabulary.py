"""What the tokens of a model spell, as xgrammar wants to know it."""

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
_PROBE = '{"Qzxvb": [1, 2.5, true], "b c": null}'  # a word that no tokenizer has whole


def xgrammar() -> Any:
    """The package, if it is installed."""
    try:
        import xgrammar as package
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "xgrammar":
            raise
        raise MissingExtraError("xgrammar", "grammar", "structured output") from None
    return package


@dataclass(frozen=True)
class Vocabulary:
    """The text of each token, as bytes; empty for tokens that are no text: special ones, and those that the logits have
    beyond the tokenizer's. No text ends in the half of a character."""

    pieces: tuple[bytes, ...]
    stops: frozenset[int]
    encode: Callable[[str], list[int]] | None = field(default=None, compare=False, repr=False)  # a text as tokens

    @classmethod
    def of(
        cls, tokenizer: Any, size: int, stops: Iterable[int], encode: Callable[[str], list[int]] | None = None
    ) -> "Vocabulary":
        """Of a tokenizer whose model has logits for `size` tokens, of which `stops` end a text. `encode` splits a text
        into tokens, without special ones; from any thread."""
        ends = frozenset(stop for stop in stops if stop < size)
        try:
            info = xgrammar().TokenizerInfo.from_huggingface(
                tokenizer, vocab_size=size, stop_token_ids=sorted(ends) or [0]
            )
        except (ValueError, AttributeError, RuntimeError) as error:
            raise ArgumentError(
                f"a grammar needs a tokenizer of the transformers library with its vocabulary: {error}"
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
        """How many tokens there are logits for."""
        return len(self.pieces)

    @cached_property
    def info(self) -> Any:
        """The same for xgrammar. A token without text is never allowed, but for stop tokens at an end."""
        package = xgrammar()
        return package.TokenizerInfo(
            list(self.pieces), package.VocabType.RAW, vocab_size=self.size, stop_token_ids=self._ends
        )

    @property
    def _ends(self) -> list[int]:
        """The stop tokens; where there are none, a token that is no text, since xgrammar would look for some."""
        return sorted(self.stops) or [next((at for at, piece in enumerate(self.pieces) if not piece), self.size - 1)]

    def first_bytes(self, tokens: "np.ndarray[Any, Any]") -> set[int]:
        """What the texts of these tokens begin with."""
        return set(np.unique(self._firsts[tokens]).tolist()) - {-1}

    @cached_property
    def _firsts(self) -> "np.ndarray[Any, Any]":
        return np.array([piece[0] if piece else -1 for piece in self.pieces], dtype=np.int16)

    @cached_property
    def heads(self) -> frozenset[int]:
        """Tokens after which some bytes would make the half of a character: xgrammar allows these."""
        return frozenset(token for token, piece in enumerate(self.pieces) if piece.endswith(b"\xed"))

    @cached_property
    def tails(self) -> Tensor:
        """(W,) int32: a mask without the tokens that begin with such bytes."""
        sound = [not b"\xa0" <= piece[:1] <= b"\xbf" for piece in self.pieces]
        return packed(torch.tensor(sound))


def _check_spelling(tokenizer: Any, pieces: list[bytes]) -> None:
    """Refuse tokenizers whose tokens do not spell the text that they stand for, such as those that mark the insides of
    words."""
    ids = list(tokenizer(_PROBE, add_special_tokens=False)["input_ids"])
    if any(token in getattr(tokenizer, "all_special_ids", ()) or token >= len(pieces) for token in ids):
        return  # it does not know all of these characters
    spelled = b"".join(pieces[token] for token in ids)
    if spelled.removeprefix(b" ") != _PROBE.encode():
        raise ArgumentError(
            f"a grammar needs a tokenizer whose tokens spell texts, and this one spells {_PROBE!r} as "
            f"{spelled.decode(errors='replace')!r}; use a model with a byte-level or byte-fallback tokenizer"
        )
