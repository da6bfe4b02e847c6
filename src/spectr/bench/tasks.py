"""Tasks of a benchmark: shipped prompts, local files, or public sets through the `datasets` library.

A kind of task accepts the field names of the public sets of its kind, so that their files can be read unchanged.
Nothing here depends on a model; `writers` converts prompts to tokens.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from spectr.data.prompts import rows_in, shipped_tasks
from spectr.errors import ArgumentError, SpectrError, UnknownNameError
from spectr.registry import nearest

__all__ = ["HUB", "KINDS", "Prompt", "Task", "tasks"]

Row = Mapping[str, Any]

_LANGUAGES = {"de": "German", "fr": "French", "cs": "Czech", "ro": "Romanian", "ru": "Russian", "fi": "Finnish"}
_WORDS = 32  # maximum number of words of a prompt that is the first half of a text


@dataclass(frozen=True, slots=True)
class Prompt:
    """The prompt of one text."""

    text: str
    source: str = ""  # the input of an encoder-decoder model, if it is not `text`
    turns: tuple[str, ...] = ()  # a conversation that begins with the user


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of task."""

    read: Callable[[Row], Prompt]
    fields: str  # description of the fields that its rows must have
    raw: bool = False  # continue plain text, without a chat template


@dataclass(frozen=True, slots=True)
class Task:
    """Prompts of one kind."""

    name: str
    kind: str
    prompts: tuple[Prompt, ...]
    origin: str  # "shipped", a file's name, or a set's


def _continuation(row: Row) -> Prompt:
    if "prompt" in row:
        return Prompt(row["prompt"])
    words = row["text"].split()
    return Prompt(" ".join(words[: max(1, min(_WORDS, len(words) // 2))]))


def _code(row: Row) -> Prompt:
    return Prompt(row["prompt"])


def _summarisation(row: Row) -> Prompt:
    document = row["document"] if "document" in row else row["article"]
    return Prompt(f"Summarise the following report in one sentence.\n\n{document}", source=document)


def _translation(row: Row) -> Prompt:
    if "translation" in row:  # as in WMT: one text for each language
        source = row["translation"]["en"]
        code = next(name for name in row["translation"] if name != "en")
        language = _LANGUAGES.get(code, code)
    else:
        source, language = row["source"], row["language"]
    return Prompt(f"Translate into {language}: {source}", source=source)


def _arithmetic(row: Row) -> Prompt:
    ask = f"{row['question']}\nExplain your steps, and end with the number that is asked for."
    return Prompt(ask, source=row["question"])


def _dialogue(row: Row) -> Prompt:
    if "conversations" in row:  # as in ShareGPT: up to the first answer
        turns = [row["conversations"][0]["value"]]
    elif "turns" in row:
        turns = [turn["content"] if isinstance(turn, dict) else turn for turn in row["turns"]]
    else:
        turns = [row["prompt"]] if isinstance(row["prompt"], str) else list(row["prompt"])
    turns = turns[: len(turns) - (len(turns) + 1) % 2]  # the user speaks last
    return Prompt(turns[-1], turns=tuple(turns))


KINDS = {
    "continuation": Kind(_continuation, "prompt, or text", raw=True),
    "code": Kind(_code, "prompt", raw=True),
    "summarisation": Kind(_summarisation, "document, or article"),
    "translation": Kind(_translation, "source and language, or translation with en and another"),
    "arithmetic": Kind(_arithmetic, "question"),
    "dialogue": Kind(_dialogue, "turns, prompt, or conversations"),
}

HUB: dict[str, tuple[str, str, str | None, str]] = {
    "lm1b": ("continuation", "billion-word-benchmark/lm1b", None, "test"),
    "humaneval": ("code", "openai/openai_humaneval", None, "test"),
    "xsum": ("summarisation", "EdinburghNLP/xsum", None, "test"),
    "cnn_dailymail": ("summarisation", "abisee/cnn_dailymail", "3.0.0", "test"),
    "wmt14": ("translation", "wmt/wmt14", "de-en", "test"),
    "gsm8k": ("arithmetic", "openai/gsm8k", "main", "test"),
    "mt_bench": ("dialogue", "HuggingFaceH4/mt_bench_prompts", None, "train"),
}
"""Public sets: the kind, and the arguments of the `datasets` library (set, configuration, split)."""


def _prompts(kind: str, rows: Iterable[Any], count: int, where: str) -> tuple[Prompt, ...]:
    """Convert the first `count` rows to prompts; a row may be nested in a field `doc`, as in evaluation harnesses."""
    found = []
    for number, row in enumerate(islice(rows, count), start=1):
        fields = row.get("doc", row) if isinstance(row, Mapping) else {"prompt": row, "text": row}
        try:
            found.append(KINDS[kind].read(fields))
        except (KeyError, TypeError, AttributeError, IndexError, StopIteration):
            raise ArgumentError(
                f"row {number} of {where} must have {KINDS[kind].fields} for the task {kind}; it has "
                f"{', '.join(map(str, fields)) if isinstance(fields, Mapping) else type(fields).__name__}"
            ) from None
    if not found:
        raise ArgumentError(f"{where} must contain at least one prompt, and contains none")
    return tuple(found)


def _from_hub(name: str, count: int) -> tuple[Prompt, ...]:
    kind, place, configuration, split = HUB[name]
    try:
        import datasets  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        raise ArgumentError(
            f"task {name!r} is read through the `datasets` library, which is not installed: pip install datasets, or "
            f"give a local copy: {kind}=FILE.jsonl"
        ) from None
    try:
        rows = datasets.load_dataset(place, configuration, split=split, streaming=True)
    except Exception as error:  # any error of the library or the network
        raise SpectrError(f"{place} could not be loaded: {error}; give a local copy: {kind}=FILE.jsonl") from error
    return _prompts(kind, rows, count, place)


def _task(name: str, count: int) -> Task:
    kind, equals, path = name.partition("=")
    if kind not in KINDS and not (kind in HUB and not equals):
        raise UnknownNameError(f"no task is called {kind!r}; {nearest(kind, [*KINDS, *HUB])}; or KIND=FILE.jsonl")
    if kind in HUB:
        return Task(kind, HUB[kind][0], _from_hub(kind, count), HUB[kind][1])
    if equals:
        return Task(kind, kind, _prompts(kind, rows_in(Path(path), "--tasks"), count, path), Path(path).name)
    return Task(kind, kind, _prompts(kind, shipped_tasks(kind), count, kind), "shipped")


def tasks(names: Sequence[str], count: int) -> tuple[Task, ...]:
    """Return tasks by name with at most `count` prompts each: a kind (shipped prompts), a public set, or KIND=FILE.

    >>> [task.name for task in tasks(["code", "arithmetic"], 2)]
    ['code', 'arithmetic']
    """
    found = tuple(_task(name, count) for name in dict.fromkeys(names))
    if len({task.name for task in found}) < len(found):
        raise ArgumentError(f"each kind of task can be given once, got {', '.join(names)}; put the rows into one file")
    return found
