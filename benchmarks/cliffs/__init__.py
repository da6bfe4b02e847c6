"""What settings and drafters cost a single text, and whether many requests leak memory: `python -m benchmarks.cliffs`.

Texts with a setting and without it are generated in turns, one at a time. In another part thousands of short requests
with random settings are run, after which memory and the number of captured steps should not have grown.
"""

from benchmarks.cliffs.order import Order, Trial
from benchmarks.cliffs.run import PARTS, run
from benchmarks.cliffs.tables import tables

__all__ = ["PARTS", "Order", "Trial", "run", "tables"]
