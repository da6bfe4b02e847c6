"""Scores of texts, each between 0 and 1 but the log-likelihood. What speculation must not change, within noise.

A text's score compares it with a reference, runs its code, or asks the target how likely it is.
"""

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable

import torch

from spectr.bench.tasks import Prompt
from spectr.requests import Request
from spectr.types import TreeModel

__all__ = ["SCORES", "chrf", "likelihood", "number", "passes", "rouge_l"]

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_END_OF_FUNCTION = re.compile(r"\n(?=[^\s)\]}])")  # the first line that is not indented
_SECONDS = 5


def _last_number(text: str) -> float | None:
    found = _NUMBER.findall(text)
    return float(found[-1].replace(",", "")) if found else None


def number(text: str, prompt: Prompt) -> float | None:
    """1 if the last number of the text is that of the reference.

    >>> number("So 2 + 2 is 4.", Prompt("", reference="4"))
    1.0
    """
    meant = _last_number(prompt.reference)
    return None if meant is None else float(_last_number(text) == meant)


def _common(one: list[str], other: list[str]) -> int:
    """Length of the longest common subsequence."""
    row = [0] * (len(other) + 1)
    for word in one:
        above = 0
        for at, found in enumerate(other, start=1):
            above, row[at] = row[at], above + 1 if word == found else max(row[at], row[at - 1])
    return row[-1]


def _f(precision: float, recall: float, beta: float = 1.0) -> float:
    weight = beta * beta
    return (1 + weight) * precision * recall / (weight * precision + recall) if precision + recall else 0.0


def rouge_l(text: str, prompt: Prompt) -> float | None:
    """F-score of the longest common subsequence of words.

    >>> round(rouge_l("the cat sat", Prompt("", reference="The cat slept")), 3)
    0.667
    """
    ours, meant = (re.findall(r"\w+", words.lower()) for words in (text, prompt.reference))
    if not meant:
        return None
    common = _common(ours, meant)
    return _f(common / max(1, len(ours)), common / len(meant))


def _grams(text: str, length: int) -> Counter[str]:
    signs = "".join(text.split())
    return Counter(signs[at : at + length] for at in range(len(signs) - length + 1))


def chrf(text: str, prompt: Prompt) -> float | None:
    """F₂ of character n-grams, their mean over n = 1 … 6, blanks aside.

    >>> chrf("Haus", Prompt("", reference="Haus"))
    1.0
    """
    if not prompt.reference:
        return None
    found = []
    for length in range(1, 7):
        ours, meant = _grams(text, length), _grams(prompt.reference, length)
        if meant:
            shared = sum((ours & meant).values())
            found.append(_f(shared / max(1, sum(ours.values())), shared / sum(meant.values()), beta=2.0))
    return sum(found) / len(found)


def passes(text: str, prompt: Prompt) -> float | None:
    """1 if the completed function passes its checks, in a process of its own that has a few seconds. That process may
    do whatever the text says: run it only where that is no harm."""
    if not prompt.test or not prompt.entry:
        return None
    body = _END_OF_FUNCTION.split(text, maxsplit=1)[0]
    program = f"{prompt.text}{body}\n\n{prompt.test}\ncheck({prompt.entry})\n"
    with tempfile.TemporaryDirectory() as folder:
        try:
            ran = subprocess.run(
                [sys.executable, "-I", "-c", program], cwd=folder, capture_output=True, timeout=_SECONDS, check=False
            )
        except (subprocess.TimeoutExpired, ValueError):  # a text may hold a null byte
            return 0.0
    return float(ran.returncode == 0)


@torch.no_grad()
def likelihood(target: TreeModel, request: Request, tokens: list[int]) -> float | None:
    """Mean log-probability of the text's tokens under the target, before any policy, in one call of a chain."""
    if not tokens:
        return None
    prompt, fed = list(request.prompt), [request.prompt[-1], *tokens[:-1]]
    session = target.open(1, len(prompt) + len(fed))
    if request.source is not None:
        target.encode(session, [list(request.source)])
    target.read(session, [prompt[:-1]])
    device = target.device
    places = torch.arange(len(fed), device=device)
    logits = target.score(session, torch.tensor([fed], device=device), (places[:, None] >= places)[None], places[None])
    law = logits[0].float().log_softmax(-1)
    return float(law.gather(-1, torch.tensor(tokens, device=device)[:, None]).mean())


SCORES: dict[str, Callable[[str, Prompt], float | None]] = {
    "number": number,
    "rouge_l": rouge_l,
    "chrf": chrf,
    "passes": passes,
}
"""Those that look at a text alone; `likelihood` asks the target."""
