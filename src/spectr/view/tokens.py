"""Decodes single tokens to text and bytes."""

from typing import Any

from spectr.text.stream import tokenizer_lock
from spectr.text.token_bytes import byte_alphabet

__all__ = ["TokenTexts"]


class TokenTexts:
    """Decodes the tokens of a tokenizer one by one. If a token is a part of a character, its text has a replacement
    character; its bytes are exact."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        decoder = type(getattr(backend, "decoder", None)).__name__
        self._alphabet = byte_alphabet() if decoder == "ByteLevel" else None
        self._known: dict[int, tuple[str, bytes]] = {}  # at most one entry for each token of the vocabulary

    def text(self, token: int) -> str:
        """Return the text of a single token."""
        return self._entry(token)[0]

    def raw(self, token: int) -> bytes:
        """Return the bytes of a token."""
        return self._entry(token)[1]

    def _entry(self, token: int) -> tuple[str, bytes]:
        """Return the text and the bytes of a token, which are cached."""
        if (found := self._known.get(token)) is None:
            raw = self._spelled(token)
            found = self._known[token] = raw.decode("utf-8", "replace"), raw
        return found

    def _spelled(self, token: int) -> bytes:
        word = self._word(token)
        if word is None:
            return b""
        if self._alphabet is not None:
            if all(sign in self._alphabet for sign in word):
                return bytes(self._alphabet[sign] for sign in word)
            return word.encode()  # an added token, spelled literally
        if len(word) == 6 and word.startswith("<0x") and word.endswith(">"):
            return bytes([int(word[3:5], 16)])
        return word.replace("▁", " ").encode()

    def decode(self, tokens: list[int]) -> str:
        """Return the text of a prompt, including special tokens."""
        with tokenizer_lock(self._tokenizer):
            return str(self._tokenizer.decode(tokens, skip_special_tokens=False))

    def _word(self, token: int) -> str | None:
        """Return a token as the vocabulary spells it; None for one beyond the vocabulary."""
        try:
            with tokenizer_lock(self._tokenizer):
                word = self._tokenizer.convert_ids_to_tokens(token)
        except (IndexError, OverflowError, TypeError):
            return None
        return None if word is None else str(word)
