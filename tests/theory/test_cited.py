"""Every function of the theory names its paper by a key that `spectr cite` knows."""

import importlib
import inspect
import re

import pytest

import spectr.theory
from spectr.data.papers import PAPERS

OTHERS = {
    "compare",
    "bernoulli",
    "from_files",
    "uniform",
    "zipf",
    "repeated",
    "zipf_chain",
}  # laws and tables, no theorem


def functions() -> dict[str, object]:
    found = {name: getattr(spectr.theory, name) for name in spectr.theory.__all__}
    return {name: value for name, value in found.items() if inspect.isfunction(value) and name not in OTHERS}


@pytest.mark.parametrize("name", functions())
def test_a_function_names_its_paper(name: str) -> None:
    keys = re.findall(r"\[([a-z]+\d{4}\w*|spectr)\]", inspect.getdoc(functions()[name]) or "")
    assert keys, f"{name} cites nothing"
    assert set(keys) <= set(PAPERS)


def test_every_key_in_the_folder_is_known() -> None:
    modules = ("bias_frontier", "chen", "drafts", "excess", "leviathan", "measure", "race", "yin", "yin_relaxed")
    for module in modules:
        text = inspect.getsource(importlib.import_module(f"spectr.theory.{module}"))
        assert set(re.findall(r"\[([a-z]+\d{4}\w*)\]", text)) <= set(PAPERS)
