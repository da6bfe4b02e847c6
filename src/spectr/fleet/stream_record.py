"""Records what a client has received of a stream: enough for another replica to continue it."""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spectr.serve.events import Event

__all__ = ["Block", "StreamRecord", "blocks"]


@dataclass(frozen=True, slots=True)
class Block:
    """One server-sent event as a replica sent it."""

    data: bytes
    id: str | None = None


async def blocks(chunks: AsyncIterator[bytes]) -> AsyncIterator[Block]:
    """Parse server-sent events from bytes that may be split anywhere. Skip comments, and an incomplete event at the
    end."""
    rest = b""
    async for chunk in chunks:
        *complete, rest = (rest + chunk).split(b"\n\n")
        for event in complete:
            fields = dict(line.partition(b": ")[::2] for line in event.split(b"\n"))
            if b"data" in fields:
                event_id = fields.get(b"id")
                yield Block(fields[b"data"], None if event_id is None else event_id.decode())


@dataclass(slots=True)
class _Text:
    """The part of one text that was sent."""

    tokens: list[int] = field(default_factory=list)
    begun: bool = False
    finish_reason: str | None = None

    @property
    def entry(self) -> dict[str, Any]:
        """The entry of this text in the `resume` field of a request."""
        return {"tokens": self.tokens, "begun": self.begun, "finish_reason": self.finish_reason}


def _count(body: Mapping[str, Any]) -> int:
    """Return the number of texts that a body asks for. The result means nothing if the body is invalid."""
    prompt, n = body.get("prompt"), body.get("n") or 1
    is_single = not isinstance(prompt, list) or (bool(prompt) and isinstance(prompt[0], int))
    return (1 if is_single else len(prompt or [])) * (n if isinstance(n, int) else 1)


def _with_true(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Set a field to true, unless it has a value that the replica refuses."""
    is_valid = fields.get(name) is None or isinstance(fields[name], bool)
    return {**fields, name: True} if is_valid else dict(fields)


class StreamRecord:
    """Records one stream from its admission to its end, from one replica or several. Its request must have a seed."""

    def __init__(self, body: Mapping[str, Any], last_id: str | None, *, event_ids: bool) -> None:
        self._body, self._last_id = body, last_id
        self._texts: defaultdict[int, _Text] = defaultdict(_Text)  # texts of which something was sent
        self._head: dict[str, Any] | None = None  # the last chunk, for the fields that all chunks share
        options = body.get("stream_options") or {}
        asks_ids = options.get("event_ids")
        self._sends_ids = last_id is not None or (event_ids if asks_ids is None else bool(asks_ids))
        self._sends_tokens = bool((body.get("spectr") or {}).get("tokens"))
        self._is_continued = last_id is not None  # the client received a part on an earlier connection
        self.is_closed = False  # everything was sent except the end mark

    def add(self, data: dict[str, Any], event_id: str | None) -> Event:
        """Record a chunk with its event id, and return the event to send to the client."""
        self._head, self._last_id = data, event_id
        extension = data.get("spectr", {}) if data["choices"] else {}
        tokens = extension.get("tokens", [])
        for choice in data["choices"]:
            text = self._texts[choice["index"]]
            text.begun = True
            text.tokens += tokens
            text.finish_reason = choice["finish_reason"] or text.finish_reason
        self.is_closed = self.is_closed or not data["choices"]
        if not self._sends_tokens:
            extension.pop("tokens", None)
        if data.get("spectr") == {}:
            del data["spectr"]
        return Event(data, event_id if self._sends_ids else None)

    @property
    def has_begun(self) -> bool:
        """Whether anything was sent to the client on this connection."""
        return self._head is not None

    @property
    def _is_known(self) -> bool:
        """Whether the tokens of all texts are known. For a client that reconnected, the tokens of a text are known once
        a chunk of that text has arrived on this connection."""
        return not self._is_continued or len(self._texts) == _count(self._body)

    def _resume(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """Return the `resume` field for the next replica: the texts that the client's own `resume` field has, if any,
        followed by what was sent since. Call this only after the first chunk, which shows that the body is valid."""
        extension = self._body.get("spectr") or {}
        before = extension["resume"]["texts"] if extension.get("resume") else [_Text().entry] * _count(self._body)
        texts = [
            {
                "tokens": [*past["tokens"], *self._texts[index].tokens],
                "begun": past["begun"] or self._texts[index].begun,
                "finish_reason": past["finish_reason"] or self._texts[index].finish_reason,
            }
            for index, past in enumerate(before)
        ]
        head = {"id": head["id"], "created": head["created"], "fingerprint": head["system_fingerprint"]}
        return {**head, "texts": texts}

    def body(self) -> dict[str, Any]:
        """Return the body for the next replica."""
        options = _with_true(self._body.get("stream_options") or {}, "event_ids")
        extension = _with_true(self._body.get("spectr") or {}, "tokens")
        if self._head is not None and self._is_known:
            extension["resume"] = self._resume(self._head)
        return {**self._body, "stream_options": options, "spectr": extension}

    def headers(self) -> dict[str, str]:
        """Return headers for the next replica: the last event id, if the tokens before it are not known."""
        is_resumed = self._head is not None and self._is_known
        return {} if is_resumed or self._last_id is None else {"last-event-id": self._last_id}
