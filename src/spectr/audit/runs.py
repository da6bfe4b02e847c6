"""One function for each kind of audit; each returns a report."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from spectr.audit.endpoint import Endpoint, endpoint_case
from spectr.audit.planted import planted_cases
from spectr.audit.proofs import named_rules
from spectr.audit.report import Level, Report, examine
from spectr.audit.samplers import Function, Sampler
from spectr.audit.sections import (
    Scope,
    exact_part,
    function_law,
    model_cases,
    model_law,
    sampler_case,
    setup_of,
    transformers_cases,
)  # fmt: skip
from spectr.audit.step_law import LanguageModel
from spectr.policy import Policy

if TYPE_CHECKING:
    from spectr.lm import LM

__all__ = [
    "audit_endpoint", "audit_exact", "audit_function", "audit_model", "audit_planted", "audit_sampler",
    "audit_transformers",
]  # fmt: skip


def audit_exact(rule: str | None = None, **options: Any) -> Report:
    """Enumerate the output distribution of one rule on small models; or run all audits that need no model: every rule,
    policies, coins and noise, and the loop.

    >>> report = audit_exact("speculative")
    >>> report.holds, report.summary
    (True, '3 of 3 lossless claims hold')
    """
    return examine(exact_part(None if rule is None else named_rules(rule, options)))


def audit_planted(level: Level | None = None) -> Report:
    """Check that every planted fault is detected."""
    level = level or Level()
    return examine(planted_cases(level.bias), level)


def audit_model(lm: "LM", scope: Scope, level: Level | None = None) -> Report:
    """Audit this package on a model that `spectr.load` returned."""
    return examine(model_cases(lm, scope), level)


def audit_transformers(lm: "LM", scope: Scope, level: Level | None = None) -> Report:
    """Audit the generation of transformers on the logits of a model: plain, and with an assistant model."""
    return examine(transformers_cases(setup_of(lm, scope), scope), level)


def audit_function(
    function: Function, target: "LanguageModel | LM", prompt: Sequence[int], length: int = 3, level: Level | None = None
) -> Report:
    """Audit a function (prompt, seed) → tokens.

    `target` is a function from tokens, prompt included, to the distribution of the next one; or a model that
    `spectr.load` returned, at temperature 1.

    >>> import random
    >>> fair = lambda prompt, seed: random.Random(seed).choices([0, 1], k=1)
    >>> audit_function(fair, lambda text: [0.5, 0.5], [0], length=1, level=Level(samples=4000)).holds
    True
    >>> audit_function(fair, lambda text: [0.6, 0.4], [0], length=1, level=Level(samples=4000)).holds
    False
    """
    law = function_law(target, prompt, length) if callable(target) else model_law(target, prompt, Policy(), length)
    name = getattr(function, "__name__", type(function).__name__)
    return examine([sampler_case(name, function, law, prompt)], level)


def audit_sampler(sampler: Sampler, law: Any, name: str = "sampler", level: Level | None = None) -> Report:
    """Audit a sampler, which returns texts for many seeds at once, against a `TextLaw`."""
    return examine([sampler_case(name, sampler, law)], level)


def audit_endpoint(
    endpoint: Endpoint, length: int = 3, level: Level | None = None, progress: Callable[[str], None] = lambda _: None
) -> Report:
    """Audit an OpenAI-compatible endpoint against the distribution that its own log-probabilities state."""
    return examine([endpoint_case(endpoint, length)], level, progress)
