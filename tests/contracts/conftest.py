"""Small real models for the contracts: a target, and drafters that are close to it, far from it, or part of it."""

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from tests.asking import Stepped
from tests.contracts.ways import Way, asked
from tests.heads import random_head
from tests.late import run_as_on_a_gpu
from tests.tiny import llama, noisy_copy
from transformers import PreTrainedModel

import spectr
from spectr.draft import Plan, drafter
from spectr.draft.adaptive import replanned
from spectr.draft.options import DraftOptions
from spectr.engine import Engine, Request, Result
from spectr.models.blockwise import blockwise_of
from spectr.models.early import truncated
from spectr.models.head import head_of
from spectr.models.hf import open_loaded
from spectr.models.target import Target
from spectr.pairing import pair
from spectr.types import Drafter

__all__ = ["llama"]

SIZE = 12
PROMPTS = [[3, 4, 5, 3, 4, 5, 3], [1], [2, 2, 2, 2], [3, 4, 5, 3, 4, 5, 3]]
Make = Callable[[Plan], Drafter]
KINDS = ("eagle3", "peagle", "dflash", "dspark")


def requests(count: int = 24) -> list[Request]:
    return [Request(prompt, seed=9 + i, max_new_tokens=count - 3 * i) for i, prompt in enumerate(PROMPTS)]


@pytest.fixture(scope="session")
def net() -> PreTrainedModel:
    return llama(3, layers=3)


@pytest.fixture(scope="session")
def near(net: PreTrainedModel) -> Target:
    """A model with the target's weights and a little noise, which drafts well."""
    return Target(noisy_copy(net))


@pytest.fixture(scope="session")
def far() -> Target:
    """Another model, whose vocabulary is padded differently."""
    return Target(llama(8, SIZE + 4))


def _wide(head: torch.nn.Module) -> Any:
    """Return a head whose predictions depend on the whole text that it has read."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for weights in head.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.2, generator=generator)
    return head


def _published(net: PreTrainedModel, folder: Path) -> Make:
    """Return a maker of a published head, which is loaded from a folder as `spectr.load` does."""
    found = pair(str(folder), open_loaded(net), spectr.rule("race").card, DraftOptions(length=4))
    return lambda plan: replanned(found, plan)


@pytest.fixture(scope="session")
def makers(
    net: PreTrainedModel, near: Target, far: Target, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Make]:
    """Functions that make each registered drafter, and further drafters of the kind `model`."""
    early = Target(truncated(net, 1))
    made: dict[str, Make] = {
        "none": lambda _: drafter("none"),
        "lookup": lambda _: drafter("lookup"),
        "random": lambda plan: drafter("random", plan=plan),
        "ngram": lambda plan: drafter("ngram", plan=plan, order=3, text=[1, 2, 3, 4] * 5),
        "model": lambda plan: drafter("model", model=near, plan=plan),
        "early_exit": lambda plan: drafter("early_exit", model=early, plan=plan),
    }
    head, layers = Target(_wide(head_of(net, 1, (0,)))), (0,)
    made["feature"] = lambda plan: drafter("feature", head=head, target=Target(net), plan=plan, feature_layers=layers)
    light = Target(_wide(head_of(net, 2, layers, light=True)))
    made["light"] = lambda plan: drafter("feature", head=light, target=Target(net), plan=plan, feature_layers=layers)
    made["reads_few"] = lambda plan: drafter(
        "feature", head=head, target=Target(net), plan=plan, feature_layers=layers, busy_reads=6, busy_rows=0
    )
    heads = blockwise_of(net, 6)
    made["blockwise"] = lambda plan: drafter("blockwise", heads=heads, target=Target(net), plan=plan)
    folder = tmp_path_factory.mktemp("heads")
    made |= {kind: _published(net, random_head(net, kind, folder / kind)) for kind in KINDS}
    made |= {"block": made["dspark"], "masked": made["peagle"]}
    made["padded"] = lambda plan: drafter("model", model=far, plan=plan)
    made["mixed"] = lambda plan: drafter(
        "mixed", parts=[made["lookup"](plan), made["model"](plan), made["ngram"](plan)]
    )
    short = Target(llama(9, SIZE, max_position_embeddings=24))
    made["short"] = lambda plan: drafter("model", model=short, plan=plan)
    return made


def on_gpu(name: str, plan: Plan) -> tuple[Target, Any]:
    """Return a target and a drafter on the GPU; all of these drafters can be captured."""
    net = llama(3, layers=3, dtype=torch.float32).to("cuda")  # type: ignore[arg-type]  kernels do not support float64
    target = Target(net)
    match name:
        case "feature" | "light":
            head = Target(head_of(net, 1, (0,), light=name == "light").eval())
            return target, drafter("feature", head=head, target=target, plan=plan, feature_layers=(0,))
        case "model":
            small = llama(4, dtype=torch.float32).to("cuda")  # type: ignore[arg-type]
            return target, drafter("model", model=Target(small), plan=plan)
        case "early_exit":
            return target, drafter("early_exit", model=Target(truncated(net, 1)), plan=plan)
        case "blockwise":
            return target, drafter("blockwise", heads=blockwise_of(net, 3), target=target, plan=plan)
        case "random":
            return target, drafter("random", plan=plan)
    if name in KINDS:
        with TemporaryDirectory(prefix="spectr-") as folder:
            return target, _published(net, random_head(net, name, Path(folder) / name))(plan)
    return target, drafter(name)


@pytest.fixture
def build(net: PreTrainedModel, makers: dict[str, Make], monkeypatch: pytest.MonkeyPatch) -> Callable[..., Engine]:
    """A function that makes the engine of a way."""

    def made(way: Way, target: Target | None = None, **options: Any) -> Engine:
        if way.late:
            run_as_on_a_gpu(monkeypatch)
        return Engine(target or Target(net), makers[way.name](way.plan), spectr.rule(way.rule), **options)

    return made


_KNOWN: dict[Any, Any] = {}


@pytest.fixture
def alone(net: PreTrainedModel, makers: dict[str, Make]) -> Callable[..., list[Result]]:
    """A function that runs requests one by one, each in its own engine, whose steps are read without delay."""

    def found(way: Way, requests: list[Request], key: object = None) -> list[Result]:
        where = None if key is None else (key, way.rule, way.name, way.plan)
        if where is None or where not in _KNOWN:
            results = []
            for request in requests:
                stepped = Stepped(Engine(Target(net), makers[way.name](way.plan), spectr.rule(way.rule)))
                results += stepped.finish([stepped.submit(request)])
            if where is None:
                return results
            _KNOWN[where] = results
        return list(_KNOWN[where])

    return found


@pytest.fixture
def meant(alone: Callable[..., list[Result]]) -> Callable[[Way], list[Result]]:
    """A function that returns the results of the eight requests, each run alone.

    For the race it also checks that texts equal those of plain decoding.
    """

    def found(way: Way) -> list[Result]:
        results = alone(way, asked(), "asked")
        if way.rule == "race":
            plain = alone(Way("race", "none", Plan()), asked(), "asked")
            assert [result.tokens for result in results] == [result.tokens for result in plain]
        return results

    return found


QUICK = 2
"""Number of cases per test that `make test` runs, evenly spaced; `make test-slow` runs the others."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark most cases slow: there is one for every drafter, rule and setting, and each takes seconds."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        is_quick = not any(item.get_closest_marker(name) for name in ("slow", "gpu", "network"))
        if item.path.parent == Path(__file__).parent and is_quick:
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for several in cases.values():
        kept = {round(at * (len(several) - 1) / (QUICK - 1)) for at in range(QUICK)}
        for at, item in enumerate(several):
            if len(several) > QUICK and at not in kept:
                item.add_marker(pytest.mark.slow)
