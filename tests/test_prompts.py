"""Prompts that ship with spectr, and prompts of files in every form."""

import gzip
import json
from pathlib import Path

import pytest

from spectr.data.prompts import Prompt, built_in, read_prompts, split, timing, training
from spectr.errors import ArgumentError


def test_the_shipped_prompts() -> None:
    assert {prompt.domain for prompt in built_in()} == {"prose", "code", "chat", "translation"}
    assert len(set(built_in())) == 16
    assert len(timing()) == 3
    assert len(set(training(2000))) == 2000
    assert training(5) == training(5) != training(5, seed=1)


def test_held_out_prompts_are_no_training_prompts() -> None:
    train, held = split(training(1000))
    assert set(train).isdisjoint(held)
    assert 5 < len(held) < 60
    assert set(split(training(400))[1]) <= set(held)  # the split of a prompt does not depend on the list


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines.txt", "one\n\ntwo\n"),
        ("list.json", '["one", "two"]'),
        ("prompts.json", '{"prompts": [{"prompt": "one"}, {"text": "two"}]}'),
        ("rows.jsonl", '{"question": "one"}\n\n"two"\n'),
    ],
)
def test_every_form_of_file(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(text.encode()))
    for path in (tmp_path / name, tmp_path / f"{name}.gz"):
        assert read_prompts(path) == [Prompt("one"), Prompt("two")]


def test_domains(tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    file.write_text(json.dumps({"prompts": [{"kind": "code", "text": "x"}, {"domain": "prose", "text": "y"}, "z"]}))
    assert read_prompts(file) == [Prompt("x", "code"), Prompt("y", "prose"), Prompt("z", "all")]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"prompts": ["x", {"kind": 3, "text": "x"}]}', "prompt 2 of .* must be a text"),
        ('{"prompts": [7]}', "prompt 1 of .* must be a text"),
        ('{"prompts": [{"kind": "a"}]}', "an object with text, prompt, instruction or question"),
        ('["x", " "]', "prompt 2 of .* must be a text"),
        ('{"texts": ["x"]}', "has no list `prompts`"),
        ("{", "--data must be a text file with one prompt a line"),
        ("7", "--data must be a text file with one prompt a line"),
        ("[]", "--data must hold at least one prompt"),
    ],
)
def test_bad_prompt_files_are_refused_with_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    file = tmp_path / "prompts.json"
    file.write_text(text)
    with pytest.raises(ArgumentError, match=sentence):
        read_prompts(file, "--data")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    lines = tmp_path / "prompts.txt"
    lines.write_bytes(b"\xff\xfe")
    with pytest.raises(ArgumentError, match="--prompts must be"):
        read_prompts(lines)
    lines.write_text("\n")
    with pytest.raises(ArgumentError, match="at least one prompt"):
        read_prompts(lines)
    with pytest.raises(ArgumentError, match="--prompts must be"):
        read_prompts(tmp_path / "nowhere.txt")
    (tmp_path / "plain.txt.gz").write_text("not compressed")
    with pytest.raises(ArgumentError, match="--prompts must be"):
        read_prompts(tmp_path / "plain.txt.gz")
