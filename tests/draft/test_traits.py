"""A plain class with the required members is a drafter, what it lacks has a default, and no other file of the package
looks for an optional attribute by its name."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from spectr.draft import Plan, drafter
from spectr.draft.adaptive import adaptive
from spectr.draft.mixed import Mixed
from spectr.draft.prediction import PredictionDrafter
from spectr.draft.stateless import Stateless
from spectr.draft.traits import (
    DrafterTraits,
    caches_text,
    drop_text,
    follows_plan,
    is_drafter,
    table_version,
    takes_predictions,
)
from spectr.types import Drafter, Drafting, Opening, Siblings

PACKAGE = Path(__file__).resolve().parents[2] / "src" / "spectr"
NAMES = [name for name, member in vars(DrafterTraits).items() if isinstance(member, property)]
DEFAULTS: dict[str, Any] = {"capturable": False, "parts": (), "drafters": (), "origin": "drafter", "scratch_slots": 1}


class Bare:
    """A drafter with what `Drafter` requires, and nothing else."""

    name: ClassVar[str] = "bare"
    siblings: ClassVar[Siblings] = "fixed"
    nodes: ClassVar[int] = 1
    gives_laws: ClassVar[bool] = False

    def open(self, opening: Opening) -> Drafting:
        return Stateless(drafter("none").propose)  # type: ignore[attr-defined]


class Wrapped:
    """Passes everything on to another drafter."""

    def __init__(self, inner: Drafter) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_drafter_lacks_has_a_default(name: str) -> None:
    assert getattr(DrafterTraits(Bare()), name) == DEFAULTS.get(name)


def test_what_a_drafter_has_is_found() -> None:
    plan = Plan(drafts=1, length=2)
    for made in (drafter("random", plan=plan), Wrapped(drafter("random", plan=plan))):
        assert DrafterTraits(made).plan is plan
        assert DrafterTraits(made).capturable
    both = [drafter("none"), drafter("random", plan=plan)]
    assert list(DrafterTraits(Mixed(both)).parts) == both
    assert list(DrafterTraits(adaptive(both, lambda _: 0)).drafters) == both
    assert not DrafterTraits(adaptive([*both, Bare()], lambda _: 0)).capturable


def test_scratch_slots_are_not_nodes_of_the_tree() -> None:
    """Early exit scores more nodes in the target's cache than its pruned tree has, and reports the size of the tree."""
    plan = Plan(drafts=4, length=3, nodes=8)
    early = drafter("early_exit", model=None, plan=plan)
    assert early.nodes == plan.nodes == 8
    assert DrafterTraits(early).scratch_slots == plan.scored > 8
    both = [drafter("lookup"), early]
    for made, nodes in ((Mixed(both), 15), (adaptive(both, lambda _: 0), 8), (PredictionDrafter(early), 24)):
        assert made.nodes == nodes
        assert DrafterTraits(made).scratch_slots >= plan.scored


def test_a_plan_of_another_kind_is_none() -> None:
    bare: Any = Bare()
    bare.plan = "own"
    assert DrafterTraits(bare).plan is None


def test_draftings() -> None:
    bare: Any = Bare().open(Opening(1, 8, 16, None))
    assert not follows_plan(bare)
    assert table_version(bare) == 0
    assert not caches_text(bare)
    assert not takes_predictions(bare)
    bare.plan, bare.version = Plan(), 3
    assert follows_plan(bare)
    assert table_version(bare) == 3


def test_what_a_drafting_that_takes_no_part_is_told() -> None:
    """A drafting with a cache drops its text, and another one is informed by a call of `read` without tokens."""
    calls: list[Any] = []
    plain: Any = Bare().open(Opening(2, 8, 16, None))
    plain.read = lambda *call: calls.append(("read", *call))
    drop_text(plain, 1, [4, 0])
    caching: Any = Bare().open(Opening(2, 8, 16, None))
    caching.drop = lambda *call: calls.append(("drop", *call))
    drop_text(caching, 1, [4, 0])
    assert calls == [("read", 1, [[], []], [4, 0]), ("drop", 1, [4, 0])]


def test_the_engine_does_not_ask_for_the_class_of_a_drafting() -> None:
    files = [*(PACKAGE / "engine").rglob("*.py"), PACKAGE / "draft" / "adaptive.py", PACKAGE / "draft" / "mixed.py"]
    asked = [path.name for path in files if re.search(r"isinstance\([^)]*Drafting\)", path.read_text(encoding="utf-8"))]
    assert asked == []


@pytest.mark.parametrize(("thing", "is_one"), [(Bare(), True), ("ngram", False), (object(), False)])
def test_is_drafter(thing: object, is_one: bool) -> None:
    assert is_drafter(thing) is is_one


def looked_up(path: Path) -> Iterator[tuple[str, str]]:
    """The names that a file looks for with `getattr` and `hasattr`, with their lines."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("getattr", "hasattr"):
            name = node.args[1]
            if isinstance(name, ast.Constant):
                yield name.value, f"{path.relative_to(PACKAGE)}:{node.lineno}"


def test_no_other_file_looks_for_them_by_name() -> None:
    names = {*NAMES} - {"model"}  # targets, heads and engines have models, too
    files = [path for path in PACKAGE.rglob("*.py") if path != PACKAGE / "draft" / "traits.py"]
    assert [place for path in files for name, place in looked_up(path) if name in names] == []
