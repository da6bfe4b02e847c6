"""Problems as prompts, and whether an answer is right. Does not depend on models."""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from benchmarks.real.data import read_rows
from benchmarks.real.sandbox import PASSED, run_program
from spectr.errors import ArgumentError

__all__ = ["ARITHMETIC", "CODE", "TASKS", "Problem", "code_in", "is_right", "number_in", "problems", "program_of"]

TASKS = ("humaneval", "gsm8k", "gsm_symbolic", "chat")
CODE = ("humaneval",)
ARITHMETIC = ("gsm8k", "gsm_symbolic")
_SEED = 0  # of the order of the problems, so that the first ones are no special choice

_FENCE = re.compile(r"```[ \t]*(\w*)[^\n]*\n(.*?)(?:```|\Z)", re.DOTALL)
_NUMBER = re.compile(r"(?:(?<![\w)])-)?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?")  # "16-3" has no negative number
_MARKED = (
    re.compile(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}"),
    re.compile(r"####[^\w\n]*?(-?\d[\d,.]*)"),  # and not a heading such as "#### Step 1"
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt, and the row of its set, which has what an answer is compared with."""

    task: str
    prompt: str
    row: Mapping[str, Any]
    raw: bool = False  # continue plain text, without a chat template


def _humaneval(row: Mapping[str, Any]) -> str:
    ask = "Complete this Python function. Answer with the whole function in one ```python block."
    return f"{ask}\n\n```python\n{row['prompt'].strip()}\n```"


def _arithmetic(row: Mapping[str, Any]) -> str:
    return f"{row['question']}\n\nThink step by step, and end with a line of the form: #### number"


def _chat(row: Mapping[str, Any]) -> str:
    return str(row["text"] if "text" in row else row["prompt"])


_PROMPTS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "humaneval": _humaneval,
    "gsm8k": _arithmetic,
    "gsm_symbolic": _arithmetic,
    "chat": _chat,
}


def problems(task: str, folder: Path | None, say: Callable[[str], None] = lambda _: None) -> list[Problem]:
    """Return the problems of a task in a fixed random order."""
    found, rows = list[Problem](), read_rows(task, folder, say)
    for number, row in enumerate(rows, start=1):
        try:
            found.append(Problem(task, _PROMPTS[task](row), row, raw=bool(row.get("raw", False))))
        except (AttributeError, KeyError, TypeError) as error:
            raise ArgumentError(f"row {number} of task {task} lacks a field: {error!r}") from None
    random.Random(_SEED).shuffle(found)
    return found


def code_in(text: str, function: str) -> str:
    """Return the code block that defines the function; if there is none, the first block; if there is no block, the
    whole text. A block that was cut off counts.

    >>> code_in("Sure:\\n```python\\ndef f():\\n    return 1\\n```\\nDone.", "f")
    'def f():\\n    return 1\\n'
    """
    blocks = [match[2] for match in _FENCE.finditer(text)]
    return next((block for block in blocks if _defines(block, function)), blocks[0] if blocks else text)


def _defines(code: str, function: str) -> bool:
    return re.search(rf"^def {re.escape(function)}\(", code, re.MULTILINE) is not None


def program_of(row: Mapping[str, Any], text: str) -> str:
    """Return the program that tests an answer. The imports and helpers of the prompt stand before the answer's code;
    code that does not define the function is taken as its body."""
    function, prompt = str(row["entry_point"]), str(row["prompt"])
    code = code_in(text, function)
    before = prompt[: prompt.rindex(f"def {function}(")] if _defines(code, function) else prompt
    return f"{before}\n{code}\n\n{row['test']}\n\ncheck({function})\n"


def number_in(text: str) -> Fraction | None:
    r"""Return the number in the last \boxed{...}, else after the last ####, else the last number of the text.

    >>> number_in("First 3 + 4 = 7. So she has 1,250.50 dollars."), number_in("#### $18 (of 20)")
    (Fraction(2501, 2), Fraction(18, 1))
    """
    for marked in _MARKED:
        inside = [_NUMBER.findall(part) for part in marked.findall(text)]
        if inside and inside[-1]:
            return _value(inside[-1][0])
    found = _NUMBER.findall(text)
    return _value(found[-1]) if found else None


def _value(number: str) -> Fraction:
    return Fraction(number.replace(",", ""))


def is_right(problem: Problem, text: str) -> bool:
    """Return whether an answer is right; for code this runs the answer."""
    if problem.task in CODE:
        return run_program(program_of(problem.row, text)) == PASSED
    wanted = number_in(str(problem.row["answer"]))
    return wanted is not None and number_in(text) == wanted
