"""Two small tasks for lm-eval, and their scores computed in this process."""

import json
import random
from pathlib import Path
from typing import Any

from spectr.lm import LM

__all__ = ["in_process", "write_tasks"]

_CHOICE = """task: tiny_choice
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: multiple_choice
doc_to_text: "{{{{text}}}}"
doc_to_choice: choices
doc_to_target: answer
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""
_REPEAT = """task: tiny_repeat
dataset_path: json
dataset_kwargs:
  data_files: {data}
test_split: train
output_type: generate_until
doc_to_text: "{{{{text}}}}"
doc_to_target: "{{{{target}}}}"
generation_kwargs:
  until: ["</s>", "\\n"]
  max_gen_toks: 8
  temperature: 0.0
metric_list:
  - metric: exact_match
    aggregation: mean
    higher_is_better: true
"""


def write_tasks(folder: Path, words: list[str], lm: LM) -> None:
    """Write the data and descriptions of both tasks.

    Every second target is the text that the model will generate, so that scores are not 0.
    """
    rng = random.Random(0)
    rows = [
        {"text": " ".join(rng.choices(words, k=5)), "choices": rng.sample(sorted(set(words)), 3),
         "answer": rng.randrange(3)}
        for _ in range(24)
    ]  # fmt: skip
    (folder / "choice.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "tiny_choice.yaml").write_text(_CHOICE.format(data=folder / "choice.jsonl"))
    (folder / "tiny_repeat.yaml").write_text(_REPEAT.format(data=folder / "repeat.jsonl"))
    (folder / "repeat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in _repeats(rng, words, lm)))


def _repeats(rng: random.Random, words: list[str], lm: LM) -> list[dict[str, str]]:
    texts = [" ".join(rng.choices(words, k=6)) for _ in range(12)]
    return [{"text": text, "target": _said(lm, text) if at % 2 else "nothing"} for at, text in enumerate(texts)]


def _said(lm: LM, text: str) -> str:
    return lm.generate(text, 8, raw=True, temperature=0, stop=["</s>", "\n"]).text


def _rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def in_process(lm: LM, folder: Path) -> dict[str, float]:
    """Compute the scores in this process, with the same tokens."""
    right = [_choice(lm, row) == row["answer"] for row in _rows(folder / "choice.jsonl")]
    same = [_said(lm, row["text"]) == row["target"] for row in _rows(folder / "repeat.jsonl")]
    return {"tiny_choice": sum(right) / len(right), "tiny_repeat": sum(same) / len(same)}


def _choice(lm: LM, row: dict[str, Any]) -> int:
    """Return the index of the most likely continuation."""
    scores = []
    for choice in row["choices"]:
        start, whole = (lm.encode(text, raw=True) for text in (row["text"], f"{row['text']} {choice}"))
        found = lm.generate(whole, 1, prompt_logprobs=True, temperature=0).prompt_logprobs
        assert found is not None
        scores.append(sum(entry.logprob for entry in found[len(start) :] if entry is not None))
    return scores.index(max(scores))
