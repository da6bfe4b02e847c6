"""The documentation site builds without a warning, a broken link stops it, and the reference has every public name."""

import os
import pkgutil
import re
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import spectr

ROOT = Path(__file__).resolve().parents[1]
PAGES = {path.name for path in (ROOT / "docs").glob("*.md")}
REFERENCE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def tool(name: str) -> ModuleType:
    """A module of tools/site, which mkdocs loads by path."""
    spec = spec_from_file_location(f"site_{name}", ROOT / "tools" / "site" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def named(part: object) -> list[str]:
    """All pages in a part of the navigation."""
    if isinstance(part, str):
        return [part]
    return [page for below in (part.values() if isinstance(part, dict) else part) for page in named(below)]


def test_every_page_is_in_the_navigation_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = named(yaml.safe_load(re.search(r"^nav:\n.*?\n(?=^\w)", text, re.MULTILINE | re.DOTALL)[0])["nav"])  # type: ignore[index]
    assert len(pages) == len(set(pages))
    assert {*pages} - PAGES == {*tool("pages").ROOT_PAGES, *tool("pages").OTHER_PAGES}
    assert {*pages} >= PAGES


def test_the_reference_has_every_public_name() -> None:
    shown = set(re.findall(r"^::: spectr\.(\w+)$", REFERENCE, re.MULTILINE))
    assert set(spectr.__all__) - shown == {"hf", "__version__"}
    assert "::: spectr.hf.generate" in REFERENCE
    assert "`spectr.__version__`" in REFERENCE


@pytest.mark.parametrize("path", re.findall(r"^::: (\S+)$", REFERENCE, re.MULTILINE))
def test_what_the_reference_names_exists(path: str) -> None:
    assert pkgutil.resolve_name(path) is not None


def test_links_out_of_the_documentation_are_found() -> None:
    text = "[a](../src/spectr/types.py#x) [b](rules.md) `[c](../README.md)` [d](../no_such_file.py) [e](http://x.y/z)"
    assert tool("pages").outside_links(text, "docs") == ["src/spectr/types.py"]


def test_examples_in_docstrings_become_code() -> None:
    fenced = tool("docstrings").fenced
    assert fenced("A sum.\n\n>>> 1 + 1\n2") == "A sum.\n\n```pycon\n>>> 1 + 1\n2\n```"
    assert fenced(">>> 1\n1\n\nThen prose.") == "```pycon\n>>> 1\n1\n```\n\nThen prose."
    assert fenced("Prose alone.") == "Prose alone."


def test_comments_describe_fields() -> None:
    comment = tool("docstrings").trailing_comment
    assert comment(["steps: int = 0  # target calls"]) == "Target calls."
    assert comment(["steps: int = field(", "    default=0", ")  # target calls."]) == "Target calls."
    assert comment(["steps: int = 0"]) is None


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": "src", "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build"]  # `--quiet` would hide warnings from the strict mode
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the site is made of, without what git ignores."""
    folder = tmp_path_factory.mktemp("site")
    listed = subprocess.run(
        ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        if (ROOT / name).is_file() and not name.startswith("tests/"):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.mark.slow
def test_the_site_builds(copy: Path) -> None:
    ran = build(copy)
    assert ran.returncode == 0, ran.stderr
    assert "WARNING" not in ran.stderr
    page = (copy / "build" / "site" / "api.html").read_text(encoding="utf-8")
    assert [name for name in spectr.__all__ if f'id="spectr.{name}"' not in page] == ["__version__", "hf"]
    assert "Calls of the target" in page or "Target calls" in page  # a comment of a field of Stats
    assert "&gt;&gt;&gt;" in page or 'class="gp"' in page  # an example of a docstring
    assert "<blockquote>" not in page
    assert (copy / "build" / "site" / "src" / "spectr" / "types.py").is_file()  # a page links to it


@pytest.mark.slow
@pytest.mark.parametrize("link", ["no_such_page.md", "rules.md#no-such-heading", "../src/no_such_file.py"])
def test_a_broken_link_stops_the_build(copy: Path, link: str) -> None:
    page = copy / "docs" / "index.md"
    before = page.read_text(encoding="utf-8")
    page.write_text(f"{before}\n[broken]({link})\n", encoding="utf-8")
    try:
        assert build(copy).returncode != 0
    finally:
        page.write_text(before, encoding="utf-8")
