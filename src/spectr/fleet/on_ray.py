"""A batch on Ray Data: every worker holds the model, and answers one chunk of lines after the other.

What a worker gets and gives are texts and numbers. A worker that dies is started again, and its chunk goes to one that
lives; the process that started the batch keeps the journal.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

from spectr.fleet.answerer import BatchModel, Result
from spectr.fleet.cluster import connected
from spectr.fleet.lines import Line

__all__ = ["ChunkWorker", "answered_on_ray"]


class ChunkWorker:
    """BatchAnswerer chunks of lines, in a process of Ray's."""

    def __init__(self, model: BatchModel, created: int) -> None:
        self._answers = model.opened(created)
        self._loop = asyncio.new_event_loop()

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """The results of the chunks in a batch of Ray Data; each chunk is a row."""
        return {"results": [self._answered(chunk) for chunk in batch["chunk"]]}

    def _answered(self, chunk: str) -> str:
        lines = [Line(*one) for one in json.loads(chunk)]
        return json.dumps(self._loop.run_until_complete(self._answers.answer(lines)))


def answered_on_ray(
    parts: Sequence[Sequence[Line]], model: BatchModel, created: int, workers: int, address: str | None
) -> Iterator[list[Result]]:
    """The results of chunks as they come from the workers."""
    rows = [{"chunk": json.dumps([[line.number, line.text, line.repeats] for line in part])} for part in parts]
    with connected(address, workers, "spectr batch --ray") as ray:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = False
        asked = ray.data.from_items(rows, override_num_blocks=len(rows))  # a block is what is passed on at once
        answered = asked.map_batches(
            ChunkWorker,
            fn_constructor_kwargs={"model": model, "created": created},
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
            num_gpus=1 if model.loading.get("device") == "cuda" else 0,
        )
        for row in answered.iter_rows():
            yield [(number, result) for number, result in json.loads(row["results"])]
