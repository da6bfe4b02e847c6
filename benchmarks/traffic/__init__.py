"""Measures continuous traffic of requests with different lengths and temperatures: `python -m benchmarks.traffic`.

Drafting and plain decoding run the same traffic with a fixed number of requests in flight. They are compared with each
other, and with an upper bound: the rate if prompts were prefilled separately and all texts ran in a full batch.
"""

from benchmarks.traffic.order import Load, Order
from benchmarks.traffic.run import run
from benchmarks.traffic.tables import tables

__all__ = ["Load", "Order", "run", "tables"]
