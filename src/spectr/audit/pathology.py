"""Checks adversarial drafts, with which nothing may crash, be biased, or be lost.

The output distribution is tested as elsewhere. Nothing is lost if every text has the requested length or ends with a
stop token, and the engine's counts add up to it.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import partial

from spectr.audit.drafters import bent_drafters, scripted_drafters
from spectr.audit.equality import texts_of
from spectr.audit.laws import Claimed, law_finding
from spectr.audit.report import Case, Finding, Level
from spectr.audit.samplers import EngineSampler
from spectr.audit.setup import Setup
from spectr.audit.texts import TESTS
from spectr.draft import drafter as named_drafter
from spectr.engine import Engine, Request, Result
from spectr.errors import ArgumentError
from spectr.policy import Policy
from spectr.types import Drafter, TreeModel
from spectr.verify import Rule, rule

__all__ = ["adds_up", "limit_case", "pathological_cases"]

_SECTION = "drafts"
_SAMPLES = 4_000


def _guarded(name: str, run: Callable[[Level], Sequence[Finding]], level: Level) -> Sequence[Finding]:
    """Run a case, and report a crash as a finding."""
    try:
        return run(level)
    except Exception as error:  # any error of the audited rule is a finding
        return [Finding(_SECTION, name, holds=False, measured=f"raised {type(error).__name__}: {error}")]


def adds_up(result: Result, request: Request, stops: frozenset[int]) -> bool:
    """Return whether the text has the requested length or ends with its first stop token, and every token counts
    once."""
    tokens, stats = result.tokens, result.stats
    stopped = bool(tokens) and tokens[-1] in stops
    whole = len(tokens) == request.max_new_tokens or stopped
    once = not any(token in stops for token in tokens[:-1])
    right_reason = result.finish_reason == ("stop" if stopped else "length")
    ends = stats.corrections + stats.bonuses  # the last step may be cut before either
    counted = stats.emitted == len(tokens) == sum(len(step.tokens) for step in result.steps)
    return whole and once and right_reason and counted and ends <= stats.steps <= len(tokens) == stats.accepted + ends


def _nothing_lost(engine: Engine, setup: Setup) -> str | None:
    """Return a sentence about what was lost, or None."""
    requests = [Request(setup.prompt, seed, 1 + seed % 17, setup.policy) for seed in range(40)]
    for request, result in zip(requests, engine.generate(requests), strict=True):
        if not adds_up(result, request, setup.stops):
            return f"seed {request.seed}: {len(result.tokens)} of {request.max_new_tokens} tokens, {result.stats}"
    return None


@dataclass(frozen=True, slots=True)
class _Adversary:
    """An adversarial drafter with a rule."""

    name: str
    setup: Setup
    drafter: Drafter
    made: Rule

    def run(self, level: Level) -> Sequence[Finding]:
        """Test the output distribution, and that nothing is lost."""
        engine = Engine(self.setup.model(), self.drafter, self.made, self.setup.stops)
        sampler = EngineSampler(engine, self.setup.prompt, self.setup.policy)
        found = law_finding(Claimed(self.name, sampler, self.setup.law(), section=_SECTION), level.at_most(_SAMPLES))
        lost = _nothing_lost(engine, self.setup)
        if lost is not None:
            found = replace(found, holds=False, measured=f"lost: {lost}")
        return [found]

    def case(self) -> Case:
        """Return the check as a case."""
        return Case(_SECTION, self.name, partial(_guarded, self.name, self.run), tests=len(TESTS))


def _refuses(engine: Engine, request: Request) -> bool:
    try:
        texts_of(engine, [request])
    except ArgumentError:
        return True
    return False


def _at_the_limit(target: TreeModel, prompt: Sequence[int], stops: frozenset[int], _: Level) -> Sequence[Finding]:
    """Generate after a prompt that leaves room for three tokens, with drafts that are longer; a request for four tokens
    must be refused."""
    name, room = "prompt at the context limit", 3
    request = Request(prompt, 1, room)
    expected = texts_of(Engine(target, named_drafter("none"), rule("race"), stops), [request])
    drafters = list(scripted_drafters(target.vocabulary, stops))
    found = [texts_of(Engine(target, drafter, rule("race"), stops), [request]) for drafter in drafters]
    refused = _refuses(Engine(target, drafters[0], rule("race"), stops), replace(request, max_new_tokens=room + 1))
    equal = sum(texts == expected for texts in found)
    measured = (
        f"{len(prompt)} tokens of {target.context}: {equal} of {len(found)} drafters give the plain text, one token "
        f"more is {'refused' if refused else 'NOT refused'}"
    )
    details = {"context": target.context, "drafters": len(found), "equal": equal, "refused": refused}
    return [Finding(_SECTION, name, equal == len(found) and refused, measured, details)]


def limit_case(target: TreeModel, prompt: Sequence[int], stops: frozenset[int]) -> Case:
    """Return the case of a context that the prompt almost fills."""
    small = copy(target)
    small.context = len(prompt) + 3
    name = "prompt at the context limit"
    return Case(_SECTION, name, partial(_guarded, name, partial(_at_the_limit, small, prompt, stops)))


def pathological_cases(setup: Setup, rules: Sequence[Rule]) -> list[Case]:
    """Return cases of scripted drafters with the rules that need no draft laws, and of bent ones with all rules.

    The policy excludes some tokens, so that many drafts can never be accepted."""
    narrow = setup.under(Policy(0.9, top_k=max(2, setup.vocabulary // 4)))
    cases = []
    for made in rules:
        name = made.card.name
        if not made.card.needs_laws:
            scripted = scripted_drafters(narrow.vocabulary, narrow.stops)
            cases += [_Adversary(f"{name} × {d.name}", narrow, d, made) for d in scripted]
        bent = bent_drafters(narrow, made.card)
        cases += [_Adversary(f"{name} × {called}", narrow, drafter, made) for called, drafter in bent.items()]
    return [adversary.case() for adversary in cases]
