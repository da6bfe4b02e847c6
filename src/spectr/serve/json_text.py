"""JSON of large answers, written without holding up other threads."""

import json
from collections.abc import Iterator
from typing import Any

__all__ = ["json_bytes", "json_length"]

_PIECE = 128  # entries of a list that one call writes
_CHARACTERS = 1 << 16  # of strings that one call writes with other entries
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False)


def json_bytes(data: Any) -> bytes:
    """JSON in UTF-8. One call of `json.dumps` holds the interpreter's lock to its end, which is half a second for a
    prompt of 32,000 tokens with log-probabilities; here other threads run between pieces.

    >>> json_bytes({"a": [1, {"b": "é"}], "c": []}).decode()
    '{"a": [1, {"b": "é"}], "c": []}'
    """
    if _is_small(data):
        return _text(data).encode()
    return b"".join(piece.encode() for piece in _pieces(data))


def json_length(data: Any, indent: int | None = None) -> int:
    """Return the number of characters of data as JSON, without holding up other threads. With `indent`, every entry has
    a line of its own.

    >>> json_length({"a": "é"}), json_length({"a": "é"}, indent=1)
    (10, 13)
    """
    if indent is None:
        return sum(map(len, _pieces(data)))
    encoder = json.JSONEncoder(ensure_ascii=False, allow_nan=False, indent=indent)
    return sum(map(len, encoder.iterencode(data)))


def _is_small(data: Any) -> bool:
    """Return whether one call may write all of it: it has few entries, nested ones included, and no long strings. Most
    events are small, and writing them in pieces takes ten times as long."""
    left, entries, characters = [data], 0, 0
    while left:
        part = left.pop()
        if isinstance(part, str):
            characters += len(part)
        elif isinstance(part, dict | list | tuple):
            entries += len(part)
            left += part.values() if isinstance(part, dict) else part
        if entries > _PIECE or characters > _CHARACTERS:
            return False
    return True


def _pieces(value: Any) -> Iterator[str]:
    if isinstance(value, dict) and value and all(isinstance(name, str) for name in value):
        opening = "{"
        for name, part in value.items():
            yield f"{opening}{_text(name)}: "
            yield from _pieces(part)
            opening = ", "
        yield "}"
    elif isinstance(value, list) and len(value) > _PIECE:
        opening = "["
        for start in range(0, len(value), _PIECE):
            yield f"{opening}{_text(value[start : start + _PIECE])[1:-1]}"
            opening = ", "
        yield "]"
    elif isinstance(value, list) and any(isinstance(part, dict | list) for part in value):
        opening = "["
        for part in value:
            yield opening
            yield from _pieces(part)
            opening = ", "
        yield "]"
    else:
        yield _text(value)


def _text(value: Any) -> str:
    return _ENCODER.encode(value)
