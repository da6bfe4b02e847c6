"""The statistical part of an audit: compares the texts of any sampler with a target's exact distribution."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from spectr.audit.report import CELLS, Case, Claim, Finding, Level
from spectr.audit.samplers import EngineSampler, Sampler
from spectr.audit.statistics import GTest, alarm_limit
from spectr.audit.texts import TESTS, TextLaw, run_tests

__all__ = ["Claimed", "law_case", "law_finding"]


@dataclass(frozen=True, slots=True)
class Claimed:
    """A sampler, and the law it claims to sample from."""

    name: str
    sampler: Sampler
    law: TextLaw
    claim: Claim = "lossless"
    section: str = "law"
    by_name: bool = False  # a lossy rule that was requested by name


def _details(test: GTest) -> dict[str, Any]:
    return {
        "samples": test.samples, "cells": test.cells, "statistic": test.statistic if not test.impossible else None,
        "p_at_most": test.p_bound, "p_about": test.p_about, "distance": test.distance, "impossible": test.impossible,
    }  # fmt: skip


def _measured(tests: Mapping[str, GTest], samples: int, level: Level, calls: str) -> str:
    lost = max(test.impossible for test in tests.values())
    if lost:
        return f"{lost:,} of {samples:,} texts have probability zero"
    p_values = ", ".join(f"{test.p_about:.2g}" for test in tests.values())
    worst = max(tests.values(), key=lambda test: test.statistic)
    off = f"; off by {worst.distance:.3f}" if worst.p_bound <= level.each else ""
    return f"{samples:,} texts, p ≈ {p_values}{calls}; sees {level.visible(samples):.3f}{off}"


def law_finding(claimed: Claimed, level: Level) -> Finding:
    """Draw texts and compare them with the law, with every test."""
    seeds, cells = range(level.seed, level.seed + level.draws), claimed.law.cells()
    tests = run_tests(claimed.sampler(seeds, claimed.law.length), claimed.law, cells, level.seed)
    holds = all(test.p_bound > level.each for test in tests.values())
    calls = ""
    if isinstance(claimed.sampler, EngineSampler) and claimed.sampler.steps:
        calls = f"; {claimed.sampler.emitted / claimed.sampler.steps:.2f} tokens a call"
    details = {
        "tests": {name: _details(test) for name, test in tests.items()}, "samples": level.draws,
        "limit": alarm_limit(CELLS, level.each), "false_alarm_rate_of_each_test": level.each,
        "sees_total_variation": level.visible(level.draws), "needs_samples": level.needed,
        "bias_to_see": level.bias, "power": level.power, "length": claimed.law.length,
        "seeds": [seeds.start, seeds.stop - 1],
    }  # fmt: skip
    measured = _measured(tests, level.draws, level, calls)
    by_name = claimed.by_name and claimed.claim == "lossy"
    return Finding(claimed.section, claimed.name, holds, measured, details, claimed.claim, by_name)


def _run(claimed: Claimed, level: Level) -> Sequence[Finding]:
    return [law_finding(claimed, level)]


def law_case(claimed: Claimed) -> Case:
    """Return the case that runs all tests of one sampler."""
    return Case(claimed.section, claimed.name, partial(_run, claimed), tests=len(TESTS))
