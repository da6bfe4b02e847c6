"""From a body of `/v1/responses` to the body of a conversation, and from the errors of a conversation back."""

from typing import Any

from pydantic import ValidationError

from spectr.serve.errors import ApiError
from spectr.serve.fields import as_field_error
from spectr.serve.protocol import ChatRequest, SamplingFields
from spectr.serve.responses_api.fields import CallItem, Content, FunctionTool, MessageItem, ResponsesRequest

__all__ = ["as_chat_request", "as_response_error"]

_RENAMED = {
    "messages": "input", "max_completion_tokens": "max_output_tokens", "response_format": "text.format",
    "logprobs": "include",
}  # fmt: skip
"""Fields of a conversation that have another name here."""
_REWORDED = {
    "response_format": ("response_format", "text.format"), "tools": (".function.", "."),
    "max_completion_tokens": ("max_completion_tokens", "max_output_tokens"),
}  # fmt: skip
"""What is replaced in messages about a field of a conversation: a tool has its fields one level higher here."""


def as_chat_request(body: ResponsesRequest) -> ChatRequest:
    """Return the body of a conversation. It always asks for a stream, whose chunks become events or a response."""
    if body.spectr is not None and body.spectr.resume is not None:
        raise ApiError(400, "a stream of /v1/responses cannot be resumed; send the request again", "spectr.resume",
                       "not_resumable")  # fmt: skip
    if body.store:
        raise ApiError(400, "store must be false: this server stores nothing, so send the whole conversation in input",
                       "store", "unsupported_field")  # fmt: skip
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream to be true", "stream_options")
    wants_logprobs = bool(body.include)
    if body.top_logprobs and not wants_logprobs:
        raise ApiError(400, "top_logprobs needs include to name message.output_text.logprobs", "top_logprobs")
    made = {
        **{name: getattr(body, name) for name in SamplingFields.model_fields if getattr(body, name) is not None},
        "stream": True,
        "stream_options": {"include_usage": True, "event_ids": False},
        "messages": _messages(body),
        "max_completion_tokens": body.max_output_tokens,
        "tools": [_as_tool(tool) for tool in body.tools or ()],
        "tool_choice": _choice(body),
        "parallel_tool_calls": body.parallel_tool_calls,
        "response_format": _form(body),
        "logprobs": wants_logprobs or None,
        "top_logprobs": body.top_logprobs if wants_logprobs else None,
    }
    try:
        return ChatRequest.model_validate(made)
    except ValidationError as error:
        raise as_response_error(as_field_error(error, ChatRequest)) from error
    except ApiError as error:
        raise as_response_error(error) from error


def _messages(body: ResponsesRequest) -> list[dict[str, Any]]:
    """Return the items of a conversation as messages. A call becomes part of the assistant's message before it, or of
    a new one."""
    found: list[dict[str, Any]] = []
    if body.instructions is not None:
        found.append({"role": "system", "content": body.instructions})
    if isinstance(body.input, str):
        return [*found, {"role": "user", "content": body.input}]
    for item in body.input:
        if isinstance(item, MessageItem):
            found.append({"role": item.role, "content": _text(item.content)})
        elif isinstance(item, CallItem):
            if not found or found[-1]["role"] != "assistant":
                found.append({"role": "assistant"})
            function = {"name": item.name, "arguments": item.arguments}
            call = {"id": item.call_id, "type": "function", "function": function}
            found[-1].setdefault("tool_calls", []).append(call)
        else:
            found.append({"role": "tool", "content": _text(item.output), "tool_call_id": item.call_id})
    return found


def _text(content: Content) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)


def _as_tool(tool: FunctionTool) -> dict[str, Any]:
    return {"type": "function", "function": {name: value for name, value in tool if name != "type"}}


def _choice(body: ResponsesRequest) -> Any:
    if body.tool_choice is None or isinstance(body.tool_choice, str):
        return body.tool_choice
    return {"type": "function", "function": {"name": body.tool_choice.name}}


def _form(body: ResponsesRequest) -> dict[str, Any] | None:
    form = None if body.text is None else body.text.format
    if form is None:
        return None
    if form.type == "json_schema" and form.schema_ is None:
        raise ApiError(400, "a text.format of type json_schema needs a schema", "text.format.schema", "missing_field")
    schema = {} if form.schema_ is None else {"json_schema": {"name": form.name, "schema": form.schema_}}
    return {"type": form.type, **schema}


def as_response_error(error: ApiError) -> ApiError:
    """Return an error about a conversation with the names that its fields have in the body it was made from."""
    if error.param is None:
        return error
    first, dot, rest = error.param.partition(".")
    rest = (dot + rest).replace(".function.", ".")
    place = "" if first == "messages" else rest  # calls and instructions shift the numbers of messages
    message = error.message.replace(*_REWORDED[first]) if first in _REWORDED else error.message
    return ApiError(error.status, message, _RENAMED.get(first, first) + place, error.code, error.wait)
