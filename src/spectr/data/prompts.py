"""Reads prompts: those that ship with spectr, in `prompts.json` next to this module, and those of a user's file."""

import gzip
import hashlib
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from spectr.errors import ArgumentError

__all__ = ["Prompt", "built_in", "read_prompts", "rows_in", "shipped_tasks", "split", "timing", "training"]

_TEXT = ("text", "prompt", "instruction", "question")
_FORMS = "a text file with one prompt a line, JSON with a list `prompts`, or .jsonl; any of them may be .gz"


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to answer, and its domain."""

    text: str
    domain: str = "all"
    raw: bool = False  # to be continued, without a chat template


@cache
def _shipped() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((files("spectr.data") / "prompts.json").read_text("utf-8"))
    return found


def built_in() -> tuple[Prompt, ...]:
    """Return a few prompts of several domains, for measurements without a file."""
    return tuple(Prompt(text, domain) for domain, texts in _shipped()["domains"].items() for text in texts)


def timing() -> list[str]:
    """Return three prompts for timings."""
    return list(_shipped()["timing"])


def shipped_tasks(kind: str) -> list[dict[str, Any]]:
    """Return the rows of a task of `spectr bench run`, with the fields that its kind needs."""
    return list(_shipped()["tasks"][kind])


def training(count: int, seed: int = 0) -> list[Prompt]:
    """Return `count` prompts for training a drafter; every pair of template and topic occurs once before any
    repeats."""
    parts = _shipped()["training"]
    pairs = [template.format(topic) for template in parts["templates"] for topic in parts["topics"]]
    pairs += [f"Write a {name} program that {task}." for name in parts["languages"] for task in parts["programs"]]
    random.Random(seed).shuffle(pairs)
    return [Prompt(pairs[at % len(pairs)]) for at in range(count)]


def split(prompts: list[Prompt], share: float = 0.02) -> tuple[list[Prompt], list[Prompt]]:
    """Split prompts into those to train on and those held out. The side of a prompt depends on its text only."""

    def held_out(prompt: Prompt) -> bool:
        return int.from_bytes(hashlib.sha256(prompt.text.encode()).digest()[:4], "big") < share * 2**32

    train, held = [p for p in prompts if not held_out(p)], [p for p in prompts if held_out(p)]
    return (train, held) if train and held else (prompts[1:] or prompts, prompts[:1])


def rows_in(path: Path, flag: str) -> list[Any]:
    """Return the rows of a prompts file: strings, or objects with fields. `flag` is named in error messages."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
        lines = [line for line in text.splitlines() if line.strip()]
        if kind == ".json":
            found = json.loads(text)
            rows = list(found["prompts"] if isinstance(found, dict) else found)
        else:
            rows = [json.loads(line) for line in lines] if kind == ".jsonl" else lines
    except (OSError, EOFError, TypeError, ValueError) as error:
        raise ArgumentError(f"{flag} must be {_FORMS}; {path}: {error}") from None
    except KeyError:
        raise ArgumentError(f"{flag} must be {_FORMS}; {path} has no list `prompts`") from None
    if not rows:
        raise ArgumentError(f"{flag} must hold at least one prompt, {path} holds none")
    return rows


def _prompt(row: Any, where: str) -> Prompt:
    fields = row if isinstance(row, Mapping) else {"text": row}
    text = next((fields[name] for name in _TEXT if name in fields), None)
    domain, raw = fields.get("domain", fields.get("kind", "all")), fields.get("raw", False)
    if not isinstance(text, str) or not text.strip() or not isinstance(domain, str) or not isinstance(raw, bool):
        raise ArgumentError(
            f"{where} must be a text, or an object with {', '.join(_TEXT[:-1])} or {_TEXT[-1]}, and optionally domain "
            "and raw (true: no chat template)"
        )
    return Prompt(text, domain, raw)


def read_prompts(path: Path, flag: str = "--prompts") -> list[Prompt]:
    """Return the prompts of a text file, a JSON file or JSON lines, each with its domain if the file has one."""
    return [_prompt(row, f"prompt {number} of {path}") for number, row in enumerate(rows_in(path, flag), start=1)]
