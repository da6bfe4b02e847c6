"""Answers lines of a batch with a model in this process."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from spectr.fleet.lines import BadLineError, Line, error_result, line_id, parse_request, response_result
from spectr.lm import load
from spectr.serve.errors import as_api_error
from spectr.serve.handler import RequestHandler
from spectr.serve.service import Service
from spectr.serve.settings import Limits, ServerSettings

__all__ = ["BatchAnswerer", "BatchModel"]

_TRIES = 3  # per line, if the engine fails
_RUN_DEPENDENT = ("prompt_tokens_details", "completion_tokens_details")
"""Counts that depend on the requests that ran before and at the same time. Results do not include them."""

Result = tuple[int, dict[str, Any]]
"""The number of a line, and its result."""


@dataclass(frozen=True, slots=True)
class BatchModel:
    """The model of a batch, described so that a worker on another machine can load it."""

    model: str
    drafter: str = "auto"
    rule: str = "race"
    salt: int = 0  # from which requests without a seed derive theirs
    running: int = 64  # maximum number of texts generated at once
    loading: dict[str, Any] = field(default_factory=dict)  # further options of `spectr.load`

    def load(self, created: int) -> "BatchAnswerer":
        """Load the model and return an answerer, whose results carry the time `created`."""
        lm = load(self.model, self.drafter, self.rule, rows=self.running, **self.loading)
        limits = Limits(queue=1 << 20, running=self.running, body_bytes=1 << 30, request_time=float("inf"))
        settings = ServerSettings(name=self.model, receipts=False, limits=limits)
        return BatchAnswerer(Service(lm, settings), self.salt, created)

    @property
    def card(self) -> dict[str, Any]:
        """The settings that the results depend on, as the journal records them."""
        return {"model": self.model, "drafter": self.drafter, "rule": self.rule, "seed": self.salt, **self.loading}


class BatchAnswerer:
    """Answers lines of a batch. All of its calls must come from one event loop."""

    def __init__(self, service: Service, salt: int, created: int) -> None:
        self.service, self._salt, self._created = service, salt, created
        self._handler = RequestHandler.of(service)

    async def answer(self, lines: Sequence[Line]) -> list[Result]:
        """Answer several lines concurrently and return their results."""
        return list(await asyncio.gather(*(self._answer_line(line) for line in lines)))

    async def _answer_line(self, line: Line) -> Result:
        for tries_left in reversed(range(_TRIES)):
            try:
                return line.number, response_result(line, 200, await self._body(line))
            except BadLineError as error:
                return line.number, error_result(line, error)
            except Exception as error:
                problem = as_api_error(error)
                if problem.status < 500 or not tries_left:
                    return line.number, response_result(line, problem.status, problem.body)
        raise AssertionError("the last try always returns")

    async def _body(self, line: Line) -> dict[str, Any]:
        """Return the body of a response, without the fields that depend on time and on other requests."""
        body = await self._handler.complete(parse_request(line, self._salt), "batch")
        body["id"] = f"{body['id'].partition('-')[0]}-{line_id(line)}"
        body["created"] = self._created
        del body["metrics"]
        for name in _RUN_DEPENDENT:
            body["usage"].pop(name)
        return body

    def close(self) -> None:
        """Stop the threads of the service."""
        self.service.close()
