"""The part of a stream that its client has: enough for another replica to continue it."""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spectr.serve.events import Event

__all__ = ["Block", "StreamRecord", "blocks"]


@dataclass(frozen=True, slots=True)
class Block:
    """One server-sent event as it came."""

    data: bytes
    id: str | None = None


async def blocks(chunks: AsyncIterator[bytes]) -> AsyncIterator[Block]:
    """Server-sent events from bytes in whatever pieces they come; comments are left out, and so is an event that lacks
    its end."""
    held = b""
    async for chunk in chunks:
        *whole, held = (held + chunk).split(b"\n\n")
        for part in whole:
            fields = dict(line.partition(b": ")[::2] for line in part.split(b"\n"))
            if b"data" in fields:
                name = fields.get(b"id")
                yield Block(fields[b"data"], None if name is None else name.decode())


@dataclass(slots=True)
class _Text:
    """What was sent of one text."""

    tokens: list[int] = field(default_factory=list)
    begun: bool = False
    finish_reason: str | None = None

    @property
    def entry(self) -> dict[str, Any]:
        """As a body has it."""
        return {"tokens": self.tokens, "begun": self.begun, "finish_reason": self.finish_reason}


def _count(body: Mapping[str, Any]) -> int:
    """How many texts a body asks for, if it is a sound one."""
    prompt, n = body.get("prompt"), body.get("n") or 1
    is_single = not isinstance(prompt, list) or (bool(prompt) and isinstance(prompt[0], int))
    return (1 if is_single else len(prompt or [])) * (n if isinstance(n, int) else 1)


class StreamRecord:
    """One stream from its admission to its end, at one replica or several. Its body has a seed."""

    def __init__(self, body: Mapping[str, Any], last_id: str | None, *, event_ids: bool) -> None:
        self._body, self._last_id = body, last_id
        self._texts: defaultdict[int, _Text] = defaultdict(_Text)  # those of which something came
        self._head: dict[str, Any] | None = None  # what all chunks of the stream have in common
        options = body.get("stream_options") or {}
        wanted = options.get("event_ids")
        self._sends_ids = last_id is not None or (event_ids if wanted is None else bool(wanted))
        self._sends_tokens = bool((body.get("spectr") or {}).get("tokens"))
        self._is_continued = last_id is not None  # the client had something before this connection
        self.is_closed = False  # all was sent, but for the mark of the end

    def add(self, data: dict[str, Any], name: str | None) -> Event:
        """Record a chunk, and return the event that the client gets."""
        self._head, self._last_id = data, name
        shown = data.get("spectr", {}) if data["choices"] else {}
        tokens = shown.get("tokens", [])
        for choice in data["choices"]:
            text = self._texts[choice["index"]]
            text.begun = True
            text.tokens += tokens
            text.finish_reason = choice["finish_reason"] or text.finish_reason
        self.is_closed = self.is_closed or not data["choices"]
        if not self._sends_tokens:
            shown.pop("tokens", None)
        if data.get("spectr") == {}:
            del data["spectr"]
        return Event(data, name if self._sends_ids else None)

    @property
    def has_begun(self) -> bool:
        """Whether the client was sent anything on this connection."""
        return self._head is not None

    @property
    def _is_known(self) -> bool:
        """Whether the tokens of all texts are known. Of a text that a client had before it reconnected, they are once
        something more came of it."""
        return not self._is_continued or len(self._texts) == _count(self._body)

    def _resume(self, head: Mapping[str, Any]) -> dict[str, Any]:
        """The `resume` field for the next replica. After the first chunk the body is known to be valid. The client may
        itself have resumed a stream."""
        own = self._body.get("spectr") or {}
        before = own["resume"]["texts"] if own.get("resume") else [_Text().entry] * _count(self._body)
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
        """The body for the next replica."""
        options = {**(self._body.get("stream_options") or {}), "event_ids": True}
        own = {**(self._body.get("spectr") or {}), "tokens": True}
        if self._head is not None and self._is_known:
            own["resume"] = self._resume(self._head)
        return {**self._body, "stream_options": options, "spectr": own}

    def headers(self) -> dict[str, str]:
        """Headers for the next replica: the place to go on from, where the tokens before it are not known."""
        is_resumed = self._head is not None and self._is_known
        return {} if is_resumed or self._last_id is None else {"last-event-id": self._last_id}
