"""Audits of this package on a small real model: every kind of case passes, and fails if something is wrong."""

from dataclasses import replace
from typing import Any

import pytest
import torch

import spectr
from spectr.audit import Level, Scope, audit_model, examine
from spectr.audit.drafters import bent_drafters, scripted_drafters
from spectr.audit.equality import Pair, RealTexts, Scores, compare, greedy_case, rows_finding, texts_of
from spectr.audit.laws import Claimed, law_finding
from spectr.audit.loop import deep_cases, text_policies, wide_cases
from spectr.audit.pathology import adds_up, limit_case, pathological_cases
from spectr.audit.proofs import NamedRule, distinct_rules, named_rules
from spectr.audit.sections import direct_cases, model_cases
from spectr.audit.setup import NOISY, Setup, plan_for, real_setup, toy_setup
from spectr.draft import Plan, drafter
from spectr.engine import Engine, Request
from spectr.errors import ArgumentError, MismatchError
from spectr.models.baselines import plain_rows
from spectr.models.head import head_of
from spectr.models.target import Target
from spectr.policy import History, Policy
from spectr.types import Draft
from spectr.verify import RULES, rule

PROMPTS = [[3, 4, 5, 3, 4, 5, 3], [7, 8], [9, 9, 9, 9]]
LEVEL = Level(samples=1_500)


@pytest.fixture(scope="module")
def setup(lm: spectr.LM) -> Setup:
    return real_setup(lm.opened, PROMPTS[0], Policy(), vocabulary=12)


@pytest.mark.parametrize("name", ["race", pytest.param("block", marks=pytest.mark.slow)])
def test_one_rule_of_a_model(lm: spectr.LM, name: str) -> None:
    report = audit_model(
        lm, Scope(PROMPTS, rules=named_rules(name), drafter="early_exit", vocabulary=8), Level(samples=500)
    )
    assert report.holds, [f for f in report.findings if not f.as_claimed]
    sections = {finding.section for finding in report.findings}
    assert sections == {"rows", "law", "equal", "drafts"}
    tests = [f for f in report.findings if "tests" in f.details]
    assert report.level.tests == 4 * len(tests)
    assert all(test["p_at_most"] > report.level.each for f in tests for test in f.details["tests"].values())


def test_every_rule_is_a_case_of_a_model(lm: spectr.LM) -> None:
    cases = {case.name: case for case in model_cases(lm, Scope(PROMPTS, vocabulary=8))}
    for name in RULES:
        assert name in ("spectr", "walk") or any(case.startswith((f"{name} × ", f"{name}(")) for case in cases)
    assert "match × lookup" in cases
    assert {"race × noisy, penalties", "kseq × noisy, bans", "optimal × noisy, hooks"} <= cases.keys()
    assert "kseq × noisy, 8 drafts of 5" in cases
    assert "kseq × noisy, 1,100 tokens" in cases
    found = cases["pareto(budget=0.05) × noisy"].run(replace(LEVEL, samples=8_000, tests=100))[0]
    assert (found.claim, found.status) == ("lossy", "LOSSY")


@pytest.mark.parametrize(("name", "called"), [("race", "penalties"), ("kseq", "bans"), ("traversal", "filters"),
                                              pytest.param("block", "hooks", marks=pytest.mark.slow)])  # fmt: skip
def test_the_law_of_a_rule_under_a_policy_that_depends_on_the_text(setup: Setup, name: str, called: str) -> None:
    shaped = setup.under(text_policies(setup)[called])
    found = law_finding(Claimed(name, shaped.sampler(NOISY, rule(name)), shaped.law()), LEVEL)
    assert found.holds, found.measured
    assert shaped.engine(NOISY, rule(name)).drafter.siblings == plan_for(rule(name).card).siblings


def test_many_drafts_and_many_tokens(setup: Setup) -> None:
    """Eight drafts of five tokens are used, and 1,100 tokens exercise the draws for large vocabularies."""
    rules = [named for named in distinct_rules() if named.rule.card.name == "kseq"]
    for case in (*deep_cases(setup, rules, 1_000), *wide_cases(rules, 300)):
        (found,) = case.run(LEVEL)
        assert found.holds, found.measured
    deep = replace(setup, drafts=8, length=5)
    assert deep.drafter(NOISY, rule("kseq")).nodes == 41


def test_noisy_drafts_are_accepted_and_rejected(setup: Setup) -> None:
    """An audit in which everything or nothing is accepted would test only half of a rule."""
    sampler = setup.sampler(NOISY, rule("optimal"))
    results = sampler.engine.generate(setup.requests(30, range(40)))
    steps = sum(r.stats.steps for r in results)
    assert 0.2 < sum(r.stats.corrections for r in results) / steps < 0.9
    assert sum(r.stats.accepted for r in results) > 0.5 * steps


def test_a_direct_audit_of_a_trained_drafter(lm: spectr.LM) -> None:
    net = lm.opened.target.model
    plan = Plan("iid", tree=(2, 1))
    made = drafter("feature", head=Target(head_of(net, 1)), target=lm.opened.target, plan=plan)
    trained = spectr.LM(Engine(lm.opened.target, made, rule("optimal"), lm.opened.stops), lm.opened)
    report = examine(direct_cases(trained, Scope(PROMPTS), 2), Level(samples=1_000))
    assert report.holds, report.findings
    assert "optimal × feature, not replayed" in [finding.case for finding in report.findings]
    with pytest.raises(MismatchError, match="hidden states, which a replay lacks; audit it with --direct"):
        real_setup(lm.opened, PROMPTS[0], Policy(), 8).drafter(made, rule("optimal"))


def test_rows_of_trees_and_a_mask_that_is_wrong(lm: spectr.LM) -> None:
    target = lm.opened.target

    class Leaky(Target):
        def score(self, session: Any, tokens: torch.Tensor, ancestors: torch.Tensor, *rest: Any, **more: Any) -> Any:
            return super().score(session, tokens, torch.ones_like(ancestors).tril(), *rest, **more)

    for model, holds in ((target, True), (Leaky(target.model), False)):
        found = rows_finding(model, lambda texts: plain_rows(lm.opened, texts), PROMPTS, "lossless")
        assert found.holds == holds


def test_near_ties_are_distinguished_from_faults(lm: spectr.LM) -> None:
    """A near-tie is reported as rounding; any other difference is a fault."""
    requests = [Request(prompt, 5, 4) for prompt in PROMPTS]
    texts = texts_of(Engine(lm.opened.target, drafter("none"), rule("race")), requests)
    scores = Scores(lm.opened.target, noisy=True)
    assert compare(requests, texts, texts, scores).holds
    other = [[(text[0] + 1) % 24, *text[1:]] for text in texts]
    parted = compare(requests, texts, other, scores)
    assert not parted.holds
    assert "3 part" in parted.measured("here")
    assert all(part["position"] == 0 and part["gap"] > 1e-3 for part in parted.partings)
    near = replace(scores, noisy=False)
    flat = [replace(request, policy=Policy(1e6)) for request in requests]  # so flat that all tokens are tied
    assert "3 part, 3 at ties of rounding" in compare(flat, texts, other, near).measured("here")
    assert not compare(flat, texts, [text[:-1] for text in texts], near).holds  # a truncated text is not a tie


def test_real_texts(lm: spectr.LM) -> None:
    texts = RealTexts(lm.opened, PROMPTS, 8, Policy(0.8))
    cases = [texts.race_case("lookup"), texts.race_case("early_exit"), texts.greedy_case("early_exit", rule("block"))]
    assert examine(cases).holds
    # compared with another seed's texts, the same case must fail
    other = RealTexts(lm.opened, PROMPTS, 8, Policy(0.8))
    other.requests = [replace(request, seed=request.seed + 1) for request in other.requests]
    other.__dict__["_plain"] = texts._plain
    assert not examine([other.race_case("lookup")]).holds


def test_greedy_and_what_is_not() -> None:
    setup = toy_setup()
    assert examine([greedy_case(setup, NOISY, rule("traversal"))]).holds
    requests = [Request(setup.prompt, 0, 5, Policy(0))]
    pair = Pair("p", "w", requests, lambda: [[0] * 5], lambda: setup.engine("none", rule("race")))
    assert not examine([pair.case()]).holds


@pytest.mark.parametrize(
    "names", [["race", "block"], pytest.param(["race", "block", "hybrid"], marks=pytest.mark.slow)]
)
def test_pathological_drafts(setup: Setup, names: list[str]) -> None:
    cases = pathological_cases(setup, [rule(name) for name in names])
    assert len(cases) == 8 + len(names) * 4
    report = examine(cases, Level(samples=300))
    assert report.holds, [f for f in report.findings if not f.holds]
    tokens = {f.case: f.measured for f in report.findings}
    assert "; 1.00 tokens a call" in tokens["block × the opposite law"]
    assert "1.00 tokens a call" not in tokens["block × always the target's law"]


def test_a_crash_and_a_loss_are_findings(setup: Setup) -> None:
    class Crashing(type(rule("race"))):  # type: ignore[misc]
        def verdict(self, *_: Any) -> Any:
            raise RuntimeError("no verdict today")

    cases = pathological_cases(setup, [Crashing()])
    report = examine(cases[:1], Level(samples=10))
    assert not report.holds
    assert "raised RuntimeError: no verdict today" in report.findings[0].measured
    result = setup.engine(NOISY, rule("race")).generate([Request(setup.prompt, 1, 6)])[0]
    request = Request(setup.prompt, 1, 6)
    assert adds_up(result, request, setup.stops)
    assert not adds_up(replace(result, tokens=result.tokens[:-1]), request, setup.stops)
    assert not adds_up(result, replace(request, max_new_tokens=7), setup.stops)
    assert not adds_up(result, request, frozenset(result.tokens[:1]))


def test_the_context_limit(lm: spectr.LM) -> None:
    before = lm.opened.target.context
    report = examine([limit_case(lm.opened.target, PROMPTS[0], lm.opened.stops)])
    assert report.holds, report.findings
    assert report.findings[0].details == {"context": 10, "drafters": 8, "equal": 8, "refused": True}
    assert lm.opened.target.context == before


def test_scripted_drafters_draft_what_they_say(setup: Setup) -> None:
    made = {each.name: each for each in scripted_drafters(12, frozenset({2}))}
    root = torch.tensor([3])
    found: dict[str, Draft] = {}
    for name, each in made.items():
        engine = Engine(setup.model(), each, rule("match"))
        drafting = engine.drafter.open(None)  # type: ignore[arg-type]
        scene = type("Scene", (), {"root": root, "texts": History.of([[1, 3]], 12)})()
        found[name] = drafting.propose(scene)
    assert found["every token"].tokens[0, 1:].tolist() == list(range(12))
    assert found["nothing"].tokens.shape == (1, 1)
    assert found["far beyond the end"].depth == 12
    assert int(found["all dead"].alive.sum()) == 1
    assert set(bent_drafters(setup, rule("kseq").card)) == {
        "always the target's law", "the opposite law", "all tokens alike", "a stop token alone"
    }  # fmt: skip


def test_bad_arguments_are_refused(lm: spectr.LM) -> None:
    with pytest.raises(ArgumentError, match="requires a prompt of at least one token"):
        Scope([[]])
    with pytest.raises(ArgumentError, match="alarms must lie between 0 and 1, got 0"):
        Level(alarms=0)
    with pytest.raises(ArgumentError, match="samples must be at least 1, got 0"):
        Level(samples=0)
    with pytest.raises(MismatchError, match="holds for siblings"):
        model_cases(lm, Scope(PROMPTS, rules=named_rules("recursive_wor"), drafter="lookup", vocabulary=8))
    assert NamedRule("x", rule("lenience")).claim == "lossy"
