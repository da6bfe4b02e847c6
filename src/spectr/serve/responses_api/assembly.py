"""Makes the events of a stream, and the response at its end, from the chunks of a conversation.

A response has items: messages of the model and its calls of functions. One item at a time is open, to which text or
arguments are added; text after a call opens another message.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from spectr.serve.errors import ApiError
from spectr.serve.responses_api.fields import ResponsesRequest

__all__ = ["ResponseAssembly"]

Data = dict[str, Any]


class ResponseAssembly:
    """The state of one response: its items so far, and how many events there were."""

    def __init__(self, body: ResponsesRequest) -> None:
        self.response = _begun(body)
        self._open: Data | None = None  # the open item, which is also the last in `output`
        self._unsent: list[Any] = []  # log-probabilities of tokens whose text was held back
        self._count = 0  # events so far
        self._reason: str | None = None  # why the text ended

    def events(self, chunk: Mapping[str, Any]) -> Iterator[Data]:
        """Add a chunk of the conversation to the response, and yield the events for it."""
        if not self._count:
            self._identify(chunk)
            for kind in ("response.created", "response.in_progress"):
                yield self._event(kind, response={**self.response, "output": []})
        for choice in chunk["choices"]:
            yield from self._continue(choice)
        if not chunk["choices"]:
            yield from self._finish(chunk)

    def error(self, error: ApiError) -> Data:
        """Return the event of an error in the middle of a stream."""
        return self._event(
            "error", code=error.code, message=error.message, param=error.param, error=error.body["error"]
        )  # fmt: skip

    def _identify(self, chunk: Mapping[str, Any]) -> None:
        name = chunk["id"].removeprefix("chatcmpl-")
        self.response |= {"id": f"resp_{name}", "created_at": chunk["created"], "model": chunk["model"]}

    def _event(self, kind: str, **fields: Any) -> Data:
        self._count += 1
        return {"type": kind, "sequence_number": self._count - 1, **fields}

    def _place(self) -> Data:
        """Return the fields by which an event names the open item."""
        assert self._open is not None
        return {"output_index": len(self.response["output"]) - 1, "item_id": self._open["id"]}

    def _continue(self, choice: Mapping[str, Any]) -> Iterator[Data]:
        """Yield the events of the next part of the answer."""
        delta, logprobs = choice["delta"], choice["logprobs"]
        self._unsent += [] if logprobs is None else logprobs["content"]
        if text := delta.get("content"):
            if self._open is None or self._open["type"] != "message":
                yield from self._close("completed")
                yield from self._open_message()
            yield from self._add_text(text)
        for part in delta.get("tool_calls", ()):
            self._unsent.clear()  # log-probabilities are reported for texts only
            if "id" in part:
                yield from self._close("completed")
                yield from self._open_call(part)
            yield from self._add_arguments(part["function"]["arguments"])
        self._reason = choice["finish_reason"] or self._reason

    def _begin(self, item: Data) -> Data:
        """Open an item, and return the event for it. The event has a copy, because the item grows later."""
        self.response["output"].append(item)
        self._open = item
        return self._event("response.output_item.added", output_index=len(self.response["output"]) - 1, item=dict(item))

    def _open_message(self) -> Iterator[Data]:
        item: Data = {"id": self._item_id("msg"), "type": "message", "role": "assistant", "status": "in_progress",
                      "content": []}  # fmt: skip
        yield self._begin(item)
        part: Data = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._event(
            "response.content_part.added", **self._place(), content_index=0, part={**part, "logprobs": []}
        )
        item["content"] = [part]

    def _open_call(self, part: Mapping[str, Any]) -> Iterator[Data]:
        yield self._begin({
            "id": self._item_id("fc"), "type": "function_call", "call_id": part["id"],
            "name": part["function"]["name"], "arguments": "", "status": "in_progress",
        })  # fmt: skip

    def _item_id(self, kind: str) -> str:
        return f"{kind}_{self.response['id'].removeprefix('resp_')}_{len(self.response['output'])}"

    def _add_text(self, text: str) -> Iterator[Data]:
        assert self._open is not None
        (part,) = self._open["content"]
        part["text"] += text
        said, self._unsent = self._unsent, []
        part["logprobs"] += said
        yield self._event("response.output_text.delta", **self._place(), content_index=0, delta=text, logprobs=said)

    def _add_arguments(self, text: str) -> Iterator[Data]:
        assert self._open is not None
        self._open["arguments"] += text
        if text:
            yield self._event("response.function_call_arguments.delta", **self._place(), delta=text)

    def _close(self, status: str) -> Iterator[Data]:
        """Yield the events that end the open item, if there is one."""
        if (item := self._open) is None:
            return
        item["status"], place = status, self._place()
        if item["type"] == "message":
            if self._unsent:  # of tokens without a text, such as one that ends it
                yield from self._add_text("")
            (part,) = item["content"]
            text = {"text": part["text"], "logprobs": part["logprobs"]}
            yield self._event("response.output_text.done", **place, content_index=0, **text)
            yield self._event("response.content_part.done", **place, content_index=0, part=part)
        else:
            made = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event("response.function_call_arguments.done", **place, **made)
        yield self._event("response.output_item.done", output_index=place["output_index"], item=item)
        self._open = None

    def _finish(self, chunk: Mapping[str, Any]) -> Iterator[Data]:
        """Yield the last events, from the chunk that has the usage."""
        if not self.response["output"]:
            yield from self._open_message()
        status = "incomplete" if self._reason == "length" else "completed"
        yield from self._close(status)
        details = {"reason": "max_output_tokens"} if status == "incomplete" else None
        self.response |= {"status": status, "incomplete_details": details, "usage": _usage(chunk["usage"]),
                          "metrics": chunk["metrics"], "spectr": chunk["spectr"]}  # fmt: skip
        yield self._event(f"response.{status}", response=self.response)


def _begun(body: ResponsesRequest) -> Data:
    """Return a response that has begun, with the settings of its request."""
    form = None if body.text is None or body.text.format is None else body.text.format
    choice = body.tool_choice or ("auto" if body.tools else "none")
    return {
        "id": "", "object": "response", "created_at": 0, "status": "in_progress", "error": None,
        "incomplete_details": None, "model": "", "output": [], "instructions": body.instructions,
        "max_output_tokens": body.max_output_tokens, "temperature": body.temperature, "top_p": body.top_p,
        "top_logprobs": body.top_logprobs or 0,
        "text": {"format": {"type": "text"} if form is None else form.model_dump(by_alias=True, exclude_unset=True)},
        "tools": [dict(tool) for tool in body.tools or ()],
        "tool_choice": choice if isinstance(choice, str) else choice.model_dump(),
        "parallel_tool_calls": body.parallel_tool_calls is not False, "truncation": "disabled", "store": False,
        "previous_response_id": None, "metadata": body.metadata or {}, "user": body.user, "usage": None,
    }  # fmt: skip


def _usage(given: Mapping[str, Any]) -> Data:
    return {
        "input_tokens": given["prompt_tokens"], "input_tokens_details": given["prompt_tokens_details"],
        "output_tokens": given["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0, **given["completion_tokens_details"]},
        "total_tokens": given["total_tokens"],
    }  # fmt: skip
