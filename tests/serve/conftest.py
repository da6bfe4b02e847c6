"""A server with a small model in a thread of this process, and a client."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import pytest
from tests.saved import save_model, small_llama, tokenizer

import spectr
from spectr.lm import LM
from spectr.serve import Limits, ServerSettings
from spectr.serve.run import background
from spectr.serve.service import Service

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def generator() -> Callable[[str], ModuleType]:
    """A function that imports a program of the folder tools/, which generates a file."""

    def load(name: str) -> ModuleType:
        spec = spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(small_llama(0, 320), tmp_path_factory.mktemp("served"), tokenizer())


@pytest.fixture(scope="session")
def lm(folder: Path) -> LM:
    """A small model in float64, so that texts do not depend on the other requests of a batch."""
    return spectr.load(str(folder), "lookup", dtype="float64")


@pytest.fixture(scope="session")
def _stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def running(lm: LM, _stack: ExitStack) -> tuple[str, Service]:
    return _stack.enter_context(background(lm, ServerSettings(port=0, name="tiny")))


@pytest.fixture(scope="session")
def client(running: tuple[str, Service], _stack: ExitStack) -> httpx2.Client:
    return _stack.enter_context(httpx2.Client(base_url=running[0], timeout=60))


@pytest.fixture
def other(lm: LM) -> Iterator[Callable[..., tuple[httpx2.Client, Service]]]:
    """A function that starts another server with other settings, and returns a client of it and its service."""
    with ExitStack() as stack:

        def start(limits: Limits | None = None, model: LM = lm, **settings: Any) -> tuple[httpx2.Client, Service]:
            made = ServerSettings(port=0, name="tiny", limits=limits or Limits(), **settings)
            url, service = stack.enter_context(background(model, made))
            return stack.enter_context(httpx2.Client(base_url=url, timeout=60)), service

        yield start
