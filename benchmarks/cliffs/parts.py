"""The comparisons: settings, lookup, predictions, and `auto` for a model without a trained drafter."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from benchmarks.cliffs.compare import Case, compared
from benchmarks.cliffs.edits import EDITS
from benchmarks.cliffs.order import Order, Trial
from benchmarks.record import Found
from spectr.bench.tasks import KINDS, tasks
from spectr.bench.writers import requests as asked_requests
from spectr.data.prompts import built_in
from spectr.draft import drafter as named_drafter
from spectr.draft.options import AUTO, DraftOptions
from spectr.engine import Engine, Request
from spectr.lm import LM
from spectr.pairing import pair
from spectr.policy import Policy
from spectr.types import Drafter
from spectr.verify import rule as named_rule

__all__ = ["Subject", "auto", "lookup", "prediction", "settings"]

_HOT = 4.0  # a temperature at which tokens hardly ever repeat


@dataclass(frozen=True, slots=True)
class Subject:
    """A loaded model with its drafter, and the settings of the run."""

    lm: LM
    order: Order

    @property
    def trial(self) -> Trial:
        """The sizes of the comparisons."""
        return self.order.trial

    def engine(self, drafter: Drafter) -> Engine:
        """Make an engine that ignores stop tokens, so that all texts have the same length."""
        return Engine(self.lm.opened.target, drafter, named_rule("race"))

    def request(self, prompt: Sequence[int], number: int, policy: Policy, **more: Any) -> Request:
        """Make the request of round `number`."""
        return Request(prompt, self.trial.seed + number, self.trial.tokens, policy, **more)


def settings(subject: Subject) -> Iterator[Found]:
    """Compare requests with several settings to the default settings, with the default drafter and without one."""
    cases = list[Case]()
    for way, drafter in (("drafts", subject.lm.engine.drafter), ("plain", named_drafter("none"))):
        cases += _of_settings(subject, way, subject.engine(drafter))
    yield from compared(cases, subject.trial.rounds)


def _of_settings(subject: Subject, way: str, engine: Engine) -> list[Case]:
    prompts = [subject.lm.encode(prompt.text) for prompt in built_in()]
    usual, steady = f"{way}: usual settings", f"{way}: temperature 0.7"

    def case(name: str, against: str | None, policy: Callable[[int], Policy], **more: Any) -> Case:
        def request(number: int) -> Request:
            return subject.request(prompts[number % len(prompts)], number, policy(number), **more)

        return Case(name, engine, request, against)

    filters, penalties = Policy(top_p=0.9, top_k=50), Policy(repetition_penalty=1.1, frequency_penalty=0.2)
    return [
        case(usual, None, lambda _: Policy()),
        case(f"{way}: top-p and top-k", usual, lambda _: filters),
        case(f"{way}: repetition and frequency penalties", usual, lambda _: penalties),
        case(f"{way}: 5 log-probabilities", usual, lambda _: Policy(), logprobs=5),
        case(steady, None, lambda _: Policy(0.7)),
        case(f"{way}: a new temperature", steady, lambda number: Policy(0.7 + 0.003 * number)),
    ]


def lookup(subject: Subject) -> Iterator[Found]:
    """Compare lookup to plain decoding: on a text without repetitions, on a continuation, and on summaries."""
    lm = subject.lm
    story, report = (tasks([name], count=1)[0].prompts[0].text for name in ("continuation", "summarisation"))
    texts = {
        "without repetitions": (lm.encode(story, raw=True), Policy(_HOT)),
        "continuation": (lm.encode(story, raw=True), Policy()),
        "summary": (lm.encode(report), Policy()),
        "greedy summary": (lm.encode(report), Policy(0.0)),
    }
    engines = {name: subject.engine(named_drafter(name)) for name in ("none", "lookup")}
    cases = [case for text, asked in texts.items() for case in _pair(subject, engines, text, asked)]
    yield from compared(cases, subject.trial.rounds)


def _pair(subject: Subject, engines: dict[str, Engine], text: str, asked: tuple[list[int], Policy]) -> list[Case]:
    """Return the cases of one text on two engines, the second compared with the first."""
    prompt, policy = asked
    (first, one), (second, other) = engines.items()

    def request(number: int) -> Request:
        return subject.request(prompt, number, policy)

    return [
        Case(f"{text}: {first}", one, request),
        Case(f"{text}: {second}", other, request, f"{text}: {first}"),
    ]


def prediction(subject: Subject) -> Iterator[Found]:
    """Compare edits of a text with the text as a prediction, without one, and with an unrelated text as a prediction.

    Tasks that do not fit into the model's context are left out. Texts end at stop tokens, as they do for users.
    """
    tokenizer = subject.lm.tokenizer
    texts = [tokenizer(edit.text, add_special_tokens=False)["input_ids"] for edit in EDITS.values()]
    cases = list[Case]()
    for name, text, other in zip(EDITS, texts, reversed(texts), strict=True):
        prompt = subject.lm.encode(EDITS[name].prompt)
        if len(prompt) + subject.trial.tokens <= subject.lm.engine.target.context:
            predictions = {"without": [], "with": text, "another": other}
            cases += _predicted(subject, f"{name}, T=0", (prompt, Policy(0)), predictions)
            cases += _predicted(subject, f"{name}, T=0.7", (prompt, Policy(0.7)), predictions)
    yield from compared(cases, subject.trial.rounds)


def _predicted(
    subject: Subject, title: str, asked: tuple[list[int], Policy], predictions: dict[str, list[int]]
) -> list[Case]:
    """Return the cases of one text with several predictions, all compared with the first."""
    engine, (prompt, policy), first = (
        subject.lm.engine.with_parts(rule=named_rule("race")),
        asked,
        next(iter(predictions)),
    )

    def case(way: str, predicted: list[int]) -> Case:
        def request(number: int) -> Request:
            return subject.request(prompt, number, policy, prediction=predicted)

        return Case(f"{title}: {way}", engine, request, None if way == first else f"{title}: {first}")

    return [case(way, predicted) for way, predicted in predictions.items()]


def auto(subject: Subject) -> Iterator[Found]:
    """Compare `auto` without a trained drafter to plain decoding, on every task of `spectr bench run`."""
    asked, _ = asked_requests(subject.lm, tasks(list(KINDS), count=1), subject.trial.tokens)
    engines = {"none": subject.engine(named_drafter("none")), "auto": subject.engine(_headless_auto(subject.lm))}
    cases = [
        case for one in asked for case in _pair(subject, engines, one.task.name, (list(one.request.prompt), Policy()))
    ]
    for found in compared(cases, subject.trial.rounds):
        ratios = [row["ratio"] for row in found["rows"] if row.get("ratio")]
        over_all = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else None
        yield {**found, "mean_ratio": over_all, "least_ratio": min(ratios, default=None)}


def _headless_auto(lm: LM) -> Drafter:
    """Return the drafter that `spectr.load` chooses for a model without a trained drafter."""
    with patch("spectr.models.trained.shipped", return_value=None):
        return pair(AUTO, lm.opened, named_rule("race").card, DraftOptions())
