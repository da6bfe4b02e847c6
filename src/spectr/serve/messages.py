"""The messages of a conversation, as a chat template takes them."""

from typing import Any

from pydantic_core import from_json

from spectr.serve.chat_fields import Message, TextPart, ToolCall
from spectr.serve.errors import ApiError

__all__ = ["as_turns", "characters", "joined"]


def as_turns(messages: list[Message]) -> list[dict[str, Any]]:
    """Return messages as a chat template takes them; raises ApiError for fields that do not fit a message's role."""
    return [_as_turn(message, f"messages.{at}") for at, message in enumerate(messages)]


def _as_turn(message: Message, place: str) -> dict[str, Any]:
    _check(message, place)
    role = "system" if message.role == "developer" else message.role
    turn: dict[str, Any] = {"role": role, "content": joined(message.content)}
    if message.tool_calls:
        turn["tool_calls"] = [_as_call(call, f"{place}.tool_calls.{at}") for at, call in enumerate(message.tool_calls)]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _check(message: Message, place: str) -> None:
    """Refuse fields that messages of this role do not have, and a message without a content."""
    if message.tool_calls and message.role != "assistant":
        raise ApiError(400, f"only a message with the role assistant may have tool_calls; the role of this message is "
                       f"{message.role}", f"{place}.tool_calls", "invalid_value")  # fmt: skip
    if (message.tool_call_id is not None) != (message.role == "tool"):
        raise ApiError(400, "a message with the role tool must have a tool_call_id, and no other message may; the "
                       f"role of this message is {message.role}", f"{place}.tool_call_id", "invalid_value")  # fmt: skip
    if message.content is None and not message.tool_calls:
        raise ApiError(400, "a message must have a content, unless its role is assistant and it has tool_calls",
                       f"{place}.content", "missing_field")  # fmt: skip
    if message.role == "user" and not joined(message.content):
        raise ApiError(400, "the content of a message with the role user must not be empty", f"{place}.content",
                       "invalid_value")  # fmt: skip


def _as_call(call: ToolCall, place: str) -> dict[str, Any]:
    """Return a call with its arguments as an object, as chat templates write them. They are read as strictly as the
    body: what is no JSON or no Unicode, or is nested very deep, could not be written into a prompt."""
    try:
        arguments = from_json(call.function.arguments or "{}", allow_inf_nan=False)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise ApiError(400, f"the arguments of a call must be a JSON object as a string, got "
                       f"{call.function.arguments[:80]!r}", f"{place}.function.arguments", "invalid_value")  # fmt: skip
    return {"id": call.id, "type": "function", "function": {"name": call.function.name, "arguments": arguments}}


def characters(messages: list[Message]) -> int:
    """Return the number of characters of a conversation."""
    calls = [call for message in messages for call in message.tool_calls or ()]
    called = sum(len(call.id) + len(call.function.name) + len(call.function.arguments) for call in calls)
    return called + sum(len(joined(message.content)) for message in messages)


def joined(content: str | list[TextPart] | None) -> str:
    """Return the text of a content, which may be given in parts."""
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(part.text for part in content)
