"""Rules: which path of a token tree is kept. One file per rule; those in `lossy` say so. Knows no models."""

from typing import Any

from spectr.registry import Entry, Registry
from spectr.verify.rule import Card, Rule

__all__ = ["RULES", "Card", "Rule", "rule"]

_WALK = "spectr.verify.walk:Walk"

RULES = Registry(
    "rule",
    {
        "race": Entry("spectr.verify.race:Race"),
        "path_block": Entry("spectr.verify.path_block:PathBlock"),
        "optimal": Entry(_WALK, {"coupling": "optimal", "name": "optimal"}),
        "hybrid": Entry(_WALK, {"coupling": "hybrid", "name": "hybrid"}),
        "kseq_plus": Entry(_WALK, {"coupling": "kseq_plus", "name": "kseq_plus"}),
        "kseq": Entry(_WALK, {"coupling": "kseq", "name": "kseq"}),
        "spectr": Entry(
            _WALK, {"coupling": "kseq", "name": "spectr", "summary": "SpecTr as published: the walk with K-SEQ"}
        ),
        "recursive": Entry(_WALK, {"coupling": "recursive", "name": "recursive"}),
        "recursive_wor": Entry(_WALK, {"coupling": "recursive_wor", "name": "recursive_wor"}),
        "speculative": Entry(
            _WALK,
            {"coupling": "maximal", "name": "speculative", "summary": "speculative sampling as published: one draft"},
        ),
        "block": Entry("spectr.verify.block:Block"),
        "traversal": Entry("spectr.verify.traversal:Traversal"),
        "match": Entry("spectr.verify.match:Match"),
        "walk": Entry(_WALK),
        "lenience": Entry("spectr.verify.lossy.lenience:Lenience"),
        "pareto": Entry("spectr.verify.lossy.pareto:Pareto"),
    },
    group="spectr.rules",
)


def rule(name: str, **options: Any) -> Rule:
    """The rule called `name`.

    >>> rule("kseq").card.siblings
    ('iid', 'hybrid', 'fixed')
    """
    made: Rule = RULES.make(name, **options)
    return made
