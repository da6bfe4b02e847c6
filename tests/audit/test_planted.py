"""Every planted fault is detected, and correct samplers pass."""

from dataclasses import replace

import pytest

from spectr.audit import Level, audit_planted, examine
from spectr.audit.faults import exact_faults
from spectr.audit.noise import BORDERS
from spectr.audit.planted import planted_cases
from spectr.audit.policy_faults import policy_faults
from spectr.audit.proofs import LOSSY, NamedRule, distinct_rules, enumerations, exact_cases, named_rules
from spectr.verify import rule


@pytest.mark.parametrize("fault", list(exact_faults()), ids=lambda fault: fault.name)
def test_a_fault_that_is_enumerated(fault: object) -> None:
    (found,) = fault.run(Level())  # type: ignore[attr-defined]
    assert found.details["total_variation"] > 1e-3
    assert (found.status, found.passes) == ("seen", True)


def test_a_fault_that_is_no_fault_would_be_called_so() -> None:
    """Without a fault the same harness reports NOT SEEN, and the report fails."""
    fault = next(iter(exact_faults()))
    (found,) = type(fault)("nothing", rule("speculative"), (1,)).run(Level())
    assert (found.status, found.passes) == ("NOT SEEN", False)


RULES_WITH_FAULTS = [
    "target's law after a rejection at depth 3, kseq",
    "residual ** 1.15 below the root, optimal",
    "at most four drafts counted, 3 tokens",
]


@pytest.mark.parametrize("name", RULES_WITH_FAULTS)
def test_the_exact_audit_of_a_rule_with_a_fault_fails(name: str) -> None:
    """The enumerated trees detect faults that are deep, wide, or in the shape of a residual."""
    (fault,) = [fault for fault in exact_faults() if fault.name == name]
    trees = list(enumerations(fault.rule.card, "iid"))
    seen = [tree for tree in trees if (tree.widths, tree.vocabulary) == (fault.widths, fault.vocabulary)]
    (bias, _) = replace(seen[0], corners=("plain",)).biases(fault.rule, "iid")["plain"]
    assert bias > 1e-4


@pytest.mark.slow
def test_faults_in_the_loop_and_in_functions() -> None:
    cases = [case for case in planted_cases(0.06) if case.tests or "batch" in case.name or "loop" in case.name]
    sampled = [case for case in cases if "that repeat after" not in case.name]
    assert len(sampled) >= 10
    report = examine(sampled, Level(bias=0.06))
    found = {finding.case: finding for finding in report.findings}
    assert found["a function that is right"].holds
    assert report.holds, report.findings
    assert all(finding.status in ("seen", "holds") for finding in report.findings)


STEPS = ("leak from a sibling, steps", "counts the prompt, steps", "committed text only, steps")


@pytest.mark.parametrize("case", [c for c in policy_faults() if "trees" in c.name or c.name.endswith(STEPS)],
                         ids=lambda case: case.name)  # fmt: skip
def test_a_fault_in_the_policy(case: object) -> None:
    (found,) = case.run(Level())  # type: ignore[attr-defined]
    assert found.status == "seen", found.measured


def test_coins_and_noise_that_repeat() -> None:
    """Repetitions after 2^14, 2^16 and 2^20 tokens are detected, and keys whose words are added."""
    cases = [case for case in planted_cases() if "that repeat after" in case.name or "sum of two words" in case.name]
    assert len(cases) == 2 * len(BORDERS) + 1
    assert [case.run(Level(tests=100))[0].status for case in cases] == ["seen"] * len(cases)


def test_a_mask_that_shows_siblings() -> None:
    cases = [case for case in planted_cases() if "mask" in case.name]
    assert [case.run(Level())[0].status for case in cases] == ["seen", "seen"]


def test_the_bias_of_planted_functions_is_that_of_the_level() -> None:
    assert any(case.name == "a function off by 0.05" for case in planted_cases(0.05))
    assert audit_planted.__doc__


@pytest.mark.parametrize("name", LOSSY)
def test_a_lossy_rule_fails_if_it_is_asked(name: str) -> None:
    """A lossy rule within its stated bound fails if it is requested by name, and the report describes the bias."""
    (case,) = [case for case in exact_cases(named_rules(name, LOSSY[name])) if "fixed" in case.name]
    report = examine([case])
    (found,) = report.findings
    assert not report.holds
    assert (found.status, found.as_claimed, found.passes) == ("LOSSY", True, False)
    assert found.details["total_variation"]["1"] > 0.01
    assert found.details["first_token"] <= found.details["stated_bias"] + 1e-12
    assert f"{found.details['stated_bias']:g} per token is stated" in found.measured
    said = "rules that state a bias differ from the target's law in 1 of 1 cases, by no more than they state"
    assert report.summary == said


def test_a_lossy_rule_that_breaks_its_bound_fails() -> None:
    broken = rule("pareto", budget=0.05)
    broken.bias_bound = 0.001
    (case,) = [case for case in exact_cases([NamedRule("broken", broken)]) if "fixed" in case.name]
    report = examine([case])
    assert not report.holds
    assert report.findings[0].status == "FAILS"
    assert report.summary.endswith("1 of 1 cases, in 1 by more than they state")


def test_a_lossy_rule_without_slack_passes() -> None:
    (case,) = [case for case in exact_cases(named_rules("pareto", {"budget": 0})) if "fixed" in case.name]
    assert examine([case]).holds


def test_every_rule_and_sibling_law_is_a_case() -> None:
    """tests/laws shows that they hold; this test shows that none is missing, and what lossy rules claim."""
    cases = exact_cases()
    names = {case.name for case in cases}
    for named in distinct_rules():
        assert all(f"{named.name} × {s}" in names for s in named.rule.card.siblings if s != "race")
    (lossy,) = [case.run(Level())[0] for case in cases if case.name == "pareto(budget=0.05) × fixed"]
    assert (lossy.claim, lossy.status, lossy.passes) == ("lossy", "LOSSY", True)
