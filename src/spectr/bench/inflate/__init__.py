"""`spectr bench inflate`: the texts of a small model at the costs of a large one, on one device.

A small Llama and its trained head are inflated: they compute what they computed, at a large model's price. So what is
accepted is real, and so is what a call takes, though nowhere a large checkpoint is. What it does not tell is how well a
large model's own drafter would draft.
"""

from spectr.bench.inflate.order import Grid, Order
from spectr.bench.inflate.run import PARTS, run
from spectr.bench.inflate.tables import tables

__all__ = ["PARTS", "Grid", "Order", "run", "tables"]
