"""spectr: lossless multi-draft speculative decoding."""

from spectr.audit import StepLaw, exact_step_law
from spectr.coins import SeededCoins
from spectr.transport import Coupling, coupling, optimal_acceptance, race_acceptance
from spectr.trees import Growth, Shape, grow
from spectr.types import Draft, Verdict
from spectr.verify import Rule, rule

__all__ = [
    "Coupling",
    "Draft",
    "Growth",
    "Rule",
    "SeededCoins",
    "Shape",
    "StepLaw",
    "Verdict",
    "coupling",
    "exact_step_law",
    "grow",
    "optimal_acceptance",
    "race_acceptance",
    "rule",
]
