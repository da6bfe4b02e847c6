"""`load(…, plan=…)`: with the race the text never changes; profiles are applied, and refused for other models."""

import json
from pathlib import Path
from typing import Any

import pytest

import spectr
from spectr.draft.adaptive import SwitchingDrafter
from spectr.draft.profile import DecodingPlan, MeasuredBatch, Profile, read_profile
from spectr.errors import ArgumentError, MismatchError
from spectr.lm import LM
from spectr.models.trained import fingerprint

MORE = [pytest.param(name, marks=pytest.mark.slow) for name in ("lookup", "ngram", "random")]
OTHERS = [pytest.param(rule, marks=pytest.mark.slow) for rule in ("block", "path_block", "recursive_wor")]
ASK = ["the quick brown fox", "tides rise", "the quick brown fox jumps over the"]


def profile(lm: LM, *plans: DecodingPlan, choices: dict[int, int] | None = None, **changes: Any) -> Profile:
    """Return a profile with plain decoding and `plans`; by default the last is chosen for one row."""
    every = (DecodingPlan(), *plans)
    rates = tuple(10.0 + place for place in range(len(every)))
    chosen = tuple(MeasuredBatch(rows, plan, rates) for rows, plan in (choices or {1: len(plans)}).items())
    mark = fingerprint(lm.opened.target.model)
    usual = {"fingerprint": mark, "device": "cpu", "versions": {"torch": "2"}, "plans": every, "choices": chosen}
    return Profile(**{**usual, **changes})


def written(path: Path, made: Profile) -> Path:
    path.write_text(json.dumps(made.as_data()))
    return path


def texts(lm: LM, **settings: Any) -> list[list[int]]:
    return [out.tokens for out in lm.generate(ASK, 24, 5, **settings)]


def open_lm(folder: Path, *arguments: Any, **options: Any) -> LM:
    """Load in float64, in which a text does not depend on the shape of a batch."""
    return spectr.load(folder, *arguments, dtype="float64", **options)


@pytest.mark.parametrize("drafter", ["auto", "early_exit", "lookup+ngram", "none", *MORE])
def test_auto_keeps_the_text(lm: LM, folders: tuple[Path, Path], drafter: str) -> None:
    auto = open_lm(folders[0], drafter, plan="auto")
    assert isinstance(auto.engine.drafter, SwitchingDrafter) == (drafter != "none")
    for temperature in (1.0, 0.0):
        assert texts(auto, temperature=temperature) == texts(lm, temperature=temperature)


def test_auto_drafts_with_the_default_drafter(lm: LM, folders: tuple[Path, Path]) -> None:
    """Without a trained drafter the default one looks up text that repeats itself, which this text does."""
    auto = open_lm(folders[0], plan="auto")
    repeating = {"logit_bias": {5: 100.0}}
    found, meant = (model.generate(ASK[0], 40, 3, **repeating) for model in (auto, lm))
    assert found.tokens == meant.tokens
    assert found.stats.drafted > 0


def test_auto_with_a_model_and_in_a_stream(lm: LM, folders: tuple[Path, Path]) -> None:
    auto = open_lm(folders[0], folders[1], plan="auto")
    meant, found = lm.generate(ASK[0], 40, 3), auto.generate(ASK[0], 40, 3)
    assert found.tokens == meant.tokens
    assert found.stats.drafted > 0
    assert "".join(auto.stream(ASK[0], 40, 3)) == meant.text


@pytest.mark.parametrize("rule", ["optimal", *OTHERS])
def test_auto_keeps_to_one_plan_under_other_rules(lm: LM, folders: tuple[Path, Path], rule: str) -> None:
    """The drafter is the same as without plan='auto', so the distribution is unchanged."""
    usual = open_lm(folders[0], "early_exit", rule)
    with pytest.warns(UserWarning, match=f"with rule {rule} the default plan of the drafter is used"):
        auto = open_lm(folders[0], "early_exit", rule, plan="auto")
    assert auto.engine.drafter.plan == usual.engine.drafter.plan  # type: ignore[attr-defined]
    assert texts(auto) == texts(usual)
    assert texts(auto, temperature=0) == texts(lm, temperature=0)


def test_a_profile_is_used_as_it_says(lm: LM, folders: tuple[Path, Path], tmp_path: Path) -> None:
    target, near = folders
    path = written(tmp_path / "p.json", profile(lm, DecodingPlan(str(near), "race", 2, 3, 6)))
    made = open_lm(target, plan=path)
    plan = made.engine.drafter.plan  # type: ignore[attr-defined]
    assert (plan.drafts, plan.length, plan.nodes, made.engine.rule.card.name) == (2, 3, 6, "race")
    assert texts(made) == texts(lm)
    assert texts(open_lm(target, str(near), plan=str(path))) == texts(lm)


def test_a_profile_does_not_keep_steps_from_being_captured(lm: LM, folders: tuple[Path, Path], tmp_path: Path) -> None:
    """One plan is the drafter itself; several, plain decoding among them, are as capturable as their parts."""
    near = str(folders[1])
    plans = (DecodingPlan(near, "race", 2, 3, 6), DecodingPlan("lookup"), DecodingPlan("ngram", "race", 1, 1, 2))
    for choices, capturable in (({1: 1}, True), ({1: 1, 8: 2, 16: 0}, True), ({1: 1, 4: 3}, False)):
        path = written(tmp_path / "p.json", profile(lm, *plans, choices=choices))
        assert getattr(open_lm(folders[0], plan=path).engine.drafter, "capturable", False) is capturable


def test_a_profile_that_says_not_to_draft(lm: LM, folders: tuple[Path, Path], tmp_path: Path) -> None:
    path = written(tmp_path / "p.json", profile(lm, DecodingPlan("lookup"), choices={1: 0}))
    assert open_lm(folders[0], plan=path).engine.drafter.name == "none"
    auto = open_lm(folders[0], plan="auto", profile=path).engine.drafter
    assert [one.name for one in auto.drafters] == ["none", "lookup"]  # type: ignore[attr-defined]
    assert auto.select(1) == 0  # type: ignore[attr-defined]


def test_the_rule_of_a_profile(lm: LM, folders: tuple[Path, Path], tmp_path: Path) -> None:
    path = written(tmp_path / "p.json", profile(lm, DecodingPlan("early_exit", "optimal", 2, 2)))
    made = open_lm(folders[0], plan=path)
    assert (made.engine.rule.card.name, made.engine.drafter.siblings) == ("optimal", "iid")
    assert texts(made, temperature=0) == texts(lm, temperature=0)
    with pytest.raises(MismatchError, match="rule must be 'optimal', for which the profile was made, got 'kseq'"):
        open_lm(folders[0], rule="kseq", plan=path)


def test_other_rows_another_plan(lm: LM, folders: tuple[Path, Path], tmp_path: Path) -> None:
    near = str(folders[1])
    plans = (DecodingPlan(near, "race", 4, 3, 9), DecodingPlan(near, "race", 1, 1, 2))
    made = open_lm(folders[0], plan=written(tmp_path / "p.json", profile(lm, *plans, choices={1: 1, 8: 2})))
    one, many = made.generate(ASK[:1], 24, 5)[0], made.generate(ASK * 3, 24, 5)
    assert one.stats.drafted / one.stats.steps > 5
    assert many[0].stats.drafted / many[0].stats.steps < 2
    assert one.tokens == many[0].tokens == lm.generate(ASK[0], 24, 5).tokens


def test_auto_starts_from_a_profile(lm: LM, folders: tuple[Path, Path], tmp_path: Path) -> None:
    plans = (DecodingPlan("lookup"), DecodingPlan(str(folders[1]), "race", 2, 3, 6))
    auto = open_lm(folders[0], plan="auto", profile=written(tmp_path / "p.json", profile(lm, *plans)))
    made = auto.engine.drafter
    assert isinstance(made, SwitchingDrafter)
    assert [one.name for one in made.drafters] == ["none", "model", "lookup"]  # the chosen one, then by rate
    assert made.select(1) == 1
    assert texts(auto) == texts(lm)


def test_bad_arguments_are_refused(lm: LM, folders: tuple[Path, Path], tmp_path: Path) -> None:
    target, path = folders[0], tmp_path / "p.json"
    written(path, profile(lm, DecodingPlan("lookup")))
    with pytest.raises(ArgumentError, match="plan decides drafts, length, nodes, tree; got nodes as well"):
        open_lm(target, plan=path, nodes=8)
    with pytest.raises(ArgumentError, match="to use it unchanged, pass it as plan"):
        open_lm(target, profile=path)
    with pytest.raises(ArgumentError, match="there is no file"):
        open_lm(target, plan="nowhere.json")
    with pytest.raises(ArgumentError, match="plan must be a file"):
        open_lm(target, plan=7)
    with pytest.raises(MismatchError, match="made for drafter lookup, got 'ngram'"):
        open_lm(target, "ngram", plan=path)
    with pytest.raises(MismatchError, match="made for another target"):
        open_lm(target, plan=written(path, profile(lm, DecodingPlan("lookup"), fingerprint="other")))
    with pytest.raises(MismatchError, match="measured on cuda, this model is on cpu"):
        open_lm(target, plan=written(path, profile(lm, DecodingPlan("lookup"), device="cuda")))


@pytest.mark.parametrize(
    "broken",
    [
        "", "[]", "{}", "x",
        '{"format": 1, "menu": [], "choices": []}',
        '{"format": 2, "plans": [{"drafter": "lookup"}], "choices": []}',
    ],
)  # fmt: skip
def test_a_broken_profile(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(broken)
    with pytest.raises(ArgumentError, match="is not a profile that spectr tune wrote"):
        read_profile(path)


def test_what_a_profile_must_hold(lm: LM) -> None:
    lookup = DecodingPlan("lookup")
    with pytest.raises(ArgumentError, match="must be plain decoding"):
        profile(lm, plans=(lookup,), choices={1: 0})
    with pytest.raises(ArgumentError, match="one of its 2 plans"):
        profile(lm, lookup, choices={1: 2})
    with pytest.raises(ArgumentError, match="a rate, or null, for each"):
        profile(lm, plans=(DecodingPlan(), lookup), choices={1: 0})
    with pytest.raises(ArgumentError, match="only rule race may have several plans"):
        profile(lm, DecodingPlan("early_exit", "optimal", 2, 2), choices={1: 1, 4: 0})


def test_a_profile_keeps_its_numbers(lm: LM, tmp_path: Path) -> None:
    plans = (DecodingPlan("lookup", "race", 2, 4, 8), DecodingPlan("early_exit", "race", 2, 2, 4))
    made = profile(lm, *plans, choices={1: 2, 4: 0})
    assert read_profile(written(tmp_path / "p.json", made)) == made
