"""Prompts: shipped, from files as the public sets have them, and through `datasets`."""

import gzip
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from spectr.bench.tasks import HUB, KINDS, Prompt, tasks
from spectr.errors import ArgumentError, UnknownNameError

CHECK = "def check(f): ..."
PUBLISHED: dict[str, tuple[dict[str, Any], Prompt]] = {
    "continuation": ({"text": "a b c d e f"}, Prompt("a b c")),
    "code": (
        {"task_id": "HumanEval/0", "prompt": "def f():\n", "test": CHECK, "entry_point": "f"},
        Prompt("def f():\n"),
    ),
    "summarisation": (
        {"article": "Long.", "highlights": "Short."},
        Prompt("Summarise the following report in one sentence.\n\nLong.", "Long."),
    ),
    "translation": (
        {"translation": {"de": "Haus", "en": "house"}},
        Prompt("Translate into German: house", "house"),
    ),
    "arithmetic": (
        {"question": "2+2?", "answer": "Two and two.\n#### 4"},
        Prompt("2+2?\nExplain your steps, and end with the number that is asked for.", "2+2?"),
    ),
    "dialogue": (
        {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
        Prompt("Hi", turns=("Hi",)),
    ),
}


def test_the_shipped_set_has_every_kind() -> None:
    found = tasks(list(KINDS), 100)
    assert [task.kind for task in found] == list(KINDS)
    texts = [prompt.text for task in found for prompt in task.prompts]
    assert len(texts) == len(set(texts)) >= 36
    for task in found:
        assert task.origin == "shipped"
        assert all(len(prompt.turns) % 2 == (task.kind == "dialogue") for prompt in task.prompts)


@pytest.mark.parametrize("kind", KINDS)
def test_public_sets_are_read_as_they_come(kind: str, tmp_path: Path) -> None:
    row, meant = PUBLISHED[kind]
    files = {
        "rows.jsonl": json.dumps(row) + "\n\n" + json.dumps(row) + "\n",
        "rows.json": json.dumps({"prompts": [row, row]}),
        "list.json": json.dumps([row, row]),
        "doc.jsonl": "\n".join(json.dumps({"doc": row, "id": at}) for at in range(2)),
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
        for path in (tmp_path / name, tmp_path / f"{name}.gz"):
            (task,) = tasks([f"{kind}={path}"], 5)
            assert task.prompts == (meant, meant)
            assert task.origin == path.name


def test_other_forms_of_tasks_are_read() -> None:
    read = KINDS["dialogue"].read
    assert read({"prompt": ["First?", "Second?"]}).turns == ("First?",)  # MT-Bench: the second is asked later
    assert read({"turns": [{"content": "a"}, {"content": "b"}, {"content": "c"}]}).turns == ("a", "b", "c")
    assert KINDS["summarisation"].read({"document": "d", "summary": "s"}).source == "d"
    assert KINDS["translation"].read({"source": "s", "language": "Danish"}).text == "Translate into Danish: s"


def test_lines_of_text_are_prompts(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("Once upon\n\nThere was\n")
    (task,) = tasks([f"continuation={tmp_path / 'lines.txt'}"], 5)
    assert [prompt.text for prompt in task.prompts] == ["Once upon", "There was"]


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"question": "2+2?"}\n')
    with pytest.raises(
        ArgumentError, match=r"row 1 of .*bad\.jsonl must have prompt for the task code; it has question"
    ):
        tasks([f"code={bad}"], 5)
    bad.write_text("not json\n")
    with pytest.raises(ArgumentError, match="--tasks must be"):
        tasks([f"code={bad}"], 5)
    bad.write_text("")
    with pytest.raises(ArgumentError, match="--tasks must hold at least one prompt"):
        tasks([f"code={bad}"], 5)
    with pytest.raises(ArgumentError, match="--tasks must be"):
        tasks([f"code={tmp_path / 'nowhere.jsonl'}"], 5)
    with pytest.raises(UnknownNameError, match="did you mean code"):
        tasks(["cod"], 5)
    with pytest.raises(UnknownNameError, match="no task is called 'gsm8k'"):
        tasks([f"gsm8k={bad}"], 5)
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(ArgumentError, match="can be given once"):
        tasks(["continuation", f"continuation={tmp_path / 'x.txt'}"], 5)


def test_without_the_library_a_public_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ArgumentError, match=r"pip install datasets, or give a local copy: arithmetic=FILE\.jsonl"):
        tasks(["gsm8k"], 5)


def test_the_library_is_asked_for_the_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fake of the library, which is not a dependency, with the published fields."""
    asked: list[Any] = []

    def load_dataset(place: str, configuration: str | None, *, split: str, streaming: bool) -> Any:
        asked.append((place, configuration, split, streaming))
        kind = next(kind for kind, found, *_ in HUB.values() if found == place)
        return (PUBLISHED[kind][0] for _ in range(100))

    library = ModuleType("datasets")
    library.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", library)
    found = tasks(list(HUB), 3)
    assert [len(task.prompts) for task in found] == [3] * len(HUB)
    assert asked == [(place, configuration, split, True) for _, place, configuration, split in HUB.values()]
