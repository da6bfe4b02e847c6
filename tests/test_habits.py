"""What surrounds the code agrees with it: CI calls targets that exist, on the versions that the package names, and the
files that others read (templates, citation) are well formed."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from spectr.version import __version__

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z-]*):", MAKEFILE, re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def commands(job: dict[str, Any]) -> list[str]:
    """What a job runs, once for every target of its matrix."""
    lines = [line for step in job["steps"] for line in step.get("run", "").splitlines()]
    targets = job.get("strategy", {}).get("matrix", {}).get("target", [""])
    return [line.replace("${{ matrix.target }}", target) for line in lines for target in targets]


RUN = [command for job in WORKFLOW["jobs"].values() for command in commands(job)]


@pytest.mark.parametrize("command", sorted(set(RUN)))
def test_ci_runs_a_target_of_make(command: str) -> None:
    make, *targets = command.split()
    assert make == "make"
    assert targets
    assert set(targets) <= TARGETS


def test_ci_runs_everything_that_needs_no_gpu() -> None:
    assert {"make lint", "make docs", "make test", "make test-slow", "make test-scale"} <= set(RUN)


def test_the_slow_tests_run_at_night_alone() -> None:
    assert "schedule" in WORKFLOW[True]  # YAML takes the key `on` for true
    slow = [job for job in WORKFLOW["jobs"].values() if "make test-slow" in commands(job)]
    assert len(slow) == 1
    assert "schedule" in slow[0]["if"]
    assert "pull_request" not in slow[0]["if"]


def test_the_local_script_runs_targets_of_make() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    found = re.findall(r"^(?:exec )?make ([a-z-]+)$", script, re.MULTILINE)
    assert found
    assert set(found) <= TARGETS


def test_the_package_names_the_versions_that_ci_tests() -> None:
    named = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert WORKFLOW["jobs"]["test"]["strategy"]["matrix"]["python-version"] == named
    assert PROJECT["requires-python"] == f">={named[0]}"


def test_every_target_is_described_and_phony() -> None:
    phony = set(re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[1].split())  # type: ignore[index]
    described = set(re.findall(r"^([a-z][a-z-]*):.*## ", MAKEFILE, re.MULTILINE))
    assert phony == described
    assert phony == TARGETS


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_issue_forms_have_what_github_needs(path: Path) -> None:
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem == "config":
        assert set(form) == {"blank_issues_enabled"}
        return
    assert {"name", "description", "body"} <= set(form)
    ids = [part["id"] for part in form["body"] if part["type"] != "markdown"]
    assert len(ids) == len(set(ids)) > 0
    assert all(part["attributes"].get("label") or part["type"] == "markdown" for part in form["body"])


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["version"] == __version__
    assert cited["license"] == PROJECT["license"]
    assert cited["cff-version"] == "1.2.0"
    assert cited["authors"] == PROJECT["authors"]
