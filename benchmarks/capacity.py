"""A capacity model of one replica: throughput, memory and time to first token, from the model, the GPU and the traffic.

The costs of a step are fitted to `inflate_h200.json` and `inflate_rows_h200.json`, which were measured with a model of
7.2 billion weights on an H200, with 1 to 256 rows and trees of 1 to 64 nodes. The costs of prefill are taken from
`traffic_h200.json`. All costs are expressed in weights, bandwidth and arithmetic, so that they can be used to estimate
another model or GPU. Sharding is estimated from an assumed time for an all-reduce, which was not measured. The
estimates are checked against the simulation in `benchmarks.fleet` and against measured traffic.
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
_TOGETHER = 128  # nodes of all rows up to which a call is bound by memory bandwidth, not by arithmetic
_CHUNK = 512  # prompt tokens prefilled between two steps
_KEPT = 0.9  # share of a GPU's memory that weights and caches may take


@dataclass(frozen=True, slots=True)
class ModelSize:
    """The size of a decoder."""

    weights: float
    layers: int
    width: int
    kv_width: int  # numbers that one layer caches per token, keys and values together
    bytes: int = 2  # per number
    head: float = 0.08  # weights of the drafter, as a share of the model's

    @property
    def weight_bytes(self) -> float:
        """Bytes of the model's weights, without its drafter."""
        return self.weights * self.bytes

    @property
    def token_bytes(self) -> float:
        """Bytes that the cache holds per token."""
        return float(self.layers * self.kv_width * self.bytes)


@dataclass(frozen=True, slots=True)
class Gpu:
    """The speed and memory of a device."""

    name: str
    bandwidth: float  # bytes per second, measured by copying
    memory: float  # bytes
    arithmetic: float = 1.0  # its arithmetic throughput relative to an H200
    sum_seconds: float = 15e-6  # latency of one all-reduce, in addition to the transfer of its bytes; an assumption
    link: float = 300e9  # bytes per second between ranks; an assumption


H200 = Gpu("NVIDIA H200", 4.28e12, 150e9)


@dataclass(frozen=True, slots=True)
class Costs:
    """The time of measured steps in seconds, split by cause."""

    launches: float  # kernel launches per layer
    depth: float  # per depth of the draft, in addition to reading the drafter's weights
    flop: float  # per operation, where a call is bound by arithmetic
    row: float  # per row: its policy, its verdict, its part of the cache
    row_depth: float  # per row and depth of its draft
    reading: float  # per operation of the target's prefill
    reading_along: float  # of the drafter's prefill, per operation of the target's
    gains: Mapping[int, float]  # tokens per step, by nodes per row
    errors: Sequence[float] = field(default=())  # relative errors of the fit, one for each measurement


def measurements(folder: Path = _FOLDER) -> list[dict[str, Any]]:
    """Return the measured steps, by rows, nodes and depth."""
    found: list[dict[str, Any]] = []
    for name in _FILES:
        found += json.loads((folder / name).read_text(encoding="utf-8"))["parts"]["rows"]["results"]
    return found


def traffic_cells(folder: Path = _FOLDER) -> list[dict[str, Any]]:
    """Return the measured traffic: requests in flight, their tokens and their prefill, with and without drafting."""
    parts = json.loads((folder / _TRAFFIC).read_text(encoding="utf-8"))["parts"].values()
    return [{"in_flight": part["in_flight"], **cell} for part in parts for cell in part["cells"].values()]


def _reading(folder: Path) -> tuple[float, float]:
    """Return the prefill time per prompt token without a drafter, and what a drafter adds to it, in seconds."""
    spent: dict[bool, list[float]] = {True: [0.0, 0.0], False: [0.0, 0.0]}
    for cell in traffic_cells(folder):
        of_kind = spent[cell["drafter"] == "none"]
        of_kind[0] += cell["prefill"]["seconds"]
        of_kind[1] += cell["prefill"]["prompt_tokens"]
    plain, drafted = (seconds / tokens for seconds, tokens in (spent[True], spent[False]))
    return plain, drafted - plain


MEASURED = ModelSize(weights=7.18e9, layers=32, width=4096, kv_width=2 * 16 * 64)
_CONTEXT = 150  # average tokens of the texts that were measured


def calibrated(folder: Path = _FOLDER, gpu: Gpu = H200, size: ModelSize = MEASURED) -> Costs:
    """Fit the costs to the measured steps by non-negative least squares of the relative errors."""
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
    """Return the regressors of a step's time, one for each cause."""
    return [1.0, depth, max(0, rows * nodes - _TOGETHER), rows, depth * rows]


@dataclass(frozen=True, slots=True)
class Traffic:
    """The traffic of one replica."""

    rate: float  # requests per second
    prompt: float  # average tokens of a prompt
    output: float  # average tokens of a text
    known: float = 0.0  # share of the prompts' tokens that are in the replica's prefix cache
    spread: float = 1.0  # coefficient of variation of the tokens to prefill

    @property
    def unread(self) -> float:
        """Average tokens of a prompt that must be prefilled."""
        return self.prompt * (1 - self.known)


@dataclass(frozen=True, slots=True)
class Estimate:
    """The performance of a replica under given traffic."""

    rows: float  # average requests in flight, including those in prefill
    tokens_per_second: float
    seconds_per_token: float  # of one text
    first_token: float  # average seconds to the first token
    busy: float  # load as a share of the capacity


@dataclass(frozen=True, slots=True)
class Replica:
    """A model on one GPU, or sharded over several."""

    size: ModelSize = MEASURED
    gpu: Gpu = H200
    costs: Costs = field(default_factory=calibrated)
    ranks: int = 1
    rows: int = 64  # maximum batch size
    drafts: bool = True

    def nodes(self, rows: float) -> int:
        """Return the nodes of a row's tree in a batch of `rows`.

        All trees together have about 128 nodes, and each at most 64. With more than 128 rows there is no drafting.
        """
        if not self.drafts or rows > _TOGETHER:
            return 1
        return max(2, min(64, 1 << int(math.log2(_TOGETHER / max(rows, 1.0)))))

    def gain(self, nodes: int) -> float:
        """Return the tokens per step and row, interpolated between the measured trees."""
        known = sorted(self.costs.gains)
        return float(np.interp(math.log2(nodes), np.log2(known), [self.costs.gains[n] for n in known]))

    def step(self, rows: float, context: float = _CONTEXT) -> float:
        """Return the seconds of one step of `rows` rows whose texts have `context` tokens on average."""
        nodes = self.nodes(rows)
        depth = 0 if nodes == 1 else 1 if nodes == 2 else 3
        costs, size, ranks = self.costs, self.size, self.ranks
        read = (size.weight_bytes + rows * context * size.token_bytes) / ranks / self.gpu.bandwidth
        drafted = depth * (costs.depth + size.head * size.weight_bytes / self.gpu.bandwidth + rows * costs.row_depth)
        counted = max(0.0, rows * nodes - _TOGETHER) * self._token / ranks
        return read + size.layers * costs.launches + drafted + counted + rows * costs.row + self._sums(rows * nodes)

    @property
    def _token(self) -> float:
        """Seconds of arithmetic per token on one GPU."""
        return 2 * self.size.weights * self.costs.flop / self.gpu.arithmetic

    def _sums(self, tokens: float) -> float:
        """Return the seconds of all all-reduces of a call, two in each layer."""
        if self.ranks == 1:
            return 0.0
        carried = 2 * (self.ranks - 1) / self.ranks * tokens * self.size.width * self.size.bytes / self.gpu.link
        return 2 * self.size.layers * (self.gpu.sum_seconds + carried)

    def reading(self, tokens: float) -> float:
        """Return the seconds to prefill `tokens` prompt tokens. A drafter prefills them too, on one rank."""
        own, along = self.costs.reading / self.ranks, self.costs.reading_along if self.drafts else 0.0
        return tokens * (2 * self.size.weights * (own + along) / self.gpu.arithmetic + self._sums(_CHUNK) / _CHUNK)

    def in_flight(self, rows: int, traffic: Traffic) -> float:
        """Return the tokens per second of a closed loop with `rows` requests in flight."""
        context = traffic.prompt + traffic.output / 2
        return 1 / (1 / (rows * self.speed(rows, context)) + self.reading(traffic.unread) / traffic.output)

    def speed(self, rows: float, context: float = _CONTEXT) -> float:
        """Return the tokens per second of one text in a batch of `rows`."""
        return self.gain(self.nodes(rows)) / self.step(rows, context)

    def most_rows(self, context: float) -> int:
        """Return how many texts of `context` tokens fit into memory beside the weights."""
        free = _KEPT * self.gpu.memory * self.ranks - (1 + self.size.head * self.ranks) * self.size.weight_bytes
        return max(0, min(self.rows, int(free // (context * self.size.token_bytes))))

    def most_requests(self, traffic: Traffic) -> float:
        """Return the capacity of the replica, in requests per second."""
        context = traffic.prompt + traffic.output / 2
        rows = self.most_rows(context)
        if rows < 1:
            return 0.0
        most = max(count * self.speed(count, context) for count in range(1, rows + 1))
        return 1 / (traffic.output / most + self.reading(traffic.unread))

    def under(self, traffic: Traffic) -> Estimate:
        """Estimate the average performance of the replica under `traffic`.

        Prefill takes its share of the time. In the rest, the number of rows in flight is such that their steps produce
        the requested tokens (Little's law). Prompts are prefilled one after the other, a chunk between two steps, so
        the time to first token follows a queue with a single server (the Pollaczek-Khinchine formula).
        """
        busy = traffic.rate / max(self.most_requests(traffic), 1e-12)
        if busy >= 1:
            raise ArgumentError(
                f"the rate must be below the capacity of {self.most_requests(traffic):.2f} requests per second, got "
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
        """Return the number of rows whose steps produce the requested tokens, by bisection."""
        left = 1 - traffic.rate * self.reading(traffic.unread)
        asked = traffic.rate * traffic.output
        low, high = 0.0, float(self.most_rows(context))
        for _ in range(60):
            middle = (low + high) / 2
            step_rows = max(middle, 1.0)  # a step has at least one row; below that the replica is idle at times
            low, high = (middle, high) if left * middle * self.speed(step_rows, context) < asked else (low, middle)
        return high

    def over(self, ranks: int) -> "Replica":
        """Return the same replica sharded over `ranks` ranks."""
        return replace(self, ranks=ranks)


def hit_rate(popularity: Sequence[float], kept: int) -> float:
    """Return the hit rate of an LRU cache of `kept` prompt prefixes (Che's approximation).

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
