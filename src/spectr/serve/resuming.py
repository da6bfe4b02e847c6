"""Streams that break off and continue. Every event has an id that says how many tokens of each text the client has,
with a checksum. A client that reconnects sends the last id back; a router that has the tokens sends those.

An id has an entry for each text of the request, with commas between them: `17:5f3a09c1` for 17 tokens, with a point
behind it if the text ended with them, and `-` for a text of which nothing was sent.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from spectr.engine import Reader, Step
from spectr.lm.output import TextReader
from spectr.serve.errors import ApiError
from spectr.serve.protocol import ResumeFields
from spectr.text.stream import TextStream

__all__ = ["Progress", "Seen", "TextPosition", "check_resume", "read_positions", "shown_text", "steps_after",
           "tokens_of"]  # fmt: skip

_ENTRY = re.compile(r"[0-9]{1,10}:[0-9a-f]{8}\.?")


@dataclass(slots=True)
class TextPosition:
    """The position that a stream has reached in a text: the number of its tokens, and a hash of them."""

    count: int = 0
    has_ended: bool = False
    _hash: Any = field(default_factory=sha256)

    def move(self, tokens: Sequence[int]) -> None:
        """Advance by some tokens."""
        self.count += len(tokens)
        self._hash.update(b"".join(token.to_bytes(4, "big") for token in tokens))

    @classmethod
    def after(cls, tokens: Sequence[int]) -> "TextPosition":
        """Return the position after some tokens."""
        made = cls()
        made.move(tokens)
        return made

    def __str__(self) -> str:
        return f"{self.count}:{self._hash.hexdigest()[:8]}{'.' * self.has_ended}"


@dataclass(frozen=True, slots=True)
class Seen:
    """The position up to which a client that reconnects has a text."""

    count: int
    mark: str

    def __str__(self) -> str:
        return self.mark

    @property
    def is_whole(self) -> bool:
        """Whether the client has the whole text."""
        return self.mark.endswith(".")

    def check(self, tokens: Sequence[int]) -> None:
        """Refuse to continue after tokens that are not those the client has."""
        if len(tokens) < self.count or str(TextPosition.after(tokens[: self.count])) != self.mark.rstrip("."):
            raise ApiError(
                409, f"the first {self.count} tokens differ from those that were sent: this server has different "
                "weights or arithmetic, or the body differs; send the request again without Last-Event-ID",
                code="other_text",
            )  # fmt: skip


class Progress:
    """The positions of all texts of a stream, as far as events were made of them."""

    def __init__(self, seen: Sequence[Seen | None]) -> None:
        self._positions: list[TextPosition | Seen | None] = list(seen)

    def move(self, index: int, tokens: Sequence[int], *, ends: bool = False) -> None:
        """Advance one text by the tokens of an event, to its end if it `ends`."""
        position = self._positions[index]
        if not isinstance(position, TextPosition):
            position = self._positions[index] = TextPosition()
        position.move(tokens)
        position.has_ended = ends

    @property
    def id(self) -> str:
        """The id of an event that is sent now."""
        return ",".join("-" if position is None else str(position) for position in self._positions)


def read_positions(given: str, texts: int) -> list[Seen | None]:
    """Return what a client has of each text, from the last id that it got."""
    entries = [entry.strip() for entry in given.split(",", texts)]
    if len(entries) != texts or not all(entry == "-" or _ENTRY.fullmatch(entry) for entry in entries):
        raise ApiError(400, f"Last-Event-ID must be the id of an event of this request, which has {texts} texts, got "
                       f"{given[:80]!r}", code="invalid_event_id")  # fmt: skip
    return [None if entry == "-" else Seen(int(entry.partition(":")[0]), entry) for entry in entries]


def check_resume(given: ResumeFields, texts: int, rule: str, fingerprint: str) -> None:
    """Refuse to continue a text where the result would not be one text of the model's distribution."""
    if len(given.texts) != texts:
        raise ApiError(400, f"resume.texts must have an entry for each of {texts} texts, got {len(given.texts)}",
                       "spectr.resume")  # fmt: skip
    if given.fingerprint != fingerprint:
        raise ApiError(409, f"the text was begun with the model {given.fingerprint}, and this is {fingerprint}; send "
                       "the request again", "spectr.resume", "other_model")  # fmt: skip
    if rule != "race":
        raise ApiError(
            409, f"a text under rule {rule!r} cannot be resumed at another server: its draws belong to the tree of "
            "each step, and not to positions of the text; under the race it could", "spectr.resume", "not_resumable",
        )  # fmt: skip


def tokens_of(steps: Sequence[Step]) -> list[int]:
    """Return the tokens of several steps."""
    return [token for step in steps for token in step.tokens]


def shown_text(reader: Reader | None, tokens: Sequence[int]) -> str:
    """Return the text that was shown for the first tokens of a text. It depends on these tokens alone, so that another
    reader with the same stop strings finds it."""
    if not isinstance(reader, TextReader):
        return ""
    return TextReader(TextStream(reader.stream.tokenizer, reader.stream.stops)).feed(list(tokens))[0]


def steps_after(steps: Sequence[Step], count: int, shown: str) -> Step:
    """Return the part of several steps after their first `count` tokens, for which the text `shown` was sent, as one
    step."""
    logprobs = [entry for step in steps for entry in step.logprobs or ()]
    return Step(
        tokens_of(steps)[count:],
        finish_reason=steps[-1].finish_reason,
        logprobs=logprobs[count:] or None,
        text="".join(step.text for step in steps)[len(shown) :],
    )
