"""`spectr rules` and `spectr rules compare`: tables for people, pure JSON for programs, figures, refusals."""

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from spectr.cli.explained import EXPLAINED
from spectr.cli.output import numbers
from spectr.cli.tables import comparison_reading, comparison_table
from spectr.errors import ArgumentError
from spectr.theory import COLUMNS, bernoulli, compare, uniform, zipf
from spectr.verify import RULES, rule

Spectr = Callable[..., Any]


def test_the_list_has_every_rule_and_says_which_are_lossy(spectr: Spectr) -> None:
    ran = spectr("rules")
    assert (ran.code, ran.err) == (0, "spectr rules show RULE explains one of them\n")
    lines = ran.out.splitlines()
    for name in RULES:
        card = rule(name).card
        held, shown = (next(found) for found in _starting(lines, name))
        assert ("LOSSY" in held, "lossless" in held) == (not card.lossless, card.lossless)
        assert held.count("●") == len(card.siblings)
        assert ("trees" in held, "needed" in held) == (card.tree, card.needs_laws)
        assert card.summary.split()[0] in shown


def _starting(lines: list[str], name: str) -> tuple[Any, Any]:
    found = [line for line in lines if line.split()[:1] == [name]]
    assert len(found) == 2
    return iter(found[:1]), iter(found[1:])


def test_the_list_as_json_is_the_cards(spectr: Spectr) -> None:
    ran = spectr("rules", "--json")
    cards = json.loads(ran.out)["rules"]
    assert [card["name"] for card in cards] == list(RULES)
    assert {card["name"] for card in cards if not card["lossless"]} == {"lenience", "pareto"}
    assert all(card["siblings"] and card["papers"] and card["summary"] for card in cards)


OWN = [name for name in RULES if type(rule(name)).__module__.startswith("spectr.")]


def test_every_rule_has_words_of_its_own() -> None:
    """No two rules are described by the same sentence, here or on their cards."""
    assert set(EXPLAINED) == set(OWN)
    for described in ([one.words for one in EXPLAINED.values()], [rule(name).card.summary for name in OWN]):
        assert len(set(described)) == len(OWN)


@pytest.mark.parametrize("name", OWN)
def test_a_rule_is_explained_and_its_example_runs(spectr: Spectr, tiny: str, name: str) -> None:
    ran, card = spectr("rules", "show", name), rule(name).card
    assert (ran.code, ran.err) == (0, "")
    shown = " ".join(ran.out.split())
    assert EXPLAINED[name].words in shown
    assert ("exactly the target's distribution" in shown, "NO: each token may be off" in shown) == (
        card.lossless,
        not card.lossless,
    )
    assert ("one chain of drafts" in shown) == (not card.tree)
    assert ("must return its probabilities" in shown) == card.needs_laws
    assert all(f"{siblings}: " in shown for siblings in card.siblings)
    command = shlex.split(shown.partition(" example ")[2])
    assert command[:2] == ["spectr", "generate"]
    assert f"--rule {name}" in " ".join(command)
    used = spectr(*command[1:], "--model", tiny, "--max-new-tokens", "6")
    assert used.code == 0
    assert ("LOSSY" in used.err) == (not card.lossless)


def test_a_rule_as_json(spectr: Spectr) -> None:
    found = json.loads(spectr("rules", "show", "pareto", "--json").out)
    assert found == json.loads(spectr("rules", "--json", "show", "pareto").out)
    assert (found["name"], found["lossless"], found["bias_bound"]) == ("pareto", False, 0.01)
    assert found["words"] == EXPLAINED["pareto"].words
    bad = spectr("rules", "show", "parreto")
    assert (bad.code, bad.out) == (2, "")
    assert "did you mean pareto?" in bad.err


def test_the_list_fits_a_terminal_of_eighty_columns(spectr: Spectr, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = spectr("rules").out.splitlines()
    assert max(map(len, lines)) <= 80
    assert not any("…" in line for line in lines)


def test_compare_prints_the_numbers_of_the_theory(spectr: Spectr) -> None:
    ran = spectr("rules", "compare", "--family", "bernoulli", "--k", "2,4")
    assert (ran.code, ran.err) == (0, "")
    found = compare(bernoulli(), (2, 4))
    for name, values in found.acceptance.items():
        (line,) = [line for line in ran.out.splitlines() if line.startswith(f"{COLUMNS[name].label}  ")]
        assert line.split()[-2:] == [f"{value:.4f}" for value in values]
    assert ran.out.splitlines()[-1].startswith("At K = 4, of what iid drafts allow: K-SEQ 88.9%")


def test_compare_as_json_is_pure_and_covers_all_families(spectr: Spectr) -> None:
    ran = spectr("rules", "compare", "--json", "--size", "30", "--k", "4,1", "--temperatures", "1,0.25", "--seed", "3")
    data = json.loads(ran.out)["comparisons"]
    assert [one["family"].partition("(")[0] for one in data] == ["bernoulli", "uniform", "zipf", "zipf"]
    wanted = [bernoulli(), uniform(), zipf(30, seed=3), zipf(30, temperature=0.25, seed=3)]
    assert data == [compare(family, (1, 4)).as_data() for family in wanted]
    assert spectr("rules", "--json", "compare", "--family", "uniform").out == (
        spectr("rules", "compare", "--family", "uniform", "--json").out
    )


def test_compare_on_files(spectr: Spectr, tmp_path: Path) -> None:
    target, draft = tmp_path / "target.json", tmp_path / "draft.npy"
    target.write_text("[0.75, 0.25]")
    np.save(draft, np.asarray([0.25, 0.75]))
    ran = spectr("rules", "compare", "--target-law", str(target), "--draft-law", str(draft), "--json")
    (found,) = json.loads(ran.out)["comparisons"]
    assert found["family"] == "target.json, draft.npy"
    assert found["acceptance"] == compare(bernoulli()).as_data()["acceptance"]


def test_compare_draws(spectr: Spectr, tmp_path: Path) -> None:
    figure = tmp_path / "figure.png"
    ran = spectr("rules", "compare", "--family", "bernoulli", "--plot", str(figure), "--json")
    assert ran.code == 0
    assert json.loads(ran.out)["comparisons"]
    assert ran.err == f"wrote {figure}\n"
    assert figure.read_bytes().startswith(b"\x89PNG\r\n")


def test_a_race_that_is_not_computed_is_reported(spectr: Spectr) -> None:
    ran = spectr("rules", "compare", "--family", "zipf", "--size", "2049", "--temperatures", "1", "--k", "2")
    assert ran.code == 0
    assert "the race is not computed" in ran.err
    (line,) = [line for line in ran.out.splitlines() if line.startswith("race ")]
    assert line.split() == ["race", "race", "–"]
    assert "race" not in ran.out.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--k", "0"), "--k takes integers of at least 1"),
        (("--k", "1,two"), "--k takes integers of at least 1"),
        (("--k", ""), "--k takes integers of at least 1"),
        (("--temperatures", "-1"), "--temperatures takes numbers of at least 0"),
        (("--temperatures", "nan"), "--temperatures takes numbers of at least 0"),
        (("--size", "0"), "zipf takes a size of at least 1"),
        (("--target-law", "a.json"), "--target-law and --draft-law belong together"),
        (("--draft-law", "a.json"), "--target-law and --draft-law belong together"),
        (("--target-law", "nowhere.json", "--draft-law", "b.json"), "cannot read nowhere.json"),
        (("--target-law", "a", "--draft-law", "b", "--family", "zipf"), "give one of them"),
        (("--target-law", "a", "--draft-law", "b", "--temperatures", "1"), "--temperatures belongs to the zipf family"),
        (("--family", "uniform", "--seed", "0"), "--seed belongs to the zipf family"),
        (("--plot", "figure.jpg"), "got figure.jpg"),
        (("--plot", "nowhere/figure.png"), "there is no folder nowhere"),
    ],
)
def test_what_compare_refuses(spectr: Spectr, flags: tuple[str, ...], sentence: str) -> None:
    ran = spectr("rules", "compare", *flags)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("spectr: ")
    assert ran.err.count("\n") == 1
    assert sentence in ran.err


def test_compare_gives_the_threads_back(spectr: Spectr) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        spectr("rules", "compare", "--family", "bernoulli")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def marked(found: Any) -> dict[str, list[bool]]:
    """Which cells of the table are highlighted."""
    columns = comparison_table(found).columns
    labels = list(columns[0].cells)
    return {label: [bool(list(column.cells)[row].style) for column in columns[2:]] for row, label in enumerate(labels)}


def test_the_best_sampled_drafts_are_marked() -> None:
    marks = marked(compare(bernoulli(), (2, 4, 16)))
    assert marks["race"] == [True, True, True]
    assert marks["hybrid optimum"] == [True, True, True]
    assert marks["iid optimum"] == [False, False, True]
    assert marks["top-k"] == [False, False, False]  # not sampled
    assert marks["one draft"] == [False, False, False]
    flat = marked(compare(zipf(), (8,)))
    assert [name for name, (best,) in flat.items() if best] == ["iid optimum"]


def test_the_reading_names_what_is_highest() -> None:
    assert str(comparison_reading(compare(bernoulli(), (2,)))).endswith("highest: race, 1.0000.")
    assert str(comparison_reading(compare(uniform(), (2,)))).endswith("highest: iid optimum, 0.6400.")
    apart = comparison_reading(compare(uniform(2, 2, offset=2), (1,)))
    assert str(apart) == "The drafter's distribution shares no token with the target's; highest: iid optimum, 0.0000."


def test_flags_with_several_numbers() -> None:
    assert numbers("--k", "16, 1,16", int, 1) == (16, 1)
    assert numbers("--temperature", "1,0.5", float, 0.0) == (1.0, 0.5)
    with pytest.raises(ArgumentError, match="got '1,inf'"):
        numbers("--temperature", "1,inf", float, 0.0)
