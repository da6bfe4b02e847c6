"""`spectr batch`: answers the requests of a file and saves every chunk when it is done, so that a second run continues
where the first one was killed."""

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
    """Where requests are, where results go, and how many are answered between two writes."""

    requests: Path
    results: Path
    chunk: int = 32
    workers: int = 1
    ray: bool = False
    address: str | None = None  # of a Ray cluster; None: one on this machine, as long as the batch runs


@dataclass(slots=True)
class Tally:
    """What became of the lines of a batch."""

    lines: int
    resumed: int  # lines that had results when the run began
    answered: int = 0
    refused: int = 0  # with a status other than 200
    bad: int = 0  # lines that are no requests
    tokens: int = 0  # generated for answers

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
    files: BatchFiles, model: BatchModel, talk: Callable[[str], None], watched: Callable[[int, int], Any]
) -> Tally:
    """Answer the requests that have no results yet, and write the results. `watched` gets the number of lines and of
    those that are done, and gives a context in which a function of a number moves a progress bar on."""
    lines = read_lines(files.requests)
    digest = sha256(files.requests.read_bytes()).hexdigest()
    with Journal(files.results, {"input": digest, **model.card}) as journal:
        left = [line for line in lines if line.number not in journal.done]
        tally = Tally(len(lines), len(lines) - len(left))
        if tally.resumed:
            talk(f"{tally.resumed} of {len(lines)} lines have results; going on with the others")
        with watched(len(lines), tally.resumed) as advance:
            for results in _answered(files, model, journal.created, left) if left else ():
                journal.append(results)
                for _, result in results:
                    tally.add(result)
                advance(len(results))
        journal.finish()
    return tally


def _answered(files: BatchFiles, model: BatchModel, created: int, left: Sequence[Line]) -> Iterator[list[Result]]:
    """Results in chunks, in whatever order they come."""
    parts = chunks(left, files.chunk)
    if files.ray:
        from spectr.fleet.on_ray import answered_on_ray

        return answered_on_ray(parts, model, created, files.workers, files.address)
    return _in_this_process(parts, model.opened(created), model.running)


def _in_this_process(parts: Sequence[Sequence[Line]], answers: BatchAnswerer, running: int) -> Iterator[list[Result]]:
    loop = asyncio.new_event_loop()
    try:
        results = _side_by_side(parts, answers, running)
        while (found := loop.run_until_complete(anext(results, None))) is not None:
            yield found
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.run_until_complete(loop.shutdown_asyncgens())
        answers.close()
        loop.close()


async def _side_by_side(
    parts: Sequence[Sequence[Line]], answerer: BatchAnswerer, running: int
) -> AsyncIterator[list[Result]]:
    """The results of chunks, in the order in which they are done. Several chunks run at once, so that the model is not
    idle during the last texts of one."""
    waiting: set[asyncio.Task[list[Result]]] = set()
    most = 1 + -(-running // max(1, len(parts[0])))
    for part in parts:
        waiting.add(asyncio.create_task(answerer.answer(part)))
        if len(waiting) >= most:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                yield task.result()
    while waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            yield task.result()
