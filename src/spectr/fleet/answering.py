"""Answers lines of a batch with a model of this process."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spectr.fleet.lines import BadLineError, Line, failed, line_id, parsed, responded
from spectr.lm import load
from spectr.serve.desk import Desk
from spectr.serve.problems import as_api_error
from spectr.serve.service import Service
from spectr.serve.settings import Limits, ServerSettings

__all__ = ["Answers", "BatchModel"]

_TRIES = 3  # for an answer, where the engine fails
_RUN_DEPENDENT = ("prompt_tokens_details", "completion_tokens_details")
"""Counts that depend on what ran before and beside a request, and so do not belong in a result."""

Result = tuple[int, dict[str, Any]]
"""The number of a line, and what its line of the results says."""


@dataclass(frozen=True, slots=True)
class BatchModel:
    """What answers a batch: data that a worker on another machine can load it from."""

    model: str
    drafter: str = "auto"
    rule: str = "race"
    salt: int = 0  # other numbers give other seeds to requests that have none
    running: int = 64  # texts that run at once
    loading: dict[str, Any] = field(default_factory=dict)  # further options of `spectr.load`

    def opened(self, created: int) -> "Answers":
        """The model, loaded."""
        lm = load(self.model, self.drafter, self.rule, rows=self.running, **self.loading)
        limits = Limits(queue=1 << 20, running=self.running, body_bytes=1 << 30, request_time=float("inf"))
        settings = ServerSettings(name=self.model, receipts=False, limits=limits)
        return Answers(Service(lm, settings), self.salt, created)

    @property
    def card(self) -> dict[str, Any]:
        """What the results depend on, for the journal."""
        return {"model": self.model, "drafter": self.drafter, "rule": self.rule, "seed": self.salt, **self.loading}


class Answers:
    """Answers lines. All calls are from one event loop."""

    def __init__(self, service: Service, salt: int, created: int) -> None:
        self.service, self._salt, self._created = service, salt, created
        self._desk = Desk.of(service)

    async def to(self, lines: Sequence[Line]) -> list[Result]:
        """The results of some lines, side by side."""
        return list(await asyncio.gather(*(self._one(line) for line in lines)))

    async def _one(self, line: Line) -> Result:
        for left in reversed(range(_TRIES)):
            try:
                return line.number, responded(line, 200, await self._answer(line))
            except BadLineError as error:
                return line.number, failed(line, error)
            except Exception as error:
                told = as_api_error(error)
                if told.status < 500 or not left:
                    return line.number, responded(line, told.status, told.body)
        raise AssertionError("the last try returns")

    async def _answer(self, line: Line) -> dict[str, Any]:
        """The body of an answer, without what depends on when and beside whom it was made."""
        told = await self._desk.told(parsed(line, self._salt), "batch")
        told["id"] = f"{told['id'].partition('-')[0]}-{line_id(line)}"
        told["created"] = self._created
        del told["metrics"]
        for name in _RUN_DEPENDENT:
            told["usage"].pop(name)
        return told

    def close(self) -> None:
        """End the threads."""
        self.service.close()
