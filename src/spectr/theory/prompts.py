"""Prompts by domain for measuring laws on real text: from a file, or a few of our own. Knows no model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spectr.errors import ArgumentError

__all__ = ["BUILT_IN", "Prompt", "read_prompts"]


@dataclass(frozen=True, slots=True)
class Prompt:
    """A text to answer, and what kind of text it is."""

    domain: str
    text: str


_TEXTS = {
    "prose": (
        "Describe a harbour at dawn in one paragraph.",
        "Continue the story: The lighthouse keeper had not spoken to anyone for a year when the boat came.",
        "Write about the first snow in a mountain village.",
        "Tell how a clockmaker lost his favourite clock.",
    ),
    "code": (
        "Write a Python function that merges two sorted lists.",
        "Show a SQL query for the five customers with the highest total of orders.",
        "Write a shell script that renames all .txt files to .md.",
        "Explain and fix: for i in range(len(items)): del items[i]",
    ),
    "chat": (
        "I cannot sleep before exams. What can I do tonight?",
        "Which bicycle should I buy for a hilly town, and why?",
        "My colleague takes credit for my work. How do I bring it up?",
        "Plan a birthday party for ten children in a small flat.",
    ),
    "translation": (
        "Translate into French: The train to the coast leaves at nine, and the museum is closed on Mondays.",
        "Translate into German: Please bring your own cup, we have run out of clean ones.",
        "Translate into Spanish: She has lived in this house since her grandmother gave her the keys.",
        "Translate into English: Le marché est ouvert tous les matins, sauf quand il pleut.",
    ),
}
BUILT_IN: tuple[Prompt, ...] = tuple(Prompt(domain, text) for domain, texts in _TEXTS.items() for text in texts)


def _prompt(entry: Any) -> Prompt:
    if isinstance(entry, str):
        return Prompt("all", entry)
    domain = entry.get("domain", entry.get("kind", "all"))
    if not isinstance(domain, str) or not isinstance(entry["text"], str):
        raise TypeError(f"a prompt is a text with a kind, got {entry!r}")
    return Prompt(domain, entry["text"])


def read_prompts(path: Path) -> list[Prompt]:
    """Prompts of a JSON file with a list `prompts`, of texts or of objects with `text` and `kind` (or `domain`); or
    of a text file, one a line."""
    try:
        text = path.read_text(encoding="utf-8")
        entries = json.loads(text)["prompts"] if path.suffix == ".json" else text.splitlines()
        found = [_prompt(entry) for entry in entries]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ArgumentError(f"--prompts must be a text file, or JSON with a list `prompts`: {path}: {error}") from None
    found = [prompt for prompt in found if prompt.text.strip()]
    if not found:
        raise ArgumentError(f"--prompts must hold at least one prompt, {path} holds none")
    return found
