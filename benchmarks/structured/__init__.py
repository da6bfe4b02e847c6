"""Measures the cost of grammars and the gain from drafting forced text: `python -m benchmarks.structured`.

JSON is generated under schemas, with and without drafts, and compared with plain masked decoding by the number of
target calls. All ways should generate the same texts for the same seeds; texts that differ are counted.
"""

from benchmarks.structured.run import Order, run, tables

__all__ = ["Order", "run", "tables"]
