"""Checks that the output has the target's distribution, by enumeration, statistics and comparison; of spectr and
others.

report = audit_exact("kseq")                              # enumerates every draft and every coin of a rule
report = audit_model(lm, Scope([lm.encode("Why?")]))      # audits this package on a real model
report = audit_function(sample, target, prompt=[1, 2])    # audits any function (prompt, seed) → tokens
report.holds, report.summary, report.findings
witness = Witness(share=0.01)                             # checks a running engine: engine.with_parts(witness=witness)
"""

from spectr.audit.endpoint import Endpoint
from spectr.audit.exact import enumerate_steps, exact_step_law
from spectr.audit.report import Case, Finding, Level, Report, examine
from spectr.audit.runs import (
    audit_endpoint,
    audit_exact,
    audit_function,
    audit_model,
    audit_planted,
    audit_sampler,
    audit_transformers,
)
from spectr.audit.sections import Scope
from spectr.audit.statistics import samples_needed, smallest_bias
from spectr.audit.step_law import StepLaw
from spectr.audit.texts import TextLaw
from spectr.audit.witness import Witness

__all__ = [
    "Case",
    "Endpoint",
    "Finding",
    "Level",
    "Report",
    "Scope",
    "StepLaw",
    "TextLaw",
    "Witness",
    "audit_endpoint",
    "audit_exact",
    "audit_function",
    "audit_model",
    "audit_planted",
    "audit_sampler",
    "audit_transformers",
    "enumerate_steps",
    "exact_step_law",
    "examine",
    "samples_needed",
    "smallest_bias",
]
