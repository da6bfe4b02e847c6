"""A batch on Ray Data: every worker loads the model and answers one chunk of lines after another.

Chunks and results travel as JSON. If a worker dies, Ray starts another and gives the chunk to one that is alive. The
process that started the batch keeps the journal.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any

from spectr.fleet.answerer import BatchModel, Result
from spectr.fleet.cluster import connected
from spectr.fleet.lines import Line

__all__ = ["ChunkWorker", "results_on_ray"]


class ChunkWorker:
    """Answers chunks of lines in a Ray worker process."""

    def __init__(self, model: BatchModel, created: int) -> None:
        self._answerer = model.load(created)
        self._loop = asyncio.new_event_loop()

    def __call__(self, batch: dict[str, Any]) -> dict[str, list[str]]:
        """Return the results for a batch of Ray Data, each row of which is a chunk of lines."""
        return {"results": [self._answer(chunk) for chunk in batch["chunk"]]}

    def _answer(self, chunk: str) -> str:
        lines = [Line(*fields) for fields in json.loads(chunk)]
        return json.dumps(self._loop.run_until_complete(self._answerer.answer(lines)))


def results_on_ray(
    parts: Sequence[Sequence[Line]], model: BatchModel, created: int, workers: int, address: str | None
) -> Iterator[list[Result]]:
    """Yield the results of chunks in the order in which workers finish them."""
    rows = [{"chunk": json.dumps([[line.number, line.text, line.repeats] for line in part])} for part in parts]
    with connected(address, workers, "spectr batch --ray") as ray:
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = False
        chunks = ray.data.from_items(rows, override_num_blocks=len(rows))  # one chunk per block, the unit of scheduling
        results = chunks.map_batches(
            ChunkWorker,
            fn_constructor_kwargs={"model": model, "created": created},
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=workers),
            num_cpus=1,
            num_gpus=1 if model.loading.get("device") == "cuda" else 0,
        )
        for row in results.iter_rows():
            yield [(number, result) for number, result in json.loads(row["results"])]
