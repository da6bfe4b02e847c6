"""Measures one real model with and without its drafter: `python -m benchmarks.real`.

Speed is measured one text at a time on HumanEval, grade-school arithmetic and chat prompts, and compared with plain
decoding and with transformers. Scores are measured in batches: drafting and plain decoding answer the same problems
with different seeds, and their scores must agree. Programs that the model writes are run only with `--run-code`.
"""

from benchmarks.real.order import Order, Trial
from benchmarks.real.run import run
from benchmarks.real.tables import tables

__all__ = ["Order", "Trial", "run", "tables"]
