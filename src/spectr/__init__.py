"""spectr: lossless multi-draft speculative decoding.

Names are imported when they are first used, so that `import spectr` and `spectr --help` do not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from spectr.garbage import without_collection
from spectr.version import __version__

if TYPE_CHECKING:
    from spectr import hf
    from spectr.audit import StepLaw, exact_step_law
    from spectr.coins import SeededCoins
    from spectr.grammar import Grammar
    from spectr.lm import LM, Output, load
    from spectr.transport import Coupling, coupling, optimal_acceptance, race_acceptance
    from spectr.trees import Growth, Shape, grow
    from spectr.types import Draft, Verdict
    from spectr.verify import Rule, rule

__all__ = [
    "LM",
    "Coupling",
    "Draft",
    "Grammar",
    "Growth",
    "Output",
    "Rule",
    "SeededCoins",
    "Shape",
    "StepLaw",
    "Verdict",
    "__version__",
    "coupling",
    "exact_step_law",
    "grow",
    "hf",
    "load",
    "optimal_acceptance",
    "race_acceptance",
    "rule",
]

_HOMES = {
    "audit": ("StepLaw", "exact_step_law"),
    "coins": ("SeededCoins",),
    "grammar": ("Grammar",),
    "lm": ("LM", "Output", "load"),
    "transport": ("Coupling", "coupling", "optimal_acceptance", "race_acceptance"),
    "trees": ("Growth", "Shape", "grow"),
    "types": ("Draft", "Verdict"),
    "verify": ("Rule", "rule"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a public name on first use and cach it."""
    if name == "hf":
        return import_module("spectr.hf")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'spectr' has no attribute {name!r}")
    with without_collection():
        value = globals()[name] = getattr(import_module(f"spectr.{_HOME_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
