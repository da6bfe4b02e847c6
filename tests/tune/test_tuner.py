"""The tuner on a small model: which plans are measured, and on which texts; timings are not checked."""

from pathlib import Path
from typing import Any

import pytest
import torch

import spectr
from spectr.draft import Plan, drafter
from spectr.draft.candidate_plans import candidate_plans
from spectr.draft.profile import DecodingPlan, read_profile
from spectr.errors import ArgumentError, MismatchError
from spectr.lm import LM
from spectr.models.blockwise import blockwise_of
from spectr.models.target import Target
from spectr.tune import tuner
from spectr.tune.halving import ROUNDS
from spectr.tune.tuner import Tuner, Workload, plans_for, with_drafter

LOOKUP = (DecodingPlan(), DecodingPlan("lookup"))
WORK = Workload(("the quick brown fox", "tides rise"), 8)


def ignore(*_: object) -> None:
    """Ignore a message."""


def test_plans_of_each_kind(lm: LM) -> None:
    said = list[str]()
    found = plans_for(lm, ["auto", "lookup", "early_exit"], ["race", "optimal", "block"], said.append)
    assert found[0] == DecodingPlan()
    kinds = [(plan.drafter, plan.rule) for plan in found[1:]]
    assert {kind: kinds.count(kind) for kind in kinds} == {
        ("lookup", "race"): 2,  # auto means lookup where no drafter was trained for the target
        ("early_exit", "race"): 5,
        ("early_exit", "optimal"): 4,
        ("early_exit", "block"): 2,  # chains alone
    }
    assert any(sentence.startswith("left out lookup with rule optimal: ") for sentence in said)


def test_eight_plans_for_a_trained_head() -> None:
    head = drafter("random", plan=Plan())
    race = spectr.rule("race").card
    for on_cpu, largest in ((True, 16), (False, 64)):
        trees = candidate_plans("auto", head, race, on_cpu=on_cpu)
        lookups = candidate_plans("lookup", drafter("lookup"), race, on_cpu=on_cpu)
        assert 1 + len(trees) + len(lookups) == 8
        assert max(plan.nodes or 0 for plan in trees) == largest
    assert candidate_plans("auto", drafter("none"), race, on_cpu=True) == []


def test_drafts_are_no_longer_than_heads_reach(lm: LM) -> None:
    net = lm.opened.target.model
    heads = drafter("blockwise", heads=blockwise_of(net, 2), target=Target(net), plan=Plan("race", 1, 1))
    found = candidate_plans("folder", heads, spectr.rule("race").card, on_cpu=True)
    assert {plan.length for plan in found} == {1, 2}


def test_bad_arguments_are_refused(lm: LM) -> None:
    with pytest.raises(ArgumentError, match="rules must be lossless, and 'lenience' is not"):
        plans_for(lm, ["lookup"], ["race", "lenience"], ignore)
    with pytest.raises(ArgumentError, match="plain decoding is always measured"):
        plans_for(lm, ["none"], ["race"], ignore)
    with pytest.raises(MismatchError, match="no rule of kseq fits a drafter of lookup"):
        plans_for(lm, ["lookup"], ["kseq"], ignore)


def test_steps_are_captured_as_those_of_the_model_that_was_loaded(lm: LM) -> None:
    assert lm.engine.parts.captures is False
    for captures in (False, True):
        loaded = LM(lm.engine.with_parts(captures=captures), lm.opened)
        assert with_drafter(loaded, drafter("random", plan=Plan())).engine.parts.captures is captures


def test_a_prompt_that_comes_again_is_read_again(lm: LM) -> None:
    """Otherwise the plan that is measured second would be faster."""
    prompt = "a prompt of more than eight tokens"
    made = with_drafter(lm, drafter("none"))
    assert [made.generate(prompt, 4, seed).reused for seed in range(2)] == [0, 0]
    assert len(lm.encode(prompt)) > 9
    loaded = LM(lm.engine.with_parts(), lm.opened)
    assert loaded.generate(prompt, 4, 0).reused == 0
    assert loaded.generate(prompt, 4, 1).reused > 0


def test_all_plans_write_the_same_texts(lm: LM) -> None:
    """All plans have the same prompts and seeds in a round, and others in the next."""
    said = []

    class Recording(LM):
        def generate(self, prompts: Any, most: Any = None, **settings: Any) -> Any:  # type: ignore[override]
            said.append((tuple(prompts), tuple(settings["seeds"]), settings["temperature"]))
            return super().generate(prompts, most, **settings)

    work = Workload(("a", "b", "c"), 8, {"temperature": 0.5})
    for number in (0, 0, 1):
        tokens, seconds = work.generate(Recording(lm.engine, lm.opened), 2, number)
        assert tokens == 16
        assert seconds > 0
    assert said[0] == said[1] == (("a", "b"), (0, 1), 0.5)
    assert said[2][0] == ("c", "a")
    assert not set(said[2][1]) & set(said[0][1])


def test_a_time_limit_keeps_at_least_one_round(lm: LM, tmp_path: Path) -> None:
    """One round is always measured and gives a profile; a later run measures the rest."""
    path, ticks = tmp_path / "profile.json", list[int]()
    first = Tuner(lm, LOOKUP, WORK, (1, 2), path)
    assert first.missing == 2 * 2 * ROUNDS
    first.run(1e-9, ignore, lambda: ticks.append(1))
    assert (len(ticks), first.finished, first.missing) == (4, False, 8)
    assert [choice.rows for choice in read_profile(path).choices] == [1, 2]
    later = Tuner(lm, LOOKUP, WORK, (1, 2), path)
    later.resume()
    later.run(None, ignore, lambda: ticks.append(1))
    assert (len(ticks), later.finished, later.missing) == (12, True, 0)
    again = Tuner(lm, LOOKUP, WORK, (1, 2), path)
    again.resume()
    assert again.profile() == read_profile(path)


def test_a_plan_that_cannot_run_is_left_out(lm: LM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second plan is made to run out of memory."""
    said, made = list[str](), tuner.with_drafter

    def short_of_memory(lm: LM, drafter: object, rule: str = "race") -> LM:
        if getattr(drafter, "nodes", 1) == 9:
            raise torch.OutOfMemoryError("no room")
        return made(lm, drafter, rule)  # type: ignore[arg-type]

    monkeypatch.setattr(tuner, "with_drafter", short_of_memory)
    plans = (*LOOKUP, DecodingPlan("lookup", drafts=1, length=8, nodes=9))
    found = Tuner(lm, plans, WORK, (1,))
    found.run(None, said.append, ignore)
    assert {one.plan for one in found.found} == {0, 1}
    assert found.finished
    assert "left out lookup, drafts 1, length 8, nodes 9 with 1 row at a time: no room" in said
    profile = found.profile()
    assert profile is not None
    assert profile.choices[0].rates[2] is None


def test_nothing_measured_is_no_profile(lm: LM, tmp_path: Path) -> None:
    made = Tuner(lm, LOOKUP, WORK, (1,), tmp_path / "profile.json")
    assert made.profile() is None
    made.save()
    assert not (tmp_path / "profile.json").exists()
