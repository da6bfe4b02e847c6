"""How much traffic one replica bears: tokens per second, memory and first-token time, from model, GPU and traffic.

The costs of a step are fitted to `inflate_h200.json` and `inflate_rows_h200.json`: a model of 7.2 billion weights on an
H200, 1 to 256 texts at once, trees of 1 to 64 nodes; those of prompts are taken from `traffic_h200.json`. They are
written in terms of weights, bandwidth and arithmetic, so that they carry over to another model or GPU, as an estimate.
Sharding is estimated from the time of a sum over all ranks, which was not measured. The estimate of traffic is checked
against `benchmarks.fleet`, which simulates it, and against measured traffic.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import nnls

from spectr.errors import ArgumentError

__all__ = [
    "H200", "MEASURED", "Costs", "Estimate", "Gpu", "ModelSize", "Replica", "Traffic", "calibrated", "hit_rate",
    "measurements", "traffic_cells",
]  # fmt: skip

_FOLDER = Path(__file__).parent
_FILES = ("inflate_h200.json", "inflate_rows_h200.json")
_TRAFFIC = "traffic_h200.json"
_TOGETHER = 128  # nodes of all rows that a call takes before it waits for arithmetic
_CHUNK = 512  # prompt tokens read between two steps
_KEPT = 0.9  # share of a GPU's memory that weights and caches may take


@dataclass(frozen=True, slots=True)
class ModelSize:
    """A decoder, in numbers."""

    weights: float
    layers: int
    width: int
    kv_width: int  # numbers that one layer keeps of a token: keys and values
    bytes: int = 2  # of a number
    head: float = 0.08  # weights of the drafter, as a share of the model's

    @property
    def weight_bytes(self) -> float:
        """Of the model, without its drafter."""
        return self.weights * self.bytes

    @property
    def token_bytes(self) -> float:
        """What the cache holds of one token."""
        return float(self.layers * self.kv_width * self.bytes)


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device, in numbers."""

    name: str
    bandwidth: float  # bytes a second, measured by copying
    memory: float  # bytes
    arithmetic: float = 1.0  # how its arithmetic compares with an H200's
    sum_seconds: float = 15e-6  # for one sum over all ranks, beside what its bytes take; an assumption
    link: float = 300e9  # bytes a second between ranks; an assumption


H200 = Gpu("NVIDIA H200", 4.28e12, 150e9)


@dataclass(frozen=True, slots=True)
class Costs:
    """Seconds that measured steps take, by what causes them."""

    launches: float  # of one layer
    depth: float  # of a depth of the draft, beside reading the drafter's weights
    flop: float  # of one operation, where a call waits for arithmetic
    row: float  # of a row: its policy, its verdict, its place in the cache
    row_depth: float  # of a row and a depth of its draft
    reading: float  # of one operation, where the target reads a prompt
    reading_along: float  # of the drafter, which reads it too, by the target's operations
    gains: Mapping[int, float]  # tokens of a step, by nodes of a row
    errors: Sequence[float] = field(default=())  # of the fit, relative, one for each measurement


def measurements(folder: Path = _FOLDER) -> list[dict[str, Any]]:
    """Measured steps, by rows, nodes and depth."""
    found: list[dict[str, Any]] = []
    for name in _FILES:
        found += json.loads((folder / name).read_text(encoding="utf-8"))["parts"]["rows"]["results"]
    return found


def traffic_cells(folder: Path = _FOLDER) -> list[dict[str, Any]]:
    """Measured traffic: requests in flight, their tokens, and what reading their prompts took, plainly and drafted."""
    parts = json.loads((folder / _TRAFFIC).read_text(encoding="utf-8"))["parts"].values()
    return [{"in_flight": part["in_flight"], **cell} for part in parts for cell in part["cells"].values()]


def _reading(folder: Path) -> tuple[float, float]:
    """Seconds that a token of a prompt takes without a drafter, and what it takes more with one."""
    spent: dict[bool, list[float]] = {True: [0.0, 0.0], False: [0.0, 0.0]}
    for cell in traffic_cells(folder):
        of_kind = spent[cell["drafter"] == "none"]
        of_kind[0] += cell["prefill"]["seconds"]
        of_kind[1] += cell["prefill"]["prompt_tokens"]
    plain, drafted = (seconds / tokens for seconds, tokens in (spent[True], spent[False]))
    return plain, drafted - plain


MEASURED = ModelSize(weights=7.18e9, layers=32, width=4096, kv_width=2 * 16 * 64)
_CONTEXT = 150  # tokens of the texts that were measured, on average


def calibrated(folder: Path = _FOLDER, gpu: Gpu = H200, size: ModelSize = MEASURED) -> Costs:
    """Costs that fit the measured steps best, in relative terms, none of them negative."""
    rows = measurements(folder)
    causes = np.array([_causes(row["rows"], row["nodes"], row.get("depth", 0)) for row in rows])
    seconds = np.array([row["steady_ms_per_step"] / 1e3 for row in rows])
    fixed, depth, node, row, row_depth = nnls(causes / seconds[:, None], np.ones(len(rows)))[0]
    attention = _CONTEXT * size.token_bytes / gpu.bandwidth
    plain, along = _reading(folder)
    gains = {found["nodes"]: found["tokens_per_call"] for found in rows if found["rows"] == 1}
    return Costs(
        launches=float(fixed - size.weight_bytes / gpu.bandwidth) / size.layers,
        depth=float(depth - size.head * size.weight_bytes / gpu.bandwidth),
        flop=float(node / (2 * size.weights)),
        row=float(row - attention),
        row_depth=float(row_depth),
        reading=plain / (2 * size.weights),
        reading_along=along / (2 * size.weights),
        gains=gains,
        errors=tuple((causes @ [fixed, depth, node, row, row_depth] / seconds - 1).tolist()),
    )


def _causes(rows: int, nodes: int, depth: int) -> list[float]:
    """What a step's time is proportional to, one entry for each cause."""
    return [1.0, depth, max(0, rows * nodes - _TOGETHER), rows, depth * rows]


@dataclass(frozen=True, slots=True)
class Traffic:
    """What is asked of one replica."""

    rate: float  # requests a second
    prompt: float  # tokens, on average
    output: float  # tokens, on average
    known: float = 0.0  # share of the prompts' tokens that the replica has read before
    spread: float = 1.0  # standard deviation of what is to be read, over its average

    @property
    def unread(self) -> float:
        """Tokens to read of a prompt, on average."""
        return self.prompt * (1 - self.known)


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a replica does under some traffic."""

    rows: float  # requests in flight, on average, those whose prompts are being read included
    tokens_per_second: float
    seconds_per_token: float  # of one text
    first_token: float  # seconds, on average
    busy: float  # share of the most requests that it bears


@dataclass(frozen=True, slots=True)
class Replica:
    """A model on one GPU, or spread over several."""

    size: ModelSize = MEASURED
    gpu: Gpu = H200
    costs: Costs = field(default_factory=calibrated)
    ranks: int = 1
    rows: int = 64  # most texts at once
    drafts: bool = True

    def nodes(self, rows: float) -> int:
        """Nodes of a row's tree with so many rows: about 128 for all of them, 64 at most, and none for more rows."""
        if not self.drafts or rows > _TOGETHER:
            return 1
        return max(2, min(64, 1 << int(math.log2(_TOGETHER / max(rows, 1.0)))))

    def gain(self, nodes: int) -> float:
        """Tokens of a step and row, between those that were measured."""
        known = sorted(self.costs.gains)
        return float(np.interp(math.log2(nodes), np.log2(known), [self.costs.gains[n] for n in known]))

    def step(self, rows: float, context: float = _CONTEXT) -> float:
        """Seconds of one step of so many rows, whose texts have `context` tokens on average."""
        nodes = self.nodes(rows)
        depth = 0 if nodes == 1 else 1 if nodes == 2 else 3
        costs, size, ranks = self.costs, self.size, self.ranks
        read = (size.weight_bytes + rows * context * size.token_bytes) / ranks / self.gpu.bandwidth
        drafted = depth * (costs.depth + size.head * size.weight_bytes / self.gpu.bandwidth + rows * costs.row_depth)
        counted = max(0.0, rows * nodes - _TOGETHER) * self._token / ranks
        return read + size.layers * costs.launches + drafted + counted + rows * costs.row + self._sums(rows * nodes)

    @property
    def _token(self) -> float:
        """Seconds that the arithmetic of one token takes on one GPU."""
        return 2 * self.size.weights * self.costs.flop / self.gpu.arithmetic

    def _sums(self, tokens: float) -> float:
        """Seconds of the sums over all ranks, two in each layer."""
        if self.ranks == 1:
            return 0.0
        carried = 2 * (self.ranks - 1) / self.ranks * tokens * self.size.width * self.size.bytes / self.gpu.link
        return 2 * self.size.layers * (self.gpu.sum_seconds + carried)

    def reading(self, tokens: float) -> float:
        """Seconds to read so many prompt tokens. A drafter reads them too, on one rank."""
        own, along = self.costs.reading / self.ranks, self.costs.reading_along if self.drafts else 0.0
        return tokens * (2 * self.size.weights * (own + along) / self.gpu.arithmetic + self._sums(_CHUNK) / _CHUNK)

    def in_flight(self, rows: int, traffic: Traffic) -> float:
        """Tokens a second where so many requests are always in flight, the next one coming when one ends."""
        context = traffic.prompt + traffic.output / 2
        return 1 / (1 / (rows * self.speed(rows, context)) + self.reading(traffic.unread) / traffic.output)

    def speed(self, rows: float, context: float = _CONTEXT) -> float:
        """Tokens a second of one text among so many."""
        return self.gain(self.nodes(rows)) / self.step(rows, context)

    def most_rows(self, context: float) -> int:
        """Texts of so many tokens that fit into memory beside the weights."""
        free = _KEPT * self.gpu.memory * self.ranks - (1 + self.size.head * self.ranks) * self.size.weight_bytes
        return max(0, min(self.rows, int(free // (context * self.size.token_bytes))))

    def most_requests(self, traffic: Traffic) -> float:
        """Requests a second that a replica bears."""
        context = traffic.prompt + traffic.output / 2
        rows = self.most_rows(context)
        if rows < 1:
            return 0.0
        most = max(count * self.speed(count, context) for count in range(1, rows + 1))
        return 1 / (traffic.output / most + self.reading(traffic.unread))

    def under(self, traffic: Traffic) -> Estimate:
        """What the replica does under some traffic, on average.

        Reading takes its share of the time; in the rest so many rows are in flight that their steps give the tokens
        that are asked for (Little's law). Prompts are read one after the other, a chunk between two steps, so that the
        first token waits like a customer before a single server (Pollaczek and Khinchine).
        """
        busy = traffic.rate / max(self.most_requests(traffic), 1e-12)
        if busy >= 1:
            raise ArgumentError(
                f"a replica bears {self.most_requests(traffic):.2f} requests a second of this kind, got "
                f"{traffic.rate:.2f}; add replicas"
            )
        context = traffic.prompt + traffic.output / 2
        rows = self._in_flight(traffic, context)
        step, asked = self.step(rows, context), traffic.rate * traffic.output
        own = self.reading(traffic.unread) + math.ceil(traffic.unread / _CHUNK) * step * min(1.0, rows)
        share = min(traffic.rate * own, 0.99)
        waits = share * own * (1 + traffic.spread**2) / 2 / (1 - share)
        first = waits + own + step
        return Estimate(rows + traffic.rate * first, asked, rows / asked, first, busy)

    def _in_flight(self, traffic: Traffic, context: float) -> float:
        """Rows whose steps give the tokens that are asked for, by bisection."""
        left = 1 - traffic.rate * self.reading(traffic.unread)
        asked = traffic.rate * traffic.output
        low, high = 0.0, float(self.most_rows(context))
        for _ in range(60):
            middle = (low + high) / 2
            step_rows = max(middle, 1.0)  # a step has at least one row; below that the replica is idle at times
            low, high = (middle, high) if left * middle * self.speed(step_rows, context) < asked else (low, middle)
        return high

    def over(self, ranks: int) -> "Replica":
        """The same model spread over so many ranks."""
        return replace(self, ranks=ranks)


def hit_rate(popularity: Sequence[float], kept: int) -> float:
    """Share of requests whose beginning is among the `kept` that a replica used last (Che's approximation).

    >>> round(hit_rate([0.25] * 4, 4), 2), round(hit_rate([0.5, 0.25, 0.125, 0.125], 2), 2)
    (1.0, 0.62)
    """
    chances = np.asarray(popularity, dtype=np.float64)
    if kept >= len(chances):
        return 1.0
    low, high = 0.0, 1.0
    while (1 - np.exp(-chances * high)).sum() < kept:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 - np.exp(-chances * middle)).sum() < kept else (low, middle)
    return float((chances * (1 - np.exp(-chances * high))).sum())
