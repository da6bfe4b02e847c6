"""The parts that an engine is made of."""

from dataclasses import dataclass

from spectr.engine.record import StepWitness
from spectr.policy import PolicyRows
from spectr.types import Drafter, TreeModel
from spectr.verify import Rule

__all__ = ["EngineParts"]


@dataclass(frozen=True, slots=True)
class EngineParts:
    """A target, a drafter and a rule that fit together, and how they are run."""

    target: TreeModel
    drafter: Drafter
    rule: Rule
    stops: frozenset[int] = frozenset()  # tokens that end every text
    rows: int = 64  # the most requests that run at once
    captures: bool = False  # whether steps are replayed as CUDA graphs
    chunk: int = 512  # the most prompt tokens that are prefilled between two steps
    reuses_prefixes: bool = True  # whether shared prefixes are copied between rows; benchmarks prefill every prompt
    min_rows: int = 4  # allocated where memory allows, so that ended texts stay available as prefixes
    policies: type[PolicyRows] = PolicyRows  # computes the policies of rows; audits plant faults here
    witness: StepWitness | None = None  # checks some of the steps while they run
    forced_text: bool = True  # whether text that a grammar forces is drafted; benchmarks compare both

    @property
    def drafts_forced_text(self) -> bool:
        """Whether forced text is drafted: only under a rule whose text does not depend on drafts, such as the race."""
        return self.forced_text and not self.rule.card.text_depends_on_drafts
