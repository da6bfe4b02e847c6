"""Runs requests for text, from their admission to their answers."""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import Request, Response

from spectr.engine import Handle, Result, Step
from spectr.engine import Request as EngineRequest
from spectr.serve.admission import Admission
from spectr.serve.errors import ApiError, as_api_error
from spectr.serve.events import Event, EventStream, Shutdown, unless_disconnected
from spectr.serve.json_text import json_bytes
from spectr.serve.metrics import ServerMetrics
from spectr.serve.parsing import ParsedRequest, parse_request
from spectr.serve.protocol import ChatRequest, CompletionRequest, SamplingFields
from spectr.serve.receipt import make_receipt
from spectr.serve.replies import Reply
from spectr.serve.resuming import Progress, Seen, read_positions, shown_text, steps_after, tokens_of
from spectr.serve.service import Service
from spectr.serve.settings import ServerSettings
from spectr.view.tokens import TokenTexts

__all__ = ["RequestHandler", "after"]

_LOG = logging.getLogger("spectr.serve")
_SMALL = 2000  # numbers of a response that is written in the event loop


@dataclass(slots=True)
class RequestHandler:
    """Answers requests for text: parses them, waits for places, submits them to the engine and sends the results."""

    service: Service
    admission: Admission
    metrics: ServerMetrics
    texts: TokenTexts
    shutdown: Shutdown = field(default_factory=Shutdown)

    @classmethod
    def of(cls, service: Service) -> "RequestHandler":
        """Return the handler of a service."""
        admission = Admission(service.settings.limits, len(service.settings.keys))
        return cls(service, admission, ServerMetrics(service, admission), TokenTexts(service.lm.tokenizer))

    def begin(self, request: Request, body: SamplingFields) -> float:
        """Return the time by which a request must be answered; raises ApiError if the server is shutting down."""
        if self.service.is_draining:
            raise ApiError(503, "the server is shutting down; send the request elsewhere", code="draining", wait=30)
        if self.settings.logs_prompts:
            _LOG.info("%s requests %s", request.state.request_id, body.model_dump_json(exclude_none=True))
        return float(request.state.began + self.settings.limits.request_time)

    async def answer(self, request: Request, body: CompletionRequest | ChatRequest) -> Response:
        """Answer a request for text, whole or in a stream."""
        deadline, tenant = self.begin(request, body), request.state.tenant
        shutdown = self.shutdown.future
        if not body.stream:
            return await unless_disconnected(request.receive, self._complete(body, tenant), deadline, shutdown)
        seen = request.headers.get("last-event-id")
        events = await unless_disconnected(request.receive, self._start_stream(body, tenant, seen), deadline, shutdown)
        return EventStream(events, self.settings.keep_alive, self.settings.limits.write_time, deadline, shutdown)

    async def complete(self, body: CompletionRequest | ChatRequest, tenant: str) -> dict[str, Any]:
        """Return the answer to a body as data, for requests that do not come over a connection."""
        job = await self._job(body, tenant)
        results = await job.results()
        return job.reply.whole(results, job.receipt(results))

    async def _complete(self, body: CompletionRequest | ChatRequest, tenant: str) -> Response:
        return await (await self._job(body, tenant)).complete()

    @property
    def settings(self) -> ServerSettings:
        """The settings of the server."""
        return self.service.settings

    async def converse(self, request: Request, body: ChatRequest) -> AsyncIterator[Event]:
        """Wait for the first chunk of the answer to a conversation, and return all of its chunks."""
        return await self._start_stream(body, request.state.tenant, None)

    async def _start_stream(
        self, body: CompletionRequest | ChatRequest, tenant: str, seen: str | None
    ) -> AsyncIterator[Event]:
        """Return the events of a stream once the first is there. An error before it has a status of its own."""
        if seen is not None and (body.seed is None or (body.spectr and body.spectr.resume)):
            raise ApiError(400, "Last-Event-ID needs the seed of what was sent before, and no resume", "seed")
        job = await self._job(body, tenant)
        job.sends_ids = seen is not None or _wants_ids(body, self.settings)
        if seen is not None:
            job.resume_after(read_positions(seen, job.parsed.count))
        events = job.events()
        return after(await anext(events), events)

    async def _job(self, body: CompletionRequest | ChatRequest, tenant: str) -> "_Job":
        parsed, requests = await parse_request(body, self.service, tenant, self.admission.most_texts)
        return _Job(self, parsed, requests, tenant)


def _wants_ids(body: CompletionRequest | ChatRequest, settings: ServerSettings) -> bool:
    """Return whether the events of a stream have ids."""
    wanted = None if body.stream_options is None else body.stream_options.event_ids
    return settings.event_ids if wanted is None else wanted


async def after(first: Event, rest: AsyncIterator[Event]) -> AsyncIterator[Event]:
    """Yield the first event, which was taken before, and the rest: an error before it was not yet part of a stream."""
    try:
        yield first
        async for event in rest:
            yield event
    finally:
        await rest.aclose()  # type: ignore[attr-defined]


class _Job:
    """The texts of one request, from the wait for places to their ends."""

    def __init__(
        self, handler: RequestHandler, parsed: ParsedRequest, requests: Sequence[EngineRequest | None], tenant: str
    ) -> None:
        self.handler, self.parsed, self.requests, self.tenant = handler, parsed, requests, tenant
        self.scored = [asyncio.Event() for _ in parsed.prompts]  # set when the log-probabilities of a prompt are there
        service = handler.service
        self.reply = Reply(parsed, service.name, service.shown_fingerprint, handler.texts)
        self.sends_ids = False
        self.resume_after([None] * parsed.count)
        self.start = time.perf_counter()

    def resume_after(self, seen: list[Seen | None]) -> None:
        """Send only what follows the text that a client which reconnects has seen."""
        self.seen, self.progress = seen, Progress(seen)

    async def complete(self) -> Response:
        """Wait for the ends of all texts and return the answer."""
        results = await self.results()

        def written() -> Response:
            return Response(json_bytes(self.reply.whole(results, self.receipt(results))), media_type="application/json")

        if self.reply.entries(results) <= _SMALL:
            return written()
        return await self.handler.service.in_worker(lambda _: written(), self.tenant)

    async def results(self) -> list[Result]:
        """Wait for the ends of all texts and return them."""
        async with AsyncExitStack() as stack:
            stack.push(self._count_failures)
            handles = await self._begin(stack)
            await asyncio.gather(*(self._wait_for(handle) for handle in handles if handle is not None))
            return [self._result(index, handle) for index, handle in enumerate(handles)]

    def _result(self, index: int, handle: Handle | None) -> Result:
        """Return a text, with the part that another server generated if the stream is resumed."""
        past = self.parsed.past(index)
        if handle is None:
            return Result([] if past is None else past.tokens, None if past is None else past.finish_reason)
        return handle.so_far if past is None else replace(handle.so_far, tokens=[*past.tokens, *handle.so_far.tokens])

    def _count_failures(self, _kind: Any, error: BaseException | None, _trace: Any) -> None:
        """Count requests in a row in which the engine failed."""
        service = self.handler.service
        if error is None:
            service.failures = 0
        elif isinstance(error, Exception) and as_api_error(error).status == 500:
            service.failures += 1

    async def events(self) -> AsyncIterator[Event]:
        """Yield the answer in pieces."""
        async with AsyncExitStack() as stack:
            stack.push(self._count_failures)
            handles = await self._begin(stack)
            async with aclosing(self._chunks(handles)) as chunks:
                async for chunk in chunks:
                    yield chunk
            results = [self._result(index, handle) for index, handle in enumerate(handles)]
            yield await self._last(results)

    async def _last(self, results: Sequence[Result]) -> Event:
        """Return the event after all texts; a worker makes it where the receipt repeats long prompts."""
        options = self.parsed.body.stream_options
        usage = bool(options and options.include_usage)

        def written(_: Any = None) -> tuple[dict[str, Any], bytes]:
            data = self.reply.last(results, self.receipt(results), usage=usage)
            return data, json_bytes(data)

        is_small = sum(map(len, self.parsed.prompts)) + sum(len(result.tokens) for result in results) <= _SMALL
        data, text = written() if is_small else await self.handler.service.in_worker(written, self.tenant)
        return replace(self._event(data), written=text)

    def _event(self, data: dict[str, Any]) -> Event:
        """Return the event after which the client has what `progress` says."""
        return Event(data, self.progress.id if self.sends_ids else None)

    async def _begin(self, stack: AsyncExitStack) -> list[Handle | None]:
        """Wait for places, then submit all texts. The stack cancels them and frees the places at its end."""
        requests = [request for request in self.requests if request is not None]
        if requests:
            await stack.enter_async_context(self.handler.admission.place(self.tenant, len(requests)))
        made = self.parsed.lm.engine.submit_checked(requests)  # `parse_request` has checked them
        stack.callback(self._end, made)
        handles = iter(made)
        return [None if request is None else next(handles) for request in self.requests]

    async def _chunks(self, handles: Sequence[Handle | None]) -> AsyncGenerator[Event]:
        """Yield chunks of all texts, in the order in which they are generated."""
        running = [index for index, handle in enumerate(handles) if handle is not None]
        for index in range(len(handles)):
            if (past := self.parsed.past(index)) is not None and past.begun:
                self.progress.move(index, past.tokens, ends=past.finish_reason is not None)
                if self.parsed.calling is not None or self.parsed.logprobs is not None:
                    await self._skip(index, past.tokens)
        if len(running) == 1:
            async for chunk in self._chunks_of(running[0], handles):
                yield chunk
            return
        queue: asyncio.Queue[Event | BaseException | None] = asyncio.Queue()

        async def drain(index: int) -> None:
            try:
                async for chunk in self._chunks_of(index, handles):
                    queue.put_nowait(chunk)
                queue.put_nowait(None)
            except Exception as error:
                queue.put_nowait(error)

        tasks = [asyncio.ensure_future(drain(index)) for index in running]
        try:
            left = len(tasks)
            while left:
                found = await queue.get()
                if isinstance(found, BaseException):
                    raise found
                if found is None:
                    left -= 1
                else:
                    yield found
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _chunks_of(self, index: int, handles: Sequence[Handle | None]) -> AsyncIterator[Event]:
        """Yield chunks of one text. The first text of a prompt carries the prompt's log-probabilities; in a resumed
        stream each text does."""
        past, prompt, own = self.parsed.past(index), index // self.parsed.n, handles[index]
        begins = self.seen[index] is None and (past is None or not past.begun)
        first = index if past is not None else prompt * self.parsed.n
        unsent: list[int] = []
        async for steps, tokens in self._unseen(index, own):
            unsent += tokens
            if index == first:
                self.scored[prompt].set()
            if begins and self.parsed.echoes:
                await self.scored[prompt].wait()
                yield await self._echo(index, self._result(first, handles[first]))
            if (chunk := self.reply.chunk(index, steps, unsent, begins=begins)) is not None:
                ends = steps[-1].finish_reason is not None
                self.progress.move(index, unsent, ends=ends)
                yield self._event(chunk)
                unsent = []
            begins = False
        if index == first:  # the client may have had all of this text, and not have had the others
            self.scored[prompt].set()

    async def _echo(self, index: int, result: Result) -> Event:
        """Return the prompt of one text as an event, which a worker makes and writes: it can have megabytes."""

        def written(_: Any) -> tuple[dict[str, Any], bytes]:
            data = self.reply.echo(index, result)
            return data, json_bytes(data)

        data, text = await self.handler.service.in_worker(written, self.tenant)
        self.progress.move(index, ())
        return replace(self._event(data), written=text)

    async def _unseen(self, index: int, handle: Handle | None) -> AsyncIterator[tuple[list[Step], list[int]]]:
        """Yield steps of one text that the client has not seen, with the tokens that this connection has not sent."""
        seen, arrivals, held = self.seen[index], self._arrivals(handle), list[Step]()
        if seen is not None:
            async for steps in arrivals:
                held += steps
                if len(tokens_of(held)) >= seen.count and not seen.is_whole:
                    break
            seen.check(tokens_of(held))
            if seen.is_whole:
                return
            shown = await self._skip(index, tokens_of(held)[: seen.count])
            yield [steps_after(held, seen.count, shown)], tokens_of(held)
        async for steps in arrivals:
            yield steps, tokens_of(steps)

    async def _skip(self, index: int, tokens: Sequence[int]) -> str:
        """Pass over the first tokens of a text, which were sent before, and return the text that was sent for them. A
        worker decodes long texts."""
        request = self.requests[index]

        def skip(_: Any = None) -> str:
            shown = "" if request is None else shown_text(request.reader, tokens)
            self.reply.skip(index, shown)
            self.reply.pass_over(index, tokens)
            return shown

        is_small = len(tokens) + self.parsed.echoes * len(self.parsed.prompts[index // self.parsed.n]) <= _SMALL
        return skip() if is_small else await self.handler.service.in_worker(skip, self.tenant)

    async def _wait_for(self, handle: Handle) -> None:
        """Wait for the end of a text, with its times in the metrics."""
        async for _ in self._arrivals(handle):
            pass

    async def _arrivals(self, handle: Handle | None) -> AsyncIterator[list[Step]]:
        """Yield steps as the engine delivers them, and put their times into the metrics."""
        assert handle is not None
        metrics, last = self.handler.metrics, 0.0
        async for steps in handle.arrivals():
            now = time.perf_counter()
            count = sum(len(step.tokens) for step in steps)
            if not last:
                metrics.first.observe(now - self.start)
            elif count:
                metrics.per_token.observe((now - last) / count)
            last = now
            yield steps

    def receipt(self, results: Sequence[Result]) -> dict[str, Any] | None:
        """Return the receipt of the texts, if the request or the settings ask for one."""
        fields, settings = self.parsed.body.spectr, self.handler.service.settings
        wanted = settings.receipts if fields is None or fields.receipt is None else fields.receipt
        return make_receipt(self.parsed, self.handler.service, results) if wanted else None

    def _end(self, handles: Sequence[Handle]) -> None:
        """Cancel the handles that are still running, and update the metrics."""
        metrics = self.handler.metrics
        requests = [request for request in self.requests if request is not None]
        for request, handle in zip(requests, handles, strict=True):
            handle.cancel()
            result = handle.so_far
            metrics.speculated(result.stats)
            metrics.requests.labels(result.finish_reason or "error").inc()
            metrics.reused_tokens.inc(min(result.reused, len(request.prompt)))
        metrics.prompt_tokens.inc(sum(map(len, self.parsed.prompts)))
        metrics.whole.observe(time.perf_counter() - self.start)
