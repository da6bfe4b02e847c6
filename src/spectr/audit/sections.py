"""Which cases an audit has: of this package on a real model, of transformers, and of anybody's sampler."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from spectr.audit.equality import RealTexts, batch_case, greedy_case, rows_finding, seed_case
from spectr.audit.exact import LanguageModel
from spectr.audit.laws import Claimed, law_case
from spectr.audit.pathology import limit_case, pathological_cases
from spectr.audit.proofs import Named, distinct_rules, named_rules
from spectr.audit.replay import Bent, TreeRows, Words
from spectr.audit.report import Case, Claim, Finding, Level
from spectr.audit.samplers import EngineSampler, FunctionSampler, OnOneThread, Sampler, policy_laws
from spectr.audit.stage import NOISY, Stage, noise, real_stage
from spectr.audit.texts import TextLaw
from spectr.errors import ArgumentError, MismatchError
from spectr.policy import Policy
from spectr.transport.laws import check_law

if TYPE_CHECKING:
    from spectr.lm import LM

__all__ = [
    "Asked", "direct_cases", "function_law", "model_cases", "model_law", "sampler_case", "stage_of",
    "transformers_cases",
]  # fmt: skip

_DRAFTERS = ("lookup", "ngram", "early_exit", "random")
_GREEDY = ("race", "optimal", "block")  # on the model itself, where each takes seconds
_PATHOLOGICAL = ("race", "match", "optimal", "path_block", "block", "traversal")
_REAL = (
    ("race", "early_exit", 20_000),
    ("optimal", "early_exit", 20_000),
    ("kseq", "ngram", 5_000),
    ("match", "lookup", 5_000),
)
"""Real drafters, and most samples: those without a model work on the host."""
_OTHER = Policy(0.7, top_p=0.9, repetition_penalty=1.3)
_TOKENS = 12  # of a text compared on the real model
_SLOW = 5_000  # samples of a sampler that gives texts one by one


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a model is audited."""

    prompts: Sequence[Sequence[int]]  # the first is sampled from, all are compared on
    policy: Policy = field(default_factory=Policy)
    rules: str | Sequence[Named] | None = None  # a name, or several rules; None: every rule
    drafter: Any = None  # None: the noisy one for laws, several for comparisons
    vocabulary: int = 32  # likeliest tokens that laws are replayed on

    def __post_init__(self) -> None:
        if not self.prompts or not all(self.prompts):
            raise ArgumentError("an audit needs a prompt of at least one token")

    @property
    def named(self) -> list[Named]:
        """The rules, each under one name."""
        if self.rules is not None:
            return named_rules(self.rules) if isinstance(self.rules, str) else list(self.rules)
        return distinct_rules()


def _claim(named: Named) -> Claim:
    return "lossless" if named.claims else "lossy"


def _law(stage: Stage, named: Named, drafter: Any, more: str = "") -> Case:
    """Samples of one rule with one drafter."""
    name = f"{named.name} × {drafter}{more}"
    return law_case(Claimed(name, stage.sampler(drafter, named.rule), stage.law(), _claim(named)))


def _at_most(case: Case, samples: int) -> Case:
    """With no more samples than that: for what takes long."""

    def run(level: Level) -> Sequence[Finding]:
        return case.run(level.at_most(samples))

    return replace(case, run=run)


def _few(case: Case, samples: int) -> Case:
    """With so many samples, unless it was said how many."""

    def run(level: Level) -> Sequence[Finding]:
        return case.run(level if level.samples else level.at_most(samples))

    return replace(case, run=run)


def _laws(stage: Stage, asked: Asked) -> list[Case]:
    """Every rule with one drafter; and where none was asked for, some with real ones and under another policy."""
    found = [_law(stage, named, asked.drafter or NOISY) for named in asked.named]
    if asked.drafter is None and asked.rules is None:
        by_name = {named.rule.card.name: named for named in asked.named}
        found += [_at_most(_law(stage, by_name[rule], drafter), most) for rule, drafter, most in _REAL]
        found += [_law(stage.under(_OTHER), by_name[rule], NOISY, ", filtered") for rule in ("race", "path_block")]
    return found


def _comparisons(lm: "LM", stage: Stage, asked: Asked) -> list[Case]:
    texts = RealTexts(lm.opened, asked.prompts, _TOKENS, asked.policy)
    drafters = _DRAFTERS if asked.drafter is None else (asked.drafter,)
    lossless = [named.rule for named in asked.named if named.rule.card.lossless]
    race = [rule for rule in lossless if rule.card.name == "race"]
    found = [texts.race_case(drafter) for drafter in drafters if race]
    found += [texts.race_case("early_exit", capture=True)] if race and asked.drafter is None else []
    real = [rule for rule in lossless if asked.rules is not None or rule.card.name in _GREEDY]
    found += [texts.greedy_case(asked.drafter or ("lookup" if rule in race else "early_exit"), rule) for rule in real]
    for rule in lossless:
        found += [make(stage, NOISY, rule) for make in (greedy_case, seed_case, batch_case)]
    return found


def _rows_case(lm: "LM", prompts: Sequence[Sequence[int]]) -> Case:
    from spectr.models.baselines import plain_rows

    def run(_: Level) -> Sequence[Finding]:
        return [rows_finding(lm.opened.target, lambda texts: plain_rows(lm.opened, texts), prompts, "lossless")]

    return Case("rows", "tree rows", run)


def stage_of(lm: "LM", asked: Asked) -> Stage:
    """The model with its rows to replay, for several kinds of cases at once."""
    return real_stage(lm.opened, asked.prompts[0], asked.policy, asked.vocabulary)


def model_cases(lm: "LM", asked: Asked, stage: Stage | None = None) -> list[Case]:
    """This package on a real model: rows, laws, equal texts, and drafts of the worst kind."""
    stage = stage or stage_of(lm, asked)
    bad = [n.rule for n in asked.named if n.rule.card.lossless and (asked.rules or n.rule.card.name in _PATHOLOGICAL)]
    return [
        _rows_case(lm, asked.prompts),
        *_laws(stage, asked),
        *_comparisons(lm, stage, asked),
        *pathological_cases(stage, bad),
        limit_case(lm.opened.target, asked.prompts[0], lm.opened.stops),
    ]


def model_law(lm: "LM", prompt: Sequence[int], policy: Policy, length: int) -> TextLaw:
    """The law of short texts of a real model, over all of its tokens."""
    if lm.opened.start is not None:
        raise MismatchError("an audit needs a decoder-only model; this one has an encoder")
    target = lm.opened.target
    rows = TreeRows(target, torch.arange(target.vocabulary), {tuple(prompt): prompt})
    return TextLaw(policy_laws(rows, prompt, policy, lm.opened.stops), length, lm.opened.stops)


def function_law(target: LanguageModel, prompt: Sequence[int], length: int) -> TextLaw:
    """The law of short texts of a function from tokens, prompt included, to the probabilities of the next one."""
    start = tuple(prompt)

    def laws(texts: Sequence[Words]) -> Tensor:
        found = [torch.as_tensor(target(start + text), dtype=torch.float64) for text in texts]
        for law in found:
            check_law("target", law)
        return torch.stack(found)

    return TextLaw(laws, length)


def direct_cases(lm: "LM", asked: Asked, length: int) -> list[Case]:
    """The engine as it is, nothing replayed: for drafters that look into the target. Far fewer samples."""
    law = model_law(lm, asked.prompts[0], asked.policy, length)
    sampler = EngineSampler(lm.engine, asked.prompts[0], asked.policy)
    name = f"{lm.engine.rule.card.name} × {lm.engine.drafter.name}, not replayed"
    claimed = Claimed(name, sampler, law, "lossless")
    return [_rows_case(lm, asked.prompts), _few(law_case(claimed), 2_000)]


def sampler_case(name: str, sample: Sampler | Callable[[list[int], int], Sequence[int]], law: TextLaw,
                 prompt: Sequence[int] | None = None) -> Case:  # fmt: skip
    """Anybody's sampler against a law: with a `prompt`, a function (prompt, seed) → tokens; without, a `Sampler`."""
    made: Any = sample if prompt is None else FunctionSampler(sample, prompt, law.stops)  # type: ignore[arg-type]
    return law_case(Claimed(name, made, law))


def transformers_cases(stage: Stage, asked: Asked, most: int | None = None) -> list[Case]:
    """transformers' own generation loop on replayed rows: plain, with an assistant model, and with the mode of it that
    trades the law for speed, which says so. It gives texts one by one: `most` bounds how many."""
    from spectr.models.baselines import ReplayNet, TransformersSampler, settings_of

    net = ReplayNet(stage.model().logits_after, stage.vocabulary, stage.stops)
    small = ReplayNet(_assistant_rows(stage, asked.drafter), stage.vocabulary, stage.stops)
    settings, law = settings_of(asked.policy), stage.law()
    called = asked.drafter or NOISY
    ways: list[tuple[str, Any, dict[str, Any], Claim]] = [
        ("plain", None, {}, "lossless"),
        (f"assistant_model × {called}", small, {}, "lossless"),
        (f"assistant_ensemble_weight=0.5 × {called}", small, {"assistant_ensemble_weight": 0.5}, "lossy"),
    ]
    samplers = [
        (name, OnOneThread(TransformersSampler(net, stage.prompt, helper, **settings, **more)), claim)
        for name, helper, more, claim in ways
    ]
    found = [law_case(Claimed(name, made, law, claim, "transformers")) for name, made, claim in samplers]
    return [_few(case, _SLOW) if most is None else _at_most(case, most) for case in found]


def _assistant_rows(stage: Stage, drafter: Any) -> Callable[[Sequence[Words]], Tensor]:
    """Rows of the assistant: the target's with noise, or those of the model that was asked for."""
    if drafter is None:
        return stage.model(Bent(stage.rows, noise)).logits_after
    made = stage.drafter(drafter, named_rules("speculative")[0].rule)
    model = getattr(made, "model", None)
    if model is None:
        raise MismatchError(f"an assistant model must be a model, and drafter {drafter!r} has none; use early_exit")
    rows: Callable[[Sequence[Words]], Tensor] = model.logits_after
    return rows
