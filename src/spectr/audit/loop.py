"""Checks the generation loop on a small random model against texts and distributions that are computed without it.

Texts: with the race a text is a function of the seed, so a plain Python loop over the reference policy and the noise
must give the same tokens as the engine with any drafter, any policy and any length of prompt. Distributions: samples of
the engine under policies that depend on the text, with many drafts, and with a large vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spectr.audit.equality import Pair, Scores, batch_case, greedy_case, seed_case
from spectr.audit.laws import Claimed, law_case
from spectr.audit.proofs import NamedRule
from spectr.audit.reference_policy import ReferencePolicy
from spectr.audit.replay import RowsAfter
from spectr.audit.report import Case, Claim, Finding, Level
from spectr.audit.setup import NOISY, Setup, toy_setup, wide_setup
from spectr.coins import gumbel
from spectr.draft import Plan
from spectr.draft import drafter as named_drafter
from spectr.draft.traits import DrafterTraits
from spectr.engine import Request
from spectr.policy import Policy
from spectr.verify import Rule, rule

__all__ = [
    "at_most", "deep_cases", "in_section", "law_of_rule", "loop_cases", "plain_texts", "policy_law_cases",
    "text_policies", "texts_case", "wide_cases",
]  # fmt: skip

_FAR = 17_000  # tokens of a long prompt, more than 2^14


def plain_texts(setup: Setup, requests: Sequence[Request]) -> list[list[int]]:
    """Return the race's texts by its definition: at each position the largest log-probability plus noise."""
    rows = setup.model()
    return [_plain_text(rows.logits_after, setup, request) for request in requests]


def _plain_text(rows: RowsAfter, setup: Setup, request: Request) -> list[int]:
    reference = ReferencePolicy(request.policy, setup.stops, request.max_new_tokens)
    prompt, text = tuple(request.prompt), list[int]()
    while len(text) < request.max_new_tokens and not (text and text[-1] in reference.stops):
        law = torch.tensor(reference.law(rows([(*prompt, *text)])[0].tolist(), prompt, text), dtype=torch.float64)
        position = torch.tensor([[len(prompt) + len(text)]])
        noise = gumbel(torch.tensor([request.seed]), position, len(law))[0, 0]
        text.append(int((law.log() + noise).argmax()))
    return text


def _drafters(setup: Setup) -> dict[str, Any]:
    """Return drafters of every kind, including one that prunes its tree by the noise."""
    noisy = setup.drafter(NOISY, rule("race"))
    model = DrafterTraits(noisy).model
    pruned = named_drafter("model", model=model, plan=Plan("race", drafts=4, length=3, nodes=9))
    ranked = named_drafter("model", model=model, plan=Plan("fixed", drafts=3, length=3, nodes=7))
    right = named_drafter("model", model=setup.model(), plan=Plan("race", tree=(1,) * 6))
    drafters: dict[str, Any] = {"none": "none", "noisy": noisy, "pruned": pruned, "pruned by rank": ranked}
    drafters |= {"the target itself, 6 deep": right}
    return drafters | {name: name for name in ("lookup", "ngram", "random")}


def texts_case(setup: Setup, called: str, drafter: Any, claim: Claim = "lossless") -> Case:
    """Compare the race's texts in one batch of different lengths with plain loops."""
    rows = 16 if len(setup.prompt) < _FAR else 4
    requests = [Request(setup.prompt, 5 * seed - 40, 4 + seed % 9, setup.policy) for seed in range(rows)]
    scores = Scores(setup.model(), noisy=True, stops=setup.stops)
    expected, engine = partial(plain_texts, setup, requests), partial(setup.engine, drafter, rule("race"))
    pair = Pair(called, "against plain loops", requests, expected, engine, scores, claim)
    return in_section(pair.case(), "loop", called)


def in_section(case: Case, section: str, name: str) -> Case:
    """Return the case in another section, under another name."""

    def run(level: Level) -> Sequence[Finding]:
        return [replace(finding, section=section, case=name) for finding in case.run(level)]

    return replace(case, section=section, name=name, run=run)


@dataclass(frozen=True, slots=True)
class _Hooks:
    """A mask hook and a processor for a vocabulary."""

    vocabulary: int

    def allowed(self, text: list[int]) -> list[int]:
        """Allow four of five tokens, which depend on the length of the text."""
        return [token for token in range(self.vocabulary) if (token + len(text)) % 5]

    def processor(self, ids: Tensor, scores: Tensor) -> Tensor:
        """Make the last token less likely, and the next id more likely."""
        tokens, last = torch.arange(scores.shape[-1]), ids[:, -1:]
        return scores - 0.8 * (tokens == last).to(scores.dtype) + 0.5 * (tokens == last + 1).to(scores.dtype)


def text_policies(setup: Setup) -> dict[str, Policy]:
    """Return policies that depend on the text; the tokens they name are the model's likeliest."""
    plain = setup.under(Policy()).law()
    (first, _), (second, _), (third, _) = plain.likeliest(3, 1)
    pairs = [list(text) for text, _ in plain.likeliest(3, 2) if len(text) == 2]
    hooks = _Hooks(setup.vocabulary)
    return {
        "penalties": Policy(0.9, repetition_penalty=1.2, presence_penalty=0.7, frequency_penalty=0.3),
        "bans": Policy(
            top_p=0.97, bad_words=[*pairs, list(second)], logit_bias={third[0]: 0.7}, min_new_tokens=3,
            no_repeat_ngram_size=2, begin_suppress_tokens=[third[0]],
        ),
        "hooks": Policy(0.9, top_k=max(4, setup.vocabulary - 2), allowed=hooks.allowed, processors=[hooks.processor]),
        "filters": Policy(0.8, top_p=0.9, min_p=0.02, typical_p=0.95, repetition_penalty=1.3,
                          logit_bias={first[0]: -0.5}),
    }  # fmt: skip


def law_of_rule(setup: Setup, named: NamedRule, drafter: Any, more: str = "", length: int = 5) -> Case:
    """Return the case that samples one rule with one drafter."""
    name, sampler = f"{named.name} × {drafter}{more}", setup.sampler(drafter, named.rule)
    return law_case(Claimed(name, sampler, setup.law(length), named.claim, by_name=named.by_name))


def at_most(case: Case, samples: int) -> Case:
    """Limit a case to at most `samples` samples."""

    def run(level: Level) -> Sequence[Finding]:
        return case.run(level.at_most(samples))

    return replace(case, run=run)


def policy_law_cases(setup: Setup, rules: Sequence[NamedRule], samples: int) -> list[Case]:
    """Return a case for every rule, each under one of the policies that depend on the text."""
    policies = list(text_policies(setup).items())
    chosen = [(named, *policies[at % len(policies)]) for at, named in enumerate(rules)]
    found = [law_of_rule(setup.under(policy), named, NOISY, f", {called}") for named, called, policy in chosen]
    return [at_most(case, samples) for case in found]


def deep_cases(setup: Setup, rules: Sequence[NamedRule], samples: int) -> list[Case]:
    """Return cases with eight drafts of five tokens, and texts that are longer than a step."""
    deep = replace(setup, drafts=8, length=5)
    return [at_most(law_of_rule(deep, named, NOISY, ", 8 drafts of 5", 8), samples) for named in rules]


def wide_cases(rules: Sequence[NamedRule], samples: int) -> list[Case]:
    """Return cases on a random model with more than 1,024 tokens."""
    wide = wide_setup()
    called = f", {wide.vocabulary:,} tokens"
    return [at_most(law_of_rule(wide, named, NOISY, called), samples) for named in rules]


def _text_cases(setup: Setup) -> list[Case]:
    """Return cases of the race's texts with every drafter, under every policy, and after a long prompt."""
    plain = [texts_case(setup, f"race × {called}", made) for called, made in _drafters(setup).items()]
    policies = {"greedy": Policy(0), **text_policies(setup)}
    shaped = [
        texts_case(setup.under(policy), f"race × {drafter}, {called}", _drafters(setup)[drafter])
        for called, policy in policies.items()
        for drafter in ("noisy", "pruned")
    ]
    far = replace(setup, prompt=(setup.prompt * _FAR)[-_FAR:])
    return [*plain, *shaped, texts_case(far, f"race × noisy, after {_FAR:,} tokens", far.drafter(NOISY, rule("race")))]


def loop_cases(rules: Sequence[Rule]) -> list[Case]:
    """Return the cases of the loop that need no real model: texts of the race, and for every rule texts that are
    greedy, in another order, and alone."""
    setup = toy_setup()
    compared = [make(setup, NOISY, made) for made in rules for make in (greedy_case, seed_case, batch_case)]
    return [*_text_cases(setup), *(in_section(case, "loop", case.name) for case in compared)]
