"""Measures the bandwidth of the device, and the time of one call of the target."""

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.inflate.clock import durations, timed
from benchmarks.inflate.order import Order
from benchmarks.inflate.pair import Pair
from benchmarks.record import Found
from spectr.errors import ArgumentError
from spectr.models.target import Session, Target
from spectr.trees import Shape

__all__ = ["bandwidth", "calls", "floor_of"]

_LARGE = 4 * 2**30  # bytes to copy on a GPU, far more than its caches hold


def _size(device: torch.device) -> int:
    """Return the number of bytes to copy."""
    return min(_LARGE, torch.cuda.mem_get_info(device)[0] // 4) if device.type == "cuda" else 2**28


def _copied(device: torch.device, repeats: int) -> float:
    """Return the bytes per second, read and written, of the fastest copy."""
    size = _size(device)
    source = torch.ones(size, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / (1e-3 * min(durations(lambda: target.copy_(source), device, repeats)))


def weights_read(target: Target) -> int:
    """Return the bytes that a call reads: all weights except the embedding table, of which it reads single rows."""
    net = target.model
    table = net.get_input_embeddings().weight
    return sum(w.numel() * w.element_size() for w in net.parameters() if w is not table)


def floor_of(pair: Pair, repeats: int) -> Found:
    """Return the lower bound of a call's time, which is the time to read all weights once."""
    speed, size = _copied(pair.large.target.device, repeats), weights_read(pair.large.target)
    return {
        "bytes_per_second": speed,
        "weight_bytes": size,
        "floor_ms": 1e3 * size / speed,
        "plain_limit_tokens_per_second": speed / size,
    }


def bandwidth(pair: Pair, order: Order) -> Iterator[Found]:
    """Measure the bandwidth of the device, and the limit that it sets for plain decoding."""
    yield {**floor_of(pair, order.grid.repeats), "left": 0}


def _tree(nodes: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the ancestors and depths of a binary tree."""
    shape = Shape(tuple(max(0, (node - 1) // 2) for node in range(nodes)))
    ancestors = torch.eye(nodes, dtype=torch.bool)
    for node in range(nodes):
        ancestors[node, shape.way(node)] = True
    return ancestors[None].to(device), torch.tensor([shape.depths], device=device)


def _call(target: Target, session: Session, context: int, nodes: int, repeats: int) -> float:
    """Return the milliseconds of one call after `context` tokens; the contents of the cache do not affect the time."""
    session.store.filled.fill_(context)
    ancestors, depth = _tree(nodes, target.device)

    def score(tokens: Tensor) -> Tensor:
        return target.score(target.window(session, 0, 1, context), tokens, ancestors, depth)

    return timed(score, torch.randint(0, target.vocabulary, (1, nodes), device=target.device), repeats)


def calls(pair: Pair, order: Order) -> Iterator[Found]:
    """Measure the target's call alone, over nodes and committed tokens, relative to the lower bound."""
    grid, target, rows = order.grid, pair.large.target, list[Found]()
    if max(grid.contexts) + max(grid.nodes) > target.context:
        raise ArgumentError(
            f"context and nodes must fit into the model's {target.context} positions, got {max(grid.contexts)} + "
            f"{max(grid.nodes)}; lower --contexts or --nodes"
        )
    found = floor_of(pair, grid.repeats)
    cases = [(context, nodes) for context in grid.contexts for nodes in grid.nodes]
    session = target.open(1, max(grid.contexts) + max(grid.nodes))
    for at, (context, nodes) in enumerate(cases, start=1):
        taken = _call(target, session, context, nodes, grid.repeats)
        rows.append({"context": context, "nodes": nodes, "ms": taken, "over_floor": taken / found["floor_ms"]})
        yield {**found, "rows": rows, "doubling": _doubling(rows), "left": len(cases) - at}


def _doubling(rows: list[Found]) -> list[Found]:
    """Return the ratio of the times of 128 and 64 nodes, for each context."""
    ms = {(row["context"], row["nodes"]): row["ms"] for row in rows}
    contexts = [context for context, nodes in ms if nodes == 128 and (context, 64) in ms]
    return [{"context": c, "ratio_128_to_64": ms[c, 128] / ms[c, 64]} for c in contexts]
