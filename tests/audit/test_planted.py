"""Every planted fault is seen, and the right things beside them are not called wrong."""

import pytest

from spectr.audit import Level, audit_exact, audit_planted, examine
from spectr.audit.faults import exact_faults
from spectr.audit.planted import planted_cases
from spectr.audit.proofs import LOSSY, exact_cases, named_rules
from spectr.verify import RULES, rule


@pytest.mark.parametrize("fault", list(exact_faults()), ids=lambda fault: fault.name)
def test_a_fault_that_is_enumerated(fault: object) -> None:
    (found,) = fault.run(Level())  # type: ignore[attr-defined]
    assert found.details["total_variation"] > 1e-3
    assert (found.verdict, found.as_claimed) == ("seen", True)


def test_a_fault_that_is_no_fault_would_be_called_so() -> None:
    """The same harness with nothing planted says NOT SEEN, and the report fails."""
    fault = next(iter(exact_faults()))
    (found,) = type(fault)("nothing", rule("speculative"), (1,)).run(Level())
    assert (found.verdict, found.as_claimed) == ("NOT SEEN", False)


def test_faults_in_the_loop_and_in_functions() -> None:
    sampled = [case for case in planted_cases(0.06) if case.tests or "batch" in case.name or "mask" in case.name]
    assert len(sampled) >= 8
    report = examine(sampled, Level(bias=0.06))
    found = {finding.case: finding for finding in report.findings}
    assert found["a function that is right"].holds
    assert report.holds, report.findings
    assert all(finding.verdict in ("seen", "holds") for finding in report.findings)


def test_the_bias_of_planted_functions_is_that_of_the_level() -> None:
    assert any(case.name == "a function off by 0.05" for case in planted_cases(0.05))
    assert audit_planted.__doc__


@pytest.mark.parametrize("name", LOSSY)
def test_a_lossy_rule_fails_if_it_is_asked(name: str) -> None:
    (case,) = [case for case in exact_cases(named_rules(name, LOSSY[name])) if "fixed" in case.name]
    report = examine([case])
    assert not report.holds
    assert report.findings[0].verdict == "FAILS"
    assert report.findings[0].details["total_variation"]["1"] > 0.01


def test_a_lossy_rule_without_slack_passes() -> None:
    (case,) = [case for case in exact_cases(named_rules("pareto", {"budget": 0})) if "fixed" in case.name]
    assert examine([case]).holds
    assert audit_exact("recursive_wor").holds


def test_every_rule_and_sibling_law_is_a_case() -> None:
    """That they hold is shown by tests/laws; here it is that none is forgotten, and what lossy ones claim."""
    cases = exact_cases(named_rules())
    names = {case.name for case in cases}
    for name in RULES:
        shown = named_rules()[list(RULES).index(name)].name
        assert all(f"{shown} × {s}" in names for s in rule(name).card.siblings if s != "race")
    (lossy,) = [case.run(Level())[0] for case in cases if case.name == "pareto(budget=0.05) × fixed"]
    assert (lossy.claim, lossy.verdict, lossy.as_claimed) == ("lossy", "LOSSY", True)
