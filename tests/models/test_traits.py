"""A plain class is a model: what it lacks has a default. The engine looks for no attribute of a model by its name."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.tiny import llama

from spectr.errors import SpectrError
from spectr.models.target import Target
from spectr.models.traits import ModelTraits

ENGINE = Path(__file__).resolve().parents[2] / "src" / "spectr" / "engine"


@pytest.mark.parametrize("model", [None, SimpleNamespace()])
def test_what_a_model_lacks_has_a_default(model: Any) -> None:
    traits = ModelTraits(model)
    traits.compile()
    traits.check_source([1, 2])
    assert (traits.runs_own_threads, traits.is_sharded, traits.has_encoder) == (False, False, False)
    assert traits.devices == frozenset()


def test_what_a_model_has_is_found() -> None:
    compiled: list[int] = []
    spread = SimpleNamespace(hf_device_map={"a": 0, "b": "cpu"})
    made: Any = SimpleNamespace(
        compile=lambda: compiled.append(1), runs_own_threads=True, is_sharded=True, needs=SimpleNamespace(source=64),
        model=spread,
    )  # fmt: skip
    ModelTraits(made).compile()
    assert compiled == [1]
    assert (ModelTraits(made).runs_own_threads, ModelTraits(made).is_sharded) == (True, True)
    assert (ModelTraits(made).has_encoder, ModelTraits(made).devices) == (True, {"0", "cpu"})


def test_a_model_without_an_encoder_refuses_a_source() -> None:
    traits = ModelTraits(Target(llama(3)))
    assert not traits.has_encoder
    traits.check_source(None)
    with pytest.raises(SpectrError):
        traits.check_source([1])


def test_the_engine_looks_for_no_attribute_of_a_model() -> None:
    looked = re.compile(r"(?:getattr|hasattr)\((?:self\.)?(?:parts\.)?(?:target|model|net)\b")
    assert [path.name for path in ENGINE.glob("*.py") if looked.search(path.read_text(encoding="utf-8"))] == []
