"""spectr: lossless multi-draft speculative decoding."""

from spectr import hf
from spectr.audit import StepLaw, exact_step_law
from spectr.coins import SeededCoins
from spectr.lm import LM, Output, load
from spectr.transport import Coupling, coupling, optimal_acceptance, race_acceptance
from spectr.trees import Growth, Shape, grow
from spectr.types import Draft, Verdict
from spectr.verify import Rule, rule

__all__ = [
    "LM",
    "Coupling",
    "Draft",
    "Growth",
    "Output",
    "Rule",
    "SeededCoins",
    "Shape",
    "StepLaw",
    "Verdict",
    "coupling",
    "exact_step_law",
    "grow",
    "hf",
    "load",
    "optimal_acceptance",
    "race_acceptance",
    "rule",
]
