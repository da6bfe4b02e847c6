"""Answers lines of a batch with a model of this process."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spectr.fleet.lines import BadLineError, Line, failed, line_id, parsed, responded
from spectr.lm import load
from spectr.serve.errors import as_api_error
from spectr.serve.handler import RequestHandler
from spectr.serve.service import Service
from spectr.serve.settings import Limits, ServerSettings

__all__ = ["BatchAnswerer", "BatchModel"]

_TRIES = 3  # for an answer, where the engine fails
_RUN_DEPENDENT = ("prompt_tokens_details", "completion_tokens_details")
"""Counts that depend on what ran before and beside a request, and are left out of results."""

Result = tuple[int, dict[str, Any]]
"""The number of a line, and its line of the results."""


@dataclass(frozen=True, slots=True)
class BatchModel:
    """The model of a batch, as data from which a worker on another machine can load it."""

    model: str
    drafter: str = "auto"
    rule: str = "race"
    salt: int = 0  # other numbers give other seeds to requests that have none
    running: int = 64  # texts that run at once
    loading: dict[str, Any] = field(default_factory=dict)  # further options of `spectr.load`

    def opened(self, created: int) -> "BatchAnswerer":
        """The model, loaded."""
        lm = load(self.model, self.drafter, self.rule, rows=self.running, **self.loading)
        limits = Limits(queue=1 << 20, running=self.running, body_bytes=1 << 30, request_time=float("inf"))
        settings = ServerSettings(name=self.model, receipts=False, limits=limits)
        return BatchAnswerer(Service(lm, settings), self.salt, created)

    @property
    def card(self) -> dict[str, Any]:
        """What the results depend on, for the journal."""
        return {"model": self.model, "drafter": self.drafter, "rule": self.rule, "seed": self.salt, **self.loading}


class BatchAnswerer:
    """Answers lines. All calls are from one event loop."""

    def __init__(self, service: Service, salt: int, created: int) -> None:
        self.service, self._salt, self._created = service, salt, created
        self._handler = RequestHandler.of(service)

    async def answer(self, lines: Sequence[Line]) -> list[Result]:
        """The results of some lines, side by side."""
        return list(await asyncio.gather(*(self._one(line) for line in lines)))

    async def _one(self, line: Line) -> Result:
        for left in reversed(range(_TRIES)):
            try:
                return line.number, responded(line, 200, await self._body(line))
            except BadLineError as error:
                return line.number, failed(line, error)
            except Exception as error:
                problem = as_api_error(error)
                if problem.status < 500 or not left:
                    return line.number, responded(line, problem.status, problem.body)
        raise AssertionError("the last try returns")

    async def _body(self, line: Line) -> dict[str, Any]:
        """The body of an answer, without what depends on the time and on other requests."""
        body = await self._handler.complete(parsed(line, self._salt), "batch")
        body["id"] = f"{body['id'].partition('-')[0]}-{line_id(line)}"
        body["created"] = self._created
        del body["metrics"]
        for name in _RUN_DEPENDENT:
            body["usage"].pop(name)
        return body

    def close(self) -> None:
        """End the threads."""
        self.service.close()
