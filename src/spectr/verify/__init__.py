"""Rules, which decide which path of a token tree is kept: one file per rule, the lossy ones in `lossy`.

A rule sees logits and drafts as tensors; nothing here depends on a model.
"""

from typing import Any

from spectr.registry import Entry, Registry
from spectr.verify.rule import Card, Rule

__all__ = ["RULES", "Card", "Rule", "rule"]

_WALK = "spectr.verify.walk:Walk"


def _walk(name: str, coupling: str, summary: str) -> Entry:
    return Entry(_WALK, {"coupling": coupling, "name": name, "summary": summary})


RULES = Registry(
    "rule",
    {
        "race": Entry("spectr.verify.race:Race"),
        "path_block": Entry("spectr.verify.path_block:PathBlock"),
        "optimal": _walk("optimal", "optimal", "accepts as often as independent drafts allow, at every node"),
        "hybrid": _walk("hybrid", "hybrid", "fixes the likeliest drafts and couples the sampled ones optimally"),
        "kseq_plus": _walk("kseq_plus", "kseq_plus", "K-SEQ with one more test for the first draft if none passes"),
        "kseq": _walk("kseq", "kseq", "tests the drafts in turn with p / (rho q); the first that passes is kept"),
        "spectr": _walk("spectr", "kseq", "the algorithm of the SpecTr paper; another name for kseq"),
        "recursive": _walk("recursive", "recursive", "tests each draft against what earlier ones left of the target"),
        "recursive_wor": _walk("recursive_wor", "recursive_wor", "the same for drafts drawn without replacement"),
        "speculative": _walk("speculative", "maximal", "speculative sampling as first published: one draft"),
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
    """Return the rule registered as `name`.

    >>> rule("kseq").card.siblings
    ('iid', 'hybrid', 'fixed')
    """
    made: Rule = RULES.make(name, **options)
    return made
