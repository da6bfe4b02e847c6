"""What grammars cost and forced text gives: JSON under schemas, with and without drafts, against plain masked decoding.

Every way should give the same texts for the same seeds, and those that differ are counted; the calls of the target are
what is compared.
"""

from benchmarks.structured.run import Order, run, tables

__all__ = ["Order", "run", "tables"]
