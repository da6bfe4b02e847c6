"""Token trees: their shapes, and how they are drawn from draft laws. Independent of rules and models."""

from spectr.trees.budget import Valued, best_shape
from spectr.trees.frontier import Frontier, LogitsOf, static_frontier
from spectr.trees.grow import Growth, grow
from spectr.trees.prune import Budget, prune
from spectr.trees.shape import Shape, Topology, as_shape, path_tokens, topology

__all__ = [
    "Budget",
    "Frontier",
    "Growth",
    "LogitsOf",
    "Shape",
    "Topology",
    "Valued",
    "as_shape",
    "best_shape",
    "grow",
    "path_tokens",
    "prune",
    "static_frontier",
    "topology",
]
