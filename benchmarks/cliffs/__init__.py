"""What settings and drafters cost one text, and whether many requests leave something behind: `python -m
benchmarks.cliffs`.

One text at a time with a setting, against the same without it, in turns; and thousands of short requests with random
settings, after which memory and the number of captured steps should be where they were.
"""

from benchmarks.cliffs.order import Order, Trial
from benchmarks.cliffs.run import PARTS, run
from benchmarks.cliffs.tables import tables

__all__ = ["PARTS", "Order", "Trial", "run", "tables"]
