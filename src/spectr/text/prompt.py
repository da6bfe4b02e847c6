"""The forms of a prompt: a string, token ids, or the messages of a conversation."""

from collections.abc import Mapping, Sequence
from numbers import Integral
from typing import Any, TypeAlias, TypeGuard

from spectr.errors import ArgumentError

__all__ = ["Message", "Prompt", "as_ids", "as_messages", "check_text", "is_single"]

Message: TypeAlias = Mapping[str, str]
"""One message of a conversation: {"role": "user", "content": "…"}."""

Prompt: TypeAlias = str | Sequence[int] | Sequence[Message]


def _items(prompt: Any) -> list[Any] | None:
    """Return the items of a list, a tuple, or a one-dimensional tensor or array; None for anything else."""
    if getattr(prompt, "ndim", None) == 1 and hasattr(prompt, "tolist"):
        return list(prompt.tolist())
    return list(prompt) if isinstance(prompt, list | tuple | range) else None


def _all_of(items: list[Any] | None, kind: type) -> TypeGuard[list[Any]]:
    return bool(items) and all(isinstance(item, kind) and not isinstance(item, bool) for item in items or ())


def as_ids(prompt: Any) -> list[int] | None:
    """Return the token ids of a prompt that consists of token ids; None for any other.

    >>> as_ids((1, 734, 12)), as_ids("text")
    ([1, 734, 12], None)
    """
    items = _items(prompt)
    return [int(item) for item in items] if _all_of(items, Integral) else None


def as_messages(prompt: Any) -> list[Message] | None:
    """Return the messages of a prompt that is a conversation; None for any other. Each must have a role and a
    content."""
    items = _items(prompt)
    if not _all_of(items, Mapping):
        return None
    for message in items:
        if not isinstance(message.get("role"), str) or not isinstance(message.get("content"), str):
            raise ArgumentError(
                'a message must have a role and a content, both strings, such as {"role": "user", "content": "Hello"}; '
                f"got {message!r}"
            )
    return items


def is_single(prompts: Any) -> TypeGuard[Prompt]:
    """Whether `prompts` is a single prompt.

    >>> is_single("text"), is_single([1, 2]), is_single([[1, 2]]), is_single(["a", "b"])
    (True, True, False, False)
    """
    items = _items(prompts)
    return isinstance(prompts, str) or _all_of(items, Integral) or _all_of(items, Mapping)


def check_text(text: Any, what: str) -> str:
    """Return `text`; raise ArgumentError unless it is a string that is not empty and can be encoded."""
    if not isinstance(text, str):
        raise ArgumentError(f"{what} must be a string, a list of token ids, or a list of messages, got {text!r}")
    if not text:
        raise ArgumentError(f"{what} must not be empty")
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise ArgumentError(
            f"{what} must be valid Unicode text, got bytes that are not UTF-8; convert it, for example with iconv"
        )
    return text
