"""Token trees: shapes, and growing them from draft laws. Knows no rule and no model."""

from spectr.trees.grow import Growth, grow
from spectr.trees.shape import Shape, Topology, as_shape, topology

__all__ = ["Growth", "Shape", "Topology", "as_shape", "grow", "topology"]
