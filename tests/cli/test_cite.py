"""`spectr cite`: BibTeX that a BibTeX reader accepts, for every rule."""

import json
import re
from collections.abc import Callable
from importlib.resources import files
from types import SimpleNamespace
from typing import Any

import pytest

from spectr.data.papers import PAPERS, bibtex
from spectr.verify import RULES, Card, rule

Spectr = Callable[..., Any]
NEEDED = {"inproceedings": {"title", "author", "booktitle", "year"}, "article": {"title", "author", "journal", "year"}}


def braced(text: str, start: int) -> int:
    """Return the index after the brace that closes the one at `start`."""
    depth = 0
    for at in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        if depth == 0:
            return at + 1
    raise AssertionError(f"unbalanced braces: {text[start : start + 60]}")


def parse(text: str) -> dict[str, tuple[str, dict[str, str]]]:
    """key → (kind, fields). Strict: nothing but entries, nothing but `name = {…}` in an entry."""
    entries, at = {}, 0
    while at < len(text):
        head = re.compile(r"\s*@(\w+)(?=\{)").match(text, at)
        assert head, text[at : at + 60]
        end = braced(text, head.end())
        key, _, body = text[head.end() + 1 : end - 1].partition(",")
        assert key not in entries
        entries[key] = (head[1], dict(fields(body)))
        at = len(text) if not text[end:].strip() else end
    return entries


def fields(body: str) -> list[tuple[str, str]]:
    found, at = [], 0
    while body[at:].strip():
        name = re.compile(r"\s*(\w+)\s*=\s*(?=\{)").match(body, at)
        assert name, body[at : at + 60]
        end = braced(body, name.end())
        found.append((name[1], body[name.end() + 1 : end - 1]))
        comma = re.compile(r"\s*(,|$)").match(body, end)
        assert comma, body[end : end + 20]
        at = comma.end()
    return found


@pytest.mark.parametrize("broken", ["@article{a, title = {x}", "@article{a, title = x}", "a @article{b, title = {x}}"])
def test_the_reader_of_this_test_is_strict(broken: str) -> None:
    with pytest.raises(AssertionError):
        parse(broken)


@pytest.mark.parametrize("name", list(RULES))
def test_every_rule_is_cited(spectr: Spectr, name: str) -> None:
    ran = spectr("cite", name)
    assert (ran.code, ran.err) == (0, "")
    entries = parse(ran.out)
    assert list(entries) == list(dict.fromkeys(rule(name).card.papers))
    for kind, found in entries.values():
        assert NEEDED.get(kind, {"title", "author", "year"}) <= found.keys()
        assert re.fullmatch(r"20\d\d", found["year"])


def test_a_paper_of_several_rules_is_printed_once(spectr: Spectr) -> None:
    assert list(parse(spectr("cite", "kseq", "optimal", "kseq").out)) == [
        "sun2023spectr",
        "spectr",
        "khisti2025",
        "hu2025",
    ]


def test_without_a_rule_it_is_this_software(spectr: Spectr) -> None:
    assert list(parse(spectr("cite").out)) == ["spectr"]


def test_as_json(spectr: Spectr) -> None:
    (paper,) = json.loads(spectr("cite", "kseq", "spectr", "--json").out)["papers"]  # both cite one paper
    assert paper == {"key": "sun2023spectr", "short": "Sun et al. 2023", "bibtex": PAPERS["sun2023spectr"].bibtex}


def test_a_paper_that_is_not_known_here_is_said_and_not_made_up(
    spectr: Spectr, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rule of another package may cite unknown papers, or none."""
    for papers, cited in ((("own2026", "yin2024"), ["yin2024"]), ((), [])):
        foreign = SimpleNamespace(card=Card("foreign", "a rule of another package", ("iid",), papers))
        monkeypatch.setattr("spectr.verify.rule", lambda _, foreign=foreign: foreign)
        ran = spectr("cite", "foreign")
        assert (ran.code, list(parse(ran.out.strip()))) == (0, cited)
        assert ran.err == ("there is no BibTeX entry for own2026\n" if papers else "")
        assert [paper["key"] for paper in json.loads(spectr("cite", "foreign", "--json").out)["papers"]] == cited


def test_every_entry_of_the_file_is_read() -> None:
    """A reader that skipped entries would lose papers silently."""
    text = (files("spectr.data") / "papers.bib").read_text("utf-8")
    assert list(PAPERS) == re.findall(r"^@\w+\{(.+),$", text, re.MULTILINE)
    assert list(parse(bibtex())) == list(PAPERS)
    assert all(re.search(r"(19|20)\d\d$|^spectr", paper.short) for paper in PAPERS.values()), PAPERS
