"""Requests that come and go, each with lengths and a temperature of its own: `python -m benchmarks.traffic`.

Drafting and plain decoding run the same traffic, with a fixed number of requests in flight. Each is compared with the
other, and with what it could reach at most if prompts were read alone and texts ran in a full batch without a pause.
"""

from benchmarks.traffic.order import Load, Order
from benchmarks.traffic.run import run
from benchmarks.traffic.tables import tables

__all__ = ["Load", "Order", "run", "tables"]
