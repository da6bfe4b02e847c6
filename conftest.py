"""Leaves out tests whose packages are not installed, so that a machine with spectr alone, such as one with a GPU, runs
the others. Where all extras are installed, as by `make setup`, nothing is left out."""

import gc
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parent
_NEEDED = {
    ("fastapi", "starlette", "uvicorn", "prometheus_client"): (
        "src/spectr/serve", "src/spectr/fleet", "benchmarks/serving", "tests/serve", "tests/fleet", "tests/browser",
        "tests/examples", "tests/benchmarks/test_serving.py",
    ),
    ("gguf",): (
        "tests/gguf_files.py", "tests/models/test_gguf.py", "tests/kernels/test_cpu.py", "tests/bench/test_cpu.py",
        "tests/laws/test_quantised.py",
    ),
    ("xgrammar", "jsonschema", "llguidance"): ("tests/grammar", "tests/lm/test_grammar.py"),
    ("pymdownx",): ("tests/cli/test_prose.py",),
}  # fmt: skip
"""Packages of extras, and the files that import them."""


def _is_missing(package: str) -> bool:
    try:
        return find_spec(package) is None
    except ModuleNotFoundError:
        return True


_LEFT_OUT = {
    _ROOT / path: [package for package in packages if _is_missing(package)]
    for packages, paths in _NEEDED.items()
    for path in paths
}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Ignore files that need a package that is missing; None leaves the decision to pytest."""
    return True if _LEFT_OUT.get(collection_path) else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect no garbage while modules are imported and tests are listed: it takes a quarter of that time and frees
    nothing."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_report_header() -> list[str]:
    """Say which packages are missing."""
    missing = sorted({package for packages in _LEFT_OUT.values() for package in packages})
    return [f"tests that need {', '.join(missing)} are left out: make setup installs them"] if missing else []
