"""Collects the cases of an audit: of this package without and with a model, of transformers, and of any sampler."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spectr.audit.equality import RealTexts, batch_case, greedy_case, rows_finding, seed_case
from spectr.audit.laws import Claimed, law_case
from spectr.audit.loop import at_most, deep_cases, law_of_rule, loop_cases, policy_law_cases, wide_cases
from spectr.audit.noise import noise_cases
from spectr.audit.pathology import limit_case, pathological_cases
from spectr.audit.policies import policy_cases
from spectr.audit.proofs import NamedRule, distinct_rules, exact_cases, named_rules
from spectr.audit.reference_policy import ReferencePolicy
from spectr.audit.replay import Bent, TreeRows, Words
from spectr.audit.report import Case, Claim, Finding, Level
from spectr.audit.samplers import EngineSampler, FunctionSampler, OnOneThread, Sampler, reference_laws
from spectr.audit.setup import NOISY, Setup, noise, real_setup
from spectr.audit.step_law import LanguageModel
from spectr.audit.texts import TextLaw
from spectr.audit.witnessed import witnessed_cases
from spectr.draft.traits import DrafterTraits
from spectr.errors import ArgumentError, MismatchError
from spectr.policy import Policy
from spectr.transport.laws import check_law

if TYPE_CHECKING:
    from spectr.lm import LM

__all__ = [
    "Scope", "direct_cases", "exact_part", "function_law", "model_cases", "model_law", "sampler_case", "setup_of",
    "transformers_cases",
]  # fmt: skip

_DRAFTERS = ("lookup", "ngram", "early_exit", "random")
_GREEDY = ("race", "optimal", "block")  # rules compared on the model itself, where each takes seconds
_PATHOLOGICAL = ("race", "match", "optimal", "path_block", "block", "traversal")
_REAL = (
    ("race", "early_exit", 20_000),
    ("optimal", "early_exit", 20_000),
    ("kseq", "ngram", 5_000),
    ("match", "lookup", 5_000),
)
"""Rules with real drafters, and the maximum number of samples; drafters without a model run on the host."""
_SHAPED = ("race", "kseq", "optimal", "path_block", "traversal", "block")
_DEEP = ("race", "kseq", "optimal", "path_block", "traversal")
_WIDE = ("race", "kseq", "optimal")
"""Rules that are also sampled under policies that depend on the text, with 8 drafts of 5, and with many tokens."""
_TOKENS = 12  # tokens of a text compared on the real model
_SLOW = 5_000  # samples of a sampler that returns texts one by one


@dataclass(frozen=True, slots=True)
class Scope:
    """The prompts, policy, rules and drafter with which a model is audited."""

    prompts: Sequence[Sequence[int]]  # the first is sampled from, all are compared on
    policy: Policy = field(default_factory=Policy)
    rules: str | Sequence[NamedRule] | None = None  # a name, or several rules; None: every rule
    drafter: Any = None  # None: the noisy one for laws, several for comparisons
    vocabulary: int = 32  # likeliest tokens on which the model is replayed

    def __post_init__(self) -> None:
        if not self.prompts or not all(self.prompts):
            raise ArgumentError("an audit requires a prompt of at least one token")

    @property
    def named(self) -> list[NamedRule]:
        """The rules, each under one name."""
        if self.rules is not None:
            return named_rules(self.rules) if isinstance(self.rules, str) else list(self.rules)
        return distinct_rules()


def _few(case: Case, samples: int) -> Case:
    """Limit a case to `samples` samples, unless their number was given."""

    def run(level: Level) -> Sequence[Finding]:
        return case.run(level if level.samples else level.at_most(samples))

    return replace(case, run=run)


def _laws(setup: Setup, scope: Scope) -> list[Case]:
    """Return cases of every rule with one drafter.

    If no drafter was named, add some with real drafters, under policies that depend on the text, with many drafts, and
    with a large vocabulary."""
    found = [law_of_rule(setup, named, scope.drafter or NOISY) for named in scope.named]
    if scope.drafter is not None:
        return found
    by_name = {named.rule.card.name: named for named in scope.named}
    if scope.rules is None:
        found += [at_most(law_of_rule(setup, by_name[rule], drafter), most) for rule, drafter, most in _REAL]
    if setup.vocabulary >= 8:  # or bans and hooks could leave no token
        found += policy_law_cases(setup, [by_name[rule] for rule in _SHAPED if rule in by_name], 20_000)
    found += deep_cases(setup, [by_name[rule] for rule in _DEEP if rule in by_name], 10_000)
    return [*found, *wide_cases([by_name[rule] for rule in _WIDE if rule in by_name], 3_000)]


def _comparisons(lm: "LM", setup: Setup, scope: Scope) -> list[Case]:
    texts = RealTexts(lm.opened, scope.prompts, _TOKENS, scope.policy)
    drafters = _DRAFTERS if scope.drafter is None else (scope.drafter,)
    lossless = [named.rule for named in scope.named if named.rule.card.lossless]
    race = [rule for rule in lossless if rule.card.name == "race"]
    found = [texts.race_case(drafter) for drafter in drafters if race]
    if race and scope.drafter is None and lm.opened.target.device.type == "cuda":
        found.append(texts.race_case("early_exit", captures=False))
    real = [rule for rule in lossless if scope.rules is not None or rule.card.name in _GREEDY]
    found += [texts.greedy_case(scope.drafter or ("lookup" if rule in race else "early_exit"), rule) for rule in real]
    for rule in lossless:
        found += [make(setup, NOISY, rule) for make in (greedy_case, seed_case, batch_case)]
    return found


def exact_part(rules: Sequence[NamedRule] | None = None) -> list[Case]:
    """Return the cases that need no model: enumerated rules; and unless rules were named, policies against their
    reference, coins and noise, and the loop on a small model, whose steps a witness checks."""
    if rules is not None:
        return exact_cases(rules)
    lossless = [named.rule for named in distinct_rules() if named.rule.card.lossless]
    return [*exact_cases(), *policy_cases(), *noise_cases(), *loop_cases(lossless), *witnessed_cases(lossless)]


def _rows_case(lm: "LM", prompts: Sequence[Sequence[int]]) -> Case:
    from spectr.models.baselines import plain_rows

    def run(_: Level) -> Sequence[Finding]:
        return [rows_finding(lm.opened.target, lambda texts: plain_rows(lm.opened, texts), prompts, "lossless")]

    return Case("rows", "tree rows", run)


def setup_of(lm: "LM", scope: Scope) -> Setup:
    """Return the model prepared for replay, which several kinds of cases can share."""
    return real_setup(lm.opened, scope.prompts[0], scope.policy, scope.vocabulary)


def model_cases(lm: "LM", scope: Scope, setup: Setup | None = None) -> list[Case]:
    """Return the cases of this package on a real model: logits, distributions, equal texts, and adversarial drafts."""
    setup = setup or setup_of(lm, scope)
    bad = [n.rule for n in scope.named if n.rule.card.lossless and (scope.rules or n.rule.card.name in _PATHOLOGICAL)]
    return [
        _rows_case(lm, scope.prompts),
        *_laws(setup, scope),
        *_comparisons(lm, setup, scope),
        *pathological_cases(setup, bad),
        limit_case(lm.opened.target, scope.prompts[0], lm.opened.stops),
    ]


def model_law(lm: "LM", prompt: Sequence[int], policy: Policy, length: int) -> TextLaw:
    """Return the law of short texts of a real model, over all of its tokens."""
    if lm.opened.start is not None:
        raise MismatchError("an audit requires a decoder-only model; this one has an encoder")
    target = lm.opened.target
    rows = TreeRows(target, torch.arange(target.vocabulary), {tuple(prompt): prompt})
    reference = ReferencePolicy(policy, lm.opened.stops, length, slack=1e-6)
    return TextLaw(reference_laws(rows, prompt, reference), length, lm.opened.stops)


def function_law(target: LanguageModel, prompt: Sequence[int], length: int) -> TextLaw:
    """Return the law of short texts of a function from tokens, prompt included, to the next token's probabilities."""
    start = tuple(prompt)

    def laws(texts: Sequence[Words]) -> Tensor:
        found = [torch.as_tensor(target(start + text), dtype=torch.float64) for text in texts]
        for law in found:
            check_law("target", law)
        return torch.stack(found)

    return TextLaw(laws, length)


def direct_cases(lm: "LM", scope: Scope, length: int) -> list[Case]:
    """Return cases without replay, for drafters that read the target's hidden states; they have far fewer samples."""
    law = model_law(lm, scope.prompts[0], scope.policy, length)
    sampler = EngineSampler(lm.engine, scope.prompts[0], scope.policy)
    name = f"{lm.engine.rule.card.name} × {lm.engine.drafter.name}, not replayed"
    claimed = Claimed(name, sampler, law, "lossless")
    return [_rows_case(lm, scope.prompts), _few(law_case(claimed), 2_000)]


def sampler_case(name: str, sample: Sampler | Callable[[list[int], int], Sequence[int]], law: TextLaw,
                 prompt: Sequence[int] | None = None) -> Case:  # fmt: skip
    """Return the case of any sampler: with a `prompt`, a function (prompt, seed) → tokens; without, a `Sampler`."""
    sampler: Any = sample if prompt is None else FunctionSampler(sample, prompt, law.stops)  # type: ignore[arg-type]
    return law_case(Claimed(name, sampler, law))


def transformers_cases(setup: Setup, scope: Scope, most: int | None = None) -> list[Case]:
    """Return cases of the generation loop of transformers on replayed logits: plain, with an assistant model, and with
    its lossy mode. It generates texts one by one; `most` limits their number."""
    from spectr.models.baselines import ReplayNet, TransformersSampler, settings_of

    net = ReplayNet(setup.model().logits_after, setup.vocabulary, setup.stops)
    small = ReplayNet(_assistant_rows(setup, scope.drafter), setup.vocabulary, setup.stops)
    settings, law = settings_of(scope.policy), setup.law()
    called = scope.drafter or NOISY
    ways: list[tuple[str, Any, dict[str, Any], Claim]] = [
        ("plain", None, {}, "lossless"),
        (f"assistant_model × {called}", small, {}, "lossless"),
        (f"assistant_ensemble_weight=0.5 × {called}", small, {"assistant_ensemble_weight": 0.5}, "lossy"),
    ]
    samplers = [
        (name, OnOneThread(TransformersSampler(net, setup.prompt, helper, **settings, **more)), claim)
        for name, helper, more, claim in ways
    ]
    found = [law_case(Claimed(name, made, law, claim, "transformers")) for name, made, claim in samplers]
    return [_few(case, _SLOW) if most is None else at_most(case, most) for case in found]


def _assistant_rows(setup: Setup, drafter: Any) -> Callable[[Sequence[Words]], Tensor]:
    """Return the logits of the assistant: the target's with noise, or those of the requested model."""
    if drafter is None:
        return setup.model(Bent(setup.rows, noise)).logits_after
    made = setup.drafter(drafter, named_rules("speculative")[0].rule)
    model: Any = DrafterTraits(made).model
    if model is None:
        raise MismatchError(f"an assistant model must be a model, and drafter {drafter!r} has none; use early_exit")
    rows: Callable[[Sequence[Words]], Tensor] = model.logits_after
    return rows
