"""ARCHITECTURE.md follows a request through the code: every file and name in it exists."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
STOPS = re.findall(r"`(src/[\w/]+\.py)`\s+`([\w.]+)`", PAGE)


def names(path: Path) -> set[str]:
    """Return functions, classes, and methods as Class.method."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{part.name}" for part in node.body if isinstance(part, ast.FunctionDef)}
    return found


def test_a_request_is_followed() -> None:
    assert len(STOPS) > 12


@pytest.mark.parametrize(("file", "name"), STOPS, ids=[f"{Path(file).stem}:{name}" for file, name in STOPS])
def test_what_is_named_is_there(file: str, name: str) -> None:
    assert name in names(ROOT / file)


def test_every_path_exists() -> None:
    for path in re.findall(r"`((?:src|tests|tools|docs)/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), path
