"""`load(…, plan=…)`: the text never changes with the race; profiles are used as they say, and refused elsewhere."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import spectr
from spectr.draft.adaptive import AdaptiveDrafter
from spectr.draft.chooser import Prospect
from spectr.draft.profile import Choice, Profile, Way, read_profile
from spectr.errors import ArgumentError, MismatchError
from spectr.lm import LM
from spectr.models.trained import fingerprint

ASK = ["the quick brown fox", "tides rise", "the quick brown fox jumps over the"]


def profile(lm: LM, *ways: Way, rows: tuple[int, ...] = (1,), **changes: Any) -> Profile:
    """A choice for each number of rows, in the order of the ways."""
    menu = (Way(), *ways)
    prospects = (Prospect(1.0, 1.0), *(Prospect(1.8, 1.3) for _ in ways))
    choices = tuple(Choice(count, at + 1, prospects) for at, count in enumerate(rows))
    mark = fingerprint(lm.opened.target.model)
    return Profile(**{"fingerprint": mark, "device": "cpu", "menu": menu, "choices": choices, **changes})


def written(path: Path, made: Profile) -> Path:
    path.write_text(json.dumps(made.as_data()))
    return path


def texts(lm: LM, **settings: Any) -> list[list[int]]:
    return [out.tokens for out in lm.generate(ASK, 24, 5, **settings)]


@pytest.mark.parametrize("drafter", ["early_exit", "lookup", "ngram", "lookup+ngram", "random", "none"])
def test_auto_keeps_the_text(lm: LM, folders: tuple[Path, Path], drafter: str) -> None:
    auto = spectr.load(folders[0], drafter, plan="auto")
    assert isinstance(auto.engine.drafter, AdaptiveDrafter)
    for heat in (1.0, 0.0):
        assert texts(auto, temperature=heat) == texts(lm, temperature=heat)


def test_auto_with_a_model_and_in_a_stream(lm: LM, folders: tuple[Path, Path]) -> None:
    auto = spectr.load(folders[0], folders[1], plan="auto")
    meant, found = lm.generate(ASK[0], 40, 3), auto.generate(ASK[0], 40, 3)
    assert found.tokens == meant.tokens
    assert found.stats.drafted > 0  # guesses are tried once plain decoding was timed
    assert "".join(auto.stream(ASK[0], 40, 3)) == meant.text


@pytest.mark.parametrize("rule", ["optimal", "block", "path_block", "recursive_wor"])
def test_auto_with_coupling_rules(folders: tuple[Path, Path], rule: str) -> None:
    """Greedy, every lossless rule has one text, whatever was picked."""
    auto = spectr.load(folders[0], "early_exit", rule, plan="auto")
    assert texts(auto, temperature=0) == texts(spectr.load(folders[0], "none"), temperature=0)


def test_a_profile_is_used_as_it_says(lm: LM, folders: tuple[Path, Path], tmp_path: Path) -> None:
    target, near = folders
    way = Way(str(near), "race", 2, 3, 6)
    path = written(tmp_path / "p.json", profile(lm, way))
    made = spectr.load(target, plan=path)
    plan = made.engine.drafter.plan  # type: ignore[attr-defined]
    assert (plan.drafts, plan.length, plan.nodes, made.engine.rule.card.name) == (2, 3, 6, "race")
    assert texts(made) == texts(lm)
    assert texts(spectr.load(target, str(near), plan=str(path))) == texts(lm)
    spread = spectr.load(target, plan=written(path, profile(lm, Way(str(near), "race", 2, 3, 6, 1.5))))
    assert texts(spread) == texts(lm)


def test_a_profile_that_says_not_to_speculate(lm: LM, folders: tuple[Path, Path], tmp_path: Path) -> None:
    found = profile(lm, Way("lookup"))
    plain = Profile(found.fingerprint, "cpu", found.menu, (Choice(1, 0, found.choices[0].prospects),))
    made = spectr.load(folders[0], plan=written(tmp_path / "p.json", plain))
    assert made.engine.drafter.name == "none"
    auto = spectr.load(folders[0], plan="auto", profile=tmp_path / "p.json")
    assert [option.drafter.name for option in auto.engine.drafter.menu] == ["none", "lookup"]  # type: ignore[attr-defined]


def test_the_rule_of_a_profile(lm: LM, folders: tuple[Path, Path], tmp_path: Path) -> None:
    path = written(tmp_path / "p.json", profile(lm, Way("early_exit", "optimal", 2, 2)))
    made = spectr.load(folders[0], plan=path)
    assert (made.engine.rule.card.name, made.engine.drafter.siblings) == ("optimal", "iid")
    assert texts(made, temperature=0) == texts(lm, temperature=0)
    with pytest.raises(MismatchError, match="made for rule 'optimal', and 'kseq' was asked for"):
        spectr.load(folders[0], rule="kseq", plan=path)


def test_other_rows_another_way(lm: LM, folders: tuple[Path, Path], tmp_path: Path) -> None:
    near = str(folders[1])
    found = profile(lm, Way(near, "race", 4, 3, 9), Way(near, "race", 1, 1, 2), rows=(1, 8))
    made = spectr.load(folders[0], plan=written(tmp_path / "p.json", found))
    one, many = made.generate(ASK[:1], 24, 5)[0], made.generate(ASK * 3, 24, 5)
    assert one.stats.drafted / one.stats.steps > 5
    assert many[0].stats.drafted / many[0].stats.steps < 2
    assert one.tokens == many[0].tokens == lm.generate(ASK[0], 24, 5).tokens


def test_auto_begins_with_a_profile(lm: LM, folders: tuple[Path, Path], tmp_path: Path) -> None:
    path = written(tmp_path / "p.json", profile(lm, Way(str(folders[1]), "race", 2, 3, 6), Way("lookup")))
    auto = spectr.load(folders[0], plan="auto", profile=path)
    made = auto.engine.drafter
    assert isinstance(made, AdaptiveDrafter)
    assert [option.drafter.name for option in made.menu] == ["none", "model", "lookup"]
    assert made.choosers(1).prospects[1] == Prospect(1.8, 1.3)  # type: ignore[attr-defined]
    assert texts(auto) == texts(lm)


def test_what_is_refused(lm: LM, folders: tuple[Path, Path], tmp_path: Path) -> None:
    target, path = folders[0], tmp_path / "p.json"
    written(path, profile(lm, Way("lookup")))
    with pytest.raises(ArgumentError, match="plan decides drafts, length, nodes, tree; got nodes besides"):
        spectr.load(target, plan=path, nodes=8)
    with pytest.raises(ArgumentError, match="to use a profile as it is, give it as plan"):
        spectr.load(target, profile=path)
    with pytest.raises(ArgumentError, match="there is no file"):
        spectr.load(target, plan="nowhere.json")
    with pytest.raises(ArgumentError, match="plan must be a file"):
        spectr.load(target, plan=7)
    with pytest.raises(MismatchError, match="made for drafter lookup, got 'ngram'"):
        spectr.load(target, "ngram", plan=path)
    with pytest.raises(MismatchError, match="made for another target"):
        spectr.load(target, plan=written(path, profile(lm, Way("lookup"), fingerprint="other")))
    with pytest.raises(MismatchError, match="measured on cuda, this model is on cpu"):
        spectr.load(target, plan=written(path, profile(lm, Way("lookup"), device="cuda")))


@pytest.mark.parametrize("broken", ["", "[]", "{}", '{"menu": [{"drafter": "lookup"}], "choices": []}', "x"])
def test_a_broken_profile(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(broken)
    with pytest.raises(ArgumentError, match="is not a profile that spectr tune wrote"):
        read_profile(path)


def test_a_profile_keeps_its_numbers(lm: LM, tmp_path: Path) -> None:
    made = profile(lm, Way("lookup", "race", 2, 4, 8), Way("early_exit", "race", 2, 2, 4, 1.5), rows=(1, 4))
    assert read_profile(written(tmp_path / "p.json", made)) == made
    assert torch.get_num_threads() == 1
