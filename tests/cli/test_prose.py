"""What the pages say is true: every `$ spectr …` prints what is shown below it, every rule is explained, the page of
help texts is up to date, the annotated tree lists every folder and module, and every test that a page names exists."""

import ast
import doctest
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pymdownx.slugs import slugify

from spectr.verify import RULES, rule

Spectr = Callable[..., Any]
ROOT = Path(__file__).resolve().parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(ROOT.glob("docs/*.md"))]
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
RULES_PAGE = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")


def shown(page: str) -> Iterator[tuple[str, str]]:
    """Yield the commands of spectr in the console blocks of a page, and the output shown for them."""
    for block in BLOCK.findall(page):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, _, output = part.partition("\n")
            if command.startswith("spectr "):
                yield command, output


EXAMPLES = [example for page in PAGES for example in shown(page.read_text(encoding="utf-8"))]


def trimmed(text: str) -> list[str]:
    return [line.rstrip() for line in text.strip().splitlines()]


def test_there_are_examples() -> None:
    assert any(command.startswith("spectr rules compare") and output for command, output in EXAMPLES)


@pytest.mark.parametrize(("command", "output"), EXAMPLES, ids=[command for command, _ in EXAMPLES])
def test_an_example_prints_what_is_shown(spectr: Spectr, command: str, output: str) -> None:
    ran = spectr(*command.split()[1:])
    assert ran.code == 0
    assert trimmed(output) == trimmed(ran.out)


def test_every_rule_is_explained_where_it_belongs() -> None:
    """Only rules of this package; others explain their own."""
    own = [name for name in RULES if type(rule(name)).__module__.startswith("spectr.")]
    lossless, lossy = RULES_PAGE.split("\n## Lossy\n")
    names = {text: re.findall(r"^### (\w+)$", text, re.MULTILINE) for text in (lossless, lossy)}
    assert sorted(names[lossless]) == sorted(name for name in own if rule(name).card.lossless)
    assert sorted(names[lossy]) == sorted(name for name in own if not rule(name).card.lossless)


def test_the_walk_throughs_run() -> None:
    """README and docs are collected as doctests; this page is not."""
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    ran = doctest.testfile(str(ROOT / "CONTRIBUTING.md"), module_relative=False, optionflags=flags, encoding="utf-8")
    assert ran.failed == 0
    assert ran.attempted >= 8


def functions_in(path: Path) -> set[str]:
    found = ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if path.is_file() else ()
    return {node.name for node in found if isinstance(node, ast.FunctionDef)}


def test_every_test_that_a_page_names_is_there() -> None:
    named = [m for page in PAGES for m in re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", page.read_text(encoding="utf-8"))]
    assert len(named) >= 40
    assert [f"{path}::{name}" for path, name in named if name not in functions_in(ROOT / path)] == []


NOTED = [page for page in PAGES if "[^" in page.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", NOTED, ids=lambda path: path.stem)
def test_every_note_has_its_test(path: Path) -> None:
    """Each footnote is defined once and names a test, and none is unused."""
    page = path.read_text(encoding="utf-8")
    defined = re.findall(r"^\[\^([\w-]+)\]: `tests/", page, re.MULTILINE)
    assert defined
    assert len(defined) == len(set(defined))
    assert set(re.findall(r"\[\^([\w-]+)\](?!:)", page)) == set(defined)


def test_the_help_page_is_up_to_date(tmp_path: Path) -> None:
    tool = [sys.executable, str(ROOT / "tools" / "cli_help.py"), "--check"]
    fresh = subprocess.run(tool, capture_output=True, text=True, check=False)
    assert (fresh.returncode, fresh.stderr) == (0, "")
    stale = tmp_path / "cli.md"
    stale.write_text("# The command line\n")
    found = subprocess.run([*tool, "--out", str(stale)], capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "run python tools/cli_help.py" in found.stderr


def test_the_tree_has_every_folder_and_module() -> None:
    """A line of the tree begins with names; three spaces or more separate them from what they are."""
    tree = ARCHITECTURE.split("## Where things are")[1].split("```")[1]
    package = ROOT / "src" / "spectr"
    folders = {f"{path.parent.name}/" for path in package.glob("*/__init__.py")}
    modules = {path.stem for path in package.glob("*.py")}
    top = {"src/spectr/", *(f"{name}/" for name in ("tests", "benchmarks", "examples", "deploy", "tools", "docs"))}
    listed = {name for line in tree.splitlines() for name in re.split(r" {3,}", line.strip())[0].split()}
    assert listed == folders | modules | top | {"drafters/"}


def test_the_tour_names_what_is_there() -> None:
    """Every file of the tour exists and defines the names that its line mentions."""
    tour = ARCHITECTURE.split("## Read the code in ten minutes")[1].split("\n## ")[0]
    stops = [re.findall(r"`([^`]+)`", line) for line in re.findall(r"^\d+\. .*", tour, re.MULTILINE)]
    assert 10 <= len(stops) <= 14
    for named in stops:
        files = [ROOT / name for name in named if name.endswith(".py")]
        code = "".join(path.read_text(encoding="utf-8") for path in files)  # a file that is not there fails
        wanted = [part for name in named if not name.endswith(".py") for part in name.split(".")]
        assert [name for name in wanted if not re.search(rf"(class|def) {name}\b", code)] == []


def headings(page: Path) -> set[str]:
    """The anchors of a page, as the site makes them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    plain = [re.sub(r"[`*]|\]\([^)]*\)|\[", "", title) for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)]
    return {slugify(case="lower")(title, "-") for title in plain}


def test_links_lead_somewhere() -> None:
    """To a file that exists and, in a page, to a heading that it has."""
    links = [
        (page, page.parent / file if file else page, anchor)
        for page in PAGES
        for file, anchor in re.findall(r"\]\((?!http)([^)#\s]*)#?([^)\s]*)\)", page.read_text(encoding="utf-8"))
    ]
    assert len(links) >= 100
    assert [(page.name, str(file)) for page, file, _ in links if not file.exists()] == []
    inner = [(page, file, anchor) for page, file, anchor in links if anchor and file.suffix == ".md"]
    assert len(inner) >= 20
    assert [(page.name, file.name, anchor) for page, file, anchor in inner if anchor not in headings(file)] == []
