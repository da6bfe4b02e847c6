"""Couplings of the target's and the drafter's distributions: pure numerics on tensors, without trees or models."""

from typing import Any

from spectr.registry import Entry, Registry
from spectr.transport.bounds import kseq_share, optimal_acceptance, token_bound
from spectr.transport.coupling import Coupling, Outcome
from spectr.transport.race import race_acceptance

__all__ = [
    "COUPLINGS",
    "Coupling",
    "Outcome",
    "coupling",
    "kseq_share",
    "optimal_acceptance",
    "race_acceptance",
    "token_bound",
]

COUPLINGS = Registry(
    "coupling",
    {
        "maximal": Entry("spectr.transport.maximal:Maximal"),
        "kseq": Entry("spectr.transport.kseq:KSeq"),
        "kseq_plus": Entry("spectr.transport.kseq:KSeqPlus"),
        "optimal": Entry("spectr.transport.optimal:Optimal"),
        "optimal_sorted": Entry("spectr.transport.optimal:Optimal", {"bins": 0}),
        "optimal_binned": Entry("spectr.transport.optimal:Optimal", {"sort_below": 0}),
        "hybrid": Entry("spectr.transport.hybrid:Hybrid"),
        "recursive": Entry("spectr.transport.recursive:Recursive"),
        "recursive_wor": Entry("spectr.transport.recursive:RecursiveWithoutReplacement"),
        "match": Entry("spectr.transport.match:Match"),
    },
    group="spectr.couplings",
)


def coupling(name: str, **options: Any) -> Coupling:
    """Return the coupling registered as `name`.

    >>> coupling("kseq").name
    'kseq'
    """
    made: Coupling = COUPLINGS.make(name, **options)
    return made
