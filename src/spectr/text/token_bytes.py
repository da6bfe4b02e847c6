"""The bytes of every token, for tokenizers whose texts are the concatenated bytes of their tokens.

These are byte-level vocabularies (GPT-2, Llama 3, Qwen, SmolLM). Decoding bytes is ten times as fast as calling the
tokenizer.
"""

import random
import weakref
from typing import Any

__all__ = ["byte_alphabet", "token_bytes"]

_TRIES, _LENGTH = 32, 12  # random sequences that a table is checked on, and their length
_tables: "weakref.WeakKeyDictionary[Any, list[bytes] | None]" = weakref.WeakKeyDictionary()


def byte_alphabet() -> dict[str, int]:
    """Return the byte of each character of a byte-level vocabulary. Printable bytes are their own characters; the
    others are the characters from 256 on, in order.

    >>> byte_alphabet()["Ġ"], len(byte_alphabet())
    (32, 256)
    """
    own = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + at): byte for at, byte in enumerate(others)}


def token_bytes(tokenizer: Any) -> list[bytes] | None:
    """Return the bytes of each token, empty for special ones; None if the tokenizer is not a byte-level one."""
    if not hasattr(tokenizer, "__weakref__"):
        return None
    if tokenizer not in _tables:
        _tables[tokenizer] = _table(tokenizer)
    return _tables[tokenizer]


def _table(tokenizer: Any) -> list[bytes] | None:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if type(getattr(backend, "decoder", None)).__name__ != "ByteLevel":
        return None
    if getattr(tokenizer, "clean_up_tokenization_spaces", False):
        return None
    alphabet = byte_alphabet()

    def spelled(word: str | None) -> bytes:
        if word is None:
            return b""
        known = all(sign in alphabet for sign in word)
        return bytes(alphabet[sign] for sign in word) if known else word.encode()  # otherwise it is spelled literally

    added = tokenizer.added_tokens_decoder
    special = {token for token, entry in added.items() if entry.special} | set(tokenizer.all_special_ids)
    words = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    table = [b"" if token in special else spelled(word) for token, word in enumerate(words)]
    return table if _agrees(table, tokenizer) else None


def _agrees(table: list[bytes], tokenizer: Any) -> bool:
    """Whether the tokenizer decodes random tokens to the bytes of a table."""
    chance = random.Random(0)
    for _ in range(_TRIES):
        tokens = [chance.randrange(len(table)) for _ in range(_LENGTH)]
        expected = tokenizer.decode(tokens, skip_special_tokens=True)
        if b"".join(table[token] for token in tokens).decode("utf-8", "replace") != expected:
            return False
    return True
