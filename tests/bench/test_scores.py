"""Scores: right and wrong texts, and the log-likelihood against transformers' own forward."""

import pytest
import torch

import spectr
from spectr.bench.scores import chrf, likelihood, number, passes, rouge_l
from spectr.bench.tasks import Prompt, tasks
from spectr.requests import Request

BODIES = {
    "running_maximum": (
        "    found, best = [], None\n    for x in numbers:\n        best = x if best is None else max(best, x)\n"
        "        found.append(best)\n    return found\n"
    ),
    "count_vowels": "    return sum(sign in 'aeiou' for sign in text.lower())\n",
    "merge_sorted": "    return sorted(left + right)\n",
    "is_leap": "    return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)\n",
    "word_lengths": "    return {word: len(word) for word in sentence.split()}\n",
    "transpose": "    return [list(column) for column in zip(*rows)]\n",
}


@pytest.mark.parametrize("prompt", tasks(["code"], 6)[0].prompts, ids=lambda prompt: prompt.entry)
def test_the_shipped_functions_can_be_completed(prompt: Prompt) -> None:
    body = BODIES[prompt.entry]
    assert passes(f"{body}\nThat was easy: it ends here.", prompt) == 1  # what comes after the function is cut
    assert passes("    return None\n", prompt) == 0


def test_code_that_does_harm_to_nobody_but_itself() -> None:
    prompt = Prompt("def f():\n", test="def check(f):\n    assert f() == 1\n", entry="f")
    assert passes("    return 1", prompt) == 1
    assert passes("    return (", prompt) == 0
    assert passes("    return '\0'", prompt) == 0
    assert passes("    raise SystemExit(3)", prompt) == 0
    assert passes("    return 1", Prompt("def f():\n")) is None


def test_code_that_never_ends_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spectr.bench.scores._SECONDS", 0.5)
    prompt = Prompt("def f():\n", test="def check(f):\n    f()\n", entry="f")
    assert passes("    while True: pass", prompt) == 0


def test_numbers() -> None:
    assert number("She has 1,234.50 euros", Prompt("", reference="#### 1234.5")) == 1
    assert number("first 5, then 6", Prompt("", reference="5")) == 0
    assert number("none at all", Prompt("", reference="5")) == 0
    assert number("5", Prompt("")) is None


def test_overlaps() -> None:
    meant = Prompt("", reference="the bridge was closed on Friday")
    assert rouge_l("The bridge was closed on Friday!", meant) == 1
    assert rouge_l("the bridge closed", meant) == pytest.approx(2 * 1 * 0.5 / 1.5)
    assert rouge_l("", meant) == 0
    assert rouge_l("x", Prompt("")) is None
    assert chrf("the bridge was closed on Friday", meant) == 1
    assert chrf("xxzz", meant) == 0
    assert 0 < (chrf("the bridge is closed", meant) or 0) < 1
    # by hand: "ab" against "abc", mean over n = 1, 2, 3 of F2 with precision 1, 1, 0 and recall 2/3, 1/2, 0
    assert chrf("ab", Prompt("", reference="abc")) == pytest.approx((5 * (2 / 3) / (4 + 2 / 3) + 5 * 0.5 / 4.5) / 3)


def test_likelihood_is_that_of_the_model(target: str, translator: str) -> None:
    lm = spectr.load(target, "none")
    prompt, tokens = lm.encode("one two three"), [5, 9, 40, 41, 1]
    net = lm.opened.target.model
    with torch.no_grad():
        law = net(torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    meant = float(law.gather(-1, torch.tensor(tokens)[:, None]).mean())
    assert likelihood(lm.engine.target, Request(prompt), tokens) == pytest.approx(meant, abs=1e-4)
    assert likelihood(lm.engine.target, Request(prompt), []) is None
    other = spectr.load(translator, "none")
    with torch.no_grad():
        logits = other.opened.target.model(torch.tensor([prompt]), decoder_input_ids=torch.tensor([[0, *tokens[:-1]]]))
    law = logits.logits[0].log_softmax(-1)
    meant = float(law.gather(-1, torch.tensor(tokens)[:, None]).mean())
    assert likelihood(other.engine.target, Request([0], source=prompt), tokens) == pytest.approx(meant, abs=1e-4)
