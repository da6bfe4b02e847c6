"""Ablations: noise lowers acceptance by the total variation of the two laws, and counts are a function of the seeds."""

import math
from collections.abc import Callable
from typing import Any

import pytest

import spectr
from spectr.bench.studies import Quality, vocabulary
from spectr.engine import Request

Measure = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def study(target: str, near: str) -> Quality:
    lm = spectr.load(target, near)
    prompts = [lm.encode(text) for text in ("one two three", "the harbour", "nine ten", "open through")]
    return Quality(lm, (3, 2), [Request(prompt, seed, 40) for prompt in prompts for seed in range(2)])


def test_acceptance_falls_with_the_total_variation(study: Quality) -> None:
    """One draft is accepted with probability 1 − TV; nodes below the root have the same TV on average."""
    found = [study.measure("speculative", share) for share in (0.0, 0.5, 0.9)]
    apart = [row["total_variation"] for row in found]
    assert apart == sorted(apart)
    assert apart[-1] > apart[0] + 0.3
    for row in found:
        nodes = row["steps"]  # at least the roots; binomial, eight standard deviations
        assert abs(row["acceptance"] - (1 - row["total_variation"])) < 8 * 0.5 / math.sqrt(nodes)
        assert row["best"] == pytest.approx(1 - row["total_variation"], abs=0.06)


OTHERS = ("race", "topk", "recursive", "optimal", "path_block", "block")
MORE = [pytest.param(name, marks=pytest.mark.slow) for name in OTHERS]


@pytest.mark.parametrize("method", ["kseq", *MORE])
def test_every_rule_loses_by_noise_and_is_counted_alike(study: Quality, method: str) -> None:
    clean, blurred = study.measure(method, 0.0), study.measure(method, 0.9)
    assert blurred["total_variation"] > clean["total_variation"] + 0.3
    assert blurred["acceptance"] < clean["acceptance"] - 0.1
    assert study.measure(method, 0.0) == clean


def test_noise_changes_no_text_of_the_race(study: Quality) -> None:
    assert study.measure("race", 0.0)["tokens"] == study.measure("race", 0.7)["tokens"]


def test_the_vocabulary() -> None:
    methods = ("plain", "speculative", "kseq", "optimal", "path_block", "race", "topk", "lookup")
    cells = dict(vocabulary(methods, (500, 2000), (3, 3), repeats=30))
    assert len(cells) == 2 * 6
    found = {name: measure() for name, measure in cells.items()}
    assert all(row["milliseconds"] > 0 and 1 <= row["block_efficiency"] <= 4 for row in found.values())
    for size in (500, 2000):
        one, several, shared = (
            found[f"vocabulary {name} {size}"]["block_efficiency"] for name in ("speculative", "optimal", "race")
        )
        assert several > one + 0.2
        assert shared > one + 0.2
    name = "vocabulary race 500"
    assert cells[name]()["block_efficiency"] == found[name]["block_efficiency"]


def test_all_of_them_in_a_run(measure: Measure) -> None:
    found = measure(
        methods=("plain", "race", "kseq"), studies=("quality", "size", "vocabulary"), noises=(0.0, 1.0),
        sizes=("early_exit:1", "early_exit:4", "ngram"), vocabularies=(300,),
    )  # fmt: skip
    assert [(row["method"], row["noise"]) for row in found["quality"]] == [
        ("race", 0.0), ("kseq", 0.0), ("race", 1.0), ("kseq", 1.0)
    ]  # fmt: skip
    assert [row["method"] for row in found["vocabulary"]] == ["race", "kseq"]
    sizes = {row["drafter"]: row for row in found["results"] if row["study"] == "size"}
    assert set(sizes) == {"none", "early_exit:1", "early_exit:4", "ngram"}
    assert sizes["early_exit:4"]["block_efficiency"] > 3  # all four layers: the target itself
    assert all(row["identical"]["same"] == row["identical"]["of"] == 2 for row in sizes.values())


def test_without_laws_there_is_no_quality(measure: Measure) -> None:
    found = measure(drafter="lookup", methods=("plain", "race"), studies=("quality",))
    assert found["quality"] == []
    assert "has no laws" in found["left_out"]["quality"]
    assert found["cells_missing"] == 0
