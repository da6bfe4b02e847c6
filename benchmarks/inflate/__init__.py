"""Measures the texts of a small model at the cost of a large one, on one device: `python -m benchmarks.inflate`.

A small Llama and its trained head are inflated: they compute the same function at a large model's cost. Acceptance and
the time of a call are therefore real, although no large checkpoint is needed. How well a large model's own drafter
would draft is not measured.
"""

from benchmarks.inflate.order import Grid, Order
from benchmarks.inflate.run import PARTS, run
from benchmarks.inflate.tables import tables

__all__ = ["PARTS", "Grid", "Order", "run", "tables"]
