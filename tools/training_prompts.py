"""Writes prompts for `spectr train --prompts`: questions, tasks, passages, sums and code about many topics.

    python tools/training_prompts.py --nouns nouns.txt --verbs verbs.txt --texts texts/ --code src/ out.jsonl
    python tools/training_prompts.py … --mix about=0.2,complete=0.3,write_code=0.3,sums=0.2 out.jsonl

Word lists have one word a line. `--texts` is a folder of text files, whose paragraphs become passages to summarise,
to explain, or to continue without a chat template; `--code` is a folder of Python files, whose functions become code to
explain or to complete.
"""

import argparse
import ast
import json
import random
import re
from collections.abc import Callable, Iterator
from pathlib import Path

_ABOUT = (
    "What is {a}, and what is it used for?", "Explain {a} to somebody who has never seen one.",
    "Write a poem about {a}.",
    "Write a short story about {a} and {b}.", "Give me {n} facts about {a}.", "How is {a} made?",
    "Compare {a} and {b}.",
    "What should I know before I buy {a}?", "Write a letter of complaint about {a}.", "Describe {a} in one paragraph.",
    "Tell me a joke about {a}.", "What is the history of {a}?", "Give {n} reasons why {a} is better than {b}.",
    "Write an advertisement for {a}.", "Invent a game that needs {a} and {b}, and explain its rules.",
    "What could go wrong with {a}?", "Write a dialogue between {a} and {b}.", "List {n} questions about {a}.",
    "Is {a} dangerous? Explain.", "Write a haiku about {a}, then one about {b}.",
    "How would you draw {a}, step by step?",
    "Write a recipe whose secret is {a}.", "Plan a day trip that has to do with {a}.", "Define {a} in two sentences.",
    "My friend is obsessed with {a}. What could I give them as a present?", "Translate into Spanish: I have found {a}.",
    "Write a news report in which {a} causes a traffic jam.", "Who invented {a}, and why?", "Write a riddle about {a}.",
    "Write a speech for the opening of a museum of {a}.", "Make a table of pros and cons of {a}.",
    "Why do people like {a}?",
    "Write a polite e-mail to ask a colleague about {a}.", "Tell a fairy tale with {a}, {b} and a talking door.",
    "What is the difference between {a} and {b}?", "Write JSON that describes {a} with five fields.",
    "Continue: \"Nobody in the village had ever seen {a} before, and\"", "Suggest {n} names for a shop that sells {a}.",
    "I am writing an essay about {a}. Give me an outline.", "Write a review of {a} with three stars out of five.",
    "Pretend to be {a} and tell me about your day.", "Teach me five words about {a} in French.",
)  # fmt: skip
_DOING = (
    "How do I {v} {a}?", "Explain step by step how to {v} {a} at home.", "I tried to {v} {a}, and it failed. What now?",
    "Should I {v} {a} or {b} first?", "Write a checklist for people who {v} {a} every day.",
    "Write instructions that help a child {v} {a} safely.", "Is it legal to {v} {a}? Explain both sides.",
    "Write a message to a neighbour who would like to {v} {a} at night.", "What happens if you {v} {a} too often?",
)  # fmt: skip
_PASSAGE = (
    "Summarise in two sentences: {p}", "Explain in plain words: {p}", "What is the main point of this text?\n\n{p}",
    "Rewrite this text for children:\n\n{p}", "Make bullet points out of this: {p}", "Continue this text:\n\n{p}",
    "Give this text a title and say why it fits:\n\n{p}", "Who might have written this, and for whom?\n\n{p}",
    "{p}\n\nWhat follows from this?", "Correct the spelling and the style:\n\n{p}", "Write a reply to this:\n\n{p}",
    "List the names and the most important words of this text: {p}", "Ask three questions about this text:\n\n{p}",
)  # fmt: skip
_CODE = (
    "Explain what this function does:\n\n```python\n{p}\n```", "Write a test for this function:\n\n```python\n{p}\n```",
    "Write a docstring for this function:\n\n```python\n{p}\n```", "Find a bug, or say that there is none:\n\n{p}",
    "Rewrite this in JavaScript:\n\n```python\n{p}\n```", "Make this code simpler:\n\n```python\n{p}\n```",
)  # fmt: skip
_WRITE_CODE = (
    "Write a Python function `{name}` that does the following: {doc}", "Implement `{name}` in {language}: {doc}",
    "Write a class in {language} for {a} with three methods.", "Write a SQL table for {a} and {b}, and two queries.",
    "Write a {language} program that counts how often each {a} occurs in a list.",
    "Write a regular expression that finds {a} in a text, and explain it.",
)  # fmt: skip
_COMPLETE = (
    "Complete this Python function. Answer with one code block.\n\n```python\n{p}\n```",
    "Write the body of this function:\n\n```python\n{p}\n```", "{p}\n\nFinish this function and explain it briefly.",
    "Implement this function and add three assertions that test it:\n\n```python\n{p}\n```",
)  # fmt: skip
_SUMS = (
    "{name} has {x} {a}s and buys {y} more every week for {d} weeks. Then {name} gives away half of them. How many are "
    "left? Think step by step.",
    "A shop sells {a}s for {x} euros each. On Monday it sells {y}, on Tuesday twice as many, and on Wednesday {d} "
    "fewer than on Monday. How much money does it take in? Give the answer as a number at the end.",
    "{name} reads {y} pages a day. A book has {z} pages. After how many days is the book finished, and how many pages "
    "are read on the last day?",
    "{name} earns {x} euros an hour, works {d} hours a day for {h} days, and spends {y} euros. How much is saved?",
    "Solve this problem step by step: {x} boxes have {d} {a}s each. {y} of the {a}s are broken. What percentage is not "
    "broken?",
    "{x} {a}s cost {y} euros each. I pay with {z} euros. How much is left?", "What is {x} × {y}? Show the calculation.",
    "A train leaves at {h}:{m:02d} and takes {y} minutes. When does it arrive?", "Is {z} divisible by {x}? Explain.",
    "{x} friends share {z} {a}s equally. How many does each get, and how many are left?",
    "Convert {z} minutes to hours.",
    "A {a} is reduced by {x} % from {z} euros. What does it cost now?", "Solve for x: {x}x + {y} = {z}.",
    "The sides of a rectangle are {x} cm and {y} cm. Compute its area and perimeter.", "List the primes up to {x}.",
)  # fmt: skip
_NAMES = ("Anna", "Ben", "Chen", "Dora", "Emil", "Fatima", "Grace", "Hugo", "Ines", "Jamal", "Kofi", "Lena")
_LANGUAGES = ("Python", "JavaScript", "C", "Java", "Go", "Rust", "Bash", "TypeScript")


def _paragraphs(folder: Path) -> list[str]:
    """Return the paragraphs of 30 to 250 words of all text files, with single spaces."""
    found = list[str]()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix in ("", ".txt", ".md", ".rst"):
            parts = re.split(r"\n\s*\n|\n%\n", path.read_text("utf-8", errors="ignore"))
            found += [" ".join(part.split()) for part in parts]
    return [part for part in found if 30 <= len(part.split()) <= 250 and part.isascii()]


def _functions(folder: Path) -> Iterator[tuple[str, str, str]]:
    """Yield name, first sentence of the docstring and source of the short functions of all Python files."""
    for path in sorted(folder.rglob("*.py")):
        try:
            source = path.read_text("utf-8")
            tree = ast.parse(source)
        except (OSError, SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef) and (doc := ast.get_docstring(node)):
                text = ast.get_source_segment(source, node) or ""
                if 5 <= len(text.splitlines()) <= 40 and len(text) < 1600 and text.isascii():
                    yield node.name, " ".join(doc.split("\n\n")[0].split()), text


def _article(word: str) -> str:
    return f"{'an' if word[0] in 'aeiou' else 'a'} {word}"


class _Maker:
    """Draws prompts of all kinds."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.draw = random.Random(options.seed)
        self.nouns, self.verbs = options.nouns.read_text().split(), options.verbs.read_text().split()
        self.passages = _paragraphs(options.texts)
        self.functions = list(_functions(options.code))
        self.shares = options.mix

    def one(self) -> dict[str, object]:
        """Return a prompt of a random kind."""
        kind = self.draw.choices(list(self.shares), list(self.shares.values()))[0]
        make: Callable[[], dict[str, object]] = getattr(self, kind)
        return make()

    def words(self) -> dict[str, str]:
        first, second = self.draw.sample(self.nouns, 2)
        return {"a": _article(first), "b": _article(second), "n": str(self.draw.randint(3, 7))}

    def about(self) -> dict[str, object]:
        return {"text": self.draw.choice(_ABOUT).format(**self.words()), "domain": "about"}

    def doing(self) -> dict[str, object]:
        text = self.draw.choice(_DOING).format(v=self.draw.choice(self.verbs), **self.words())
        return {"text": text, "domain": "doing"}

    def passage(self) -> dict[str, object]:
        return {"text": self.draw.choice(_PASSAGE).format(p=self.draw.choice(self.passages)), "domain": "passage"}

    def continued(self) -> dict[str, object]:
        words = " ".join(self.draw.sample(self.passages, 2)).split()
        return {"text": " ".join(words[: self.draw.randint(8, 200)]), "domain": "continued", "raw": True}

    def code(self) -> dict[str, object]:
        return {"text": self.draw.choice(_CODE).format(p=self.draw.choice(self.functions)[2]), "domain": "code"}

    def code_continued(self) -> dict[str, object]:
        lines = "\n\n".join(text for *_, text in self.draw.sample(self.functions, 2)).splitlines()
        return {"text": "\n".join(lines[: self.draw.randint(2, 30)]), "domain": "code", "raw": self.draw.random() < 0.6}

    def complete(self) -> dict[str, object]:
        source = self.draw.choice(self.functions)[2]
        node = ast.parse(source.strip()).body[0]
        assert isinstance(node, ast.FunctionDef)
        head = "\n".join(source.splitlines()[: node.body[0].end_lineno])  # the signature and the docstring
        return {"text": self.draw.choice(_COMPLETE).format(p=head), "domain": "code"}

    def write_code(self) -> dict[str, object]:
        name, doc, _ = self.draw.choice(self.functions)
        language, words = self.draw.choice(_LANGUAGES), {**self.words(), "a": self.draw.choice(self.nouns)}
        text = self.draw.choice(_WRITE_CODE).format(name=name, doc=doc, language=language, **words)
        return {"text": text, "domain": "code"}

    def sums(self) -> dict[str, object]:
        x, y, z = self.draw.randint(2, 30), self.draw.randint(2, 150), self.draw.randint(50, 900)
        at: dict[str, object] = {"h": self.draw.randint(0, 23), "m": self.draw.randint(0, 59)}
        at |= {"d": self.draw.randint(2, 9), "a": self.draw.choice(self.nouns), "name": self.draw.choice(_NAMES)}
        return {"text": self.draw.choice(_SUMS).format(x=x, y=y, z=z, **at), "domain": "sums"}


_MIX = {
    "about": 0.40, "doing": 0.08, "passage": 0.14, "continued": 0.14, "code": 0.06, "code_continued": 0.06,
    "write_code": 0.06, "sums": 0.06, "complete": 0.0,
}  # fmt: skip


def _mix(text: str) -> dict[str, float]:
    """Parse shares of the kinds, such as "about=0.5,sums=0.5"."""
    shares = {kind: float(share) for kind, _, share in (part.partition("=") for part in text.split(","))}
    if unknown := shares.keys() - _MIX.keys():
        raise argparse.ArgumentTypeError(f"kinds must be among {', '.join(_MIX)}, got {', '.join(sorted(unknown))}")
    return shares


def main() -> None:
    """Write the prompts, without repetitions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("nouns", "verbs", "texts", "code"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--mix", type=_mix, default=_MIX, help="shares of the kinds of prompts")
    parser.add_argument("--count", type=int, default=40_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    maker, made = _Maker(options), dict[str, dict[str, object]]()
    while len(made) < options.count:
        row = maker.one()
        made[str(row["text"])] = row
    options.out.write_text("".join(json.dumps(row) + "\n" for row in made.values()), encoding="utf-8")
    print(f"{len(made):,} prompts from {len(maker.passages):,} passages and {len(maker.functions):,} functions")


if __name__ == "__main__":
    main()
