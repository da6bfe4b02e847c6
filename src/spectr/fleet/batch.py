"""`spectr batch`: answers the requests of a file and saves each chunk when it is finished, so that the next run can
continue a run that was killed."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from spectr.fleet.answerer import BatchAnswerer, BatchModel, Result
from spectr.fleet.journal import Journal
from spectr.fleet.lines import Line, chunks, read_lines

__all__ = ["BatchFiles", "Tally", "run_batch"]


@dataclass(frozen=True, slots=True)
class BatchFiles:
    """The files of a batch, the number of requests between two writes to disk, and the workers that answer them."""

    requests: Path
    results: Path
    chunk: int = 32
    workers: int = 1
    ray: bool = False
    address: str | None = None  # of a Ray cluster; None starts one on this machine for the duration of the batch


@dataclass(slots=True)
class Tally:
    """Counts the lines of a batch by their outcome."""

    lines: int
    resumed: int  # lines that had results when the run began
    answered: int = 0
    refused: int = 0  # requests that got a status other than 200
    bad: int = 0  # lines that are not valid requests
    tokens: int = 0  # generated tokens in all answers

    def add(self, result: dict[str, Any]) -> None:
        """Count a result."""
        if result["response"] is None:
            self.bad += 1
        elif result["response"]["status_code"] != 200:
            self.refused += 1
        else:
            self.answered += 1
            self.tokens += result["response"]["body"]["usage"]["completion_tokens"]


def run_batch(
    files: BatchFiles, model: BatchModel, talk: Callable[[str], None], progress: Callable[[int, int], Any]
) -> Tally:
    """Answer the requests that have no result yet, and write the results.

    `progress` is called with the number of lines and the number that already have results. It returns a context manager
    whose value is a function that advances a progress bar by a number of lines."""
    lines = read_lines(files.requests)
    digest = sha256(files.requests.read_bytes()).hexdigest()
    with Journal(files.results, {"input": digest, **model.card}) as journal:
        missing = [line for line in lines if line.number not in journal.done]
        tally = Tally(len(lines), len(lines) - len(missing))
        if tally.resumed:
            talk(f"{tally.resumed} of {len(lines)} lines have results already; answering the others")
        with progress(len(lines), tally.resumed) as advance:
            for results in _results(files, model, journal.created, missing) if missing else ():
                journal.append(results)
                for _, result in results:
                    tally.add(result)
                advance(len(results))
        journal.finish()
    return tally


def _results(files: BatchFiles, model: BatchModel, created: int, missing: Sequence[Line]) -> Iterator[list[Result]]:
    """Answer lines and yield their results chunk by chunk, in the order in which chunks finish."""
    parts = chunks(missing, files.chunk)
    if files.ray:
        from spectr.fleet.on_ray import results_on_ray

        return results_on_ray(parts, model, created, files.workers, files.address)
    return _results_in_process(parts, model.load(created), model.running)


def _results_in_process(
    parts: Sequence[Sequence[Line]], answerer: BatchAnswerer, running: int
) -> Iterator[list[Result]]:
    loop = asyncio.new_event_loop()
    try:
        results = _answer_concurrently(parts, answerer, running)
        while (chunk := loop.run_until_complete(anext(results, None))) is not None:
            yield chunk
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        answerer.close()
        loop.close()


async def _answer_concurrently(
    parts: Sequence[Sequence[Line]], answerer: BatchAnswerer, running: int
) -> AsyncIterator[list[Result]]:
    """Yield the results of chunks in the order in which they finish. Several chunks run at once, so that the model is
    not idle while the last texts of a chunk are generated."""
    running_tasks: set[asyncio.Task[list[Result]]] = set()
    max_tasks = 1 + -(-running // max(1, len(parts[0])))
    for part in parts:
        running_tasks.add(asyncio.create_task(answerer.answer(part)))
        if len(running_tasks) >= max_tasks:
            done, running_tasks = await asyncio.wait(running_tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    while running_tasks:
        done, running_tasks = await asyncio.wait(running_tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            yield task.result()
