"""An OpenAI-compatible endpoint under audit: does it sample from the law that its own log-probabilities state?

Tokens are strings here, as the endpoint spells them. What it does not list among its likeliest is one token together,
the rest, after which no law is known: a text ends there. Cells are fixed by a survey whose samples are not counted, and
the laws of a text's beginning are those that the endpoint states with it; that it always states the same is a finding.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from spectr.audit.laws import Claimed, law_finding
from spectr.audit.report import Case, Finding, Level
from spectr.audit.texts import TESTS, Text, TextLaw
from spectr.endpoint import EndpointClient, turns_of
from spectr.errors import ArgumentError, LawError

__all__ = ["Endpoint", "Stated", "endpoint_case"]

REST = 0
"""The token that stands for all that an endpoint does not list."""

_SURVEY = 256  # texts that only tell which laws there are
_WANDERING = 0.01  # total variation between two statements of one law that is taken for arithmetic


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask, and how."""

    url: str  # …/v1, …/v1/completions or …/v1/chat/completions
    model: str
    prompt: str
    choices: int = 64  # texts of one call
    top: int = 20  # likeliest tokens listed
    end: str | None = None  # how it spells the token that ends a text
    timeout: float = 120.0
    headers: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)  # of the request

    client: EndpointClient = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "client", EndpointClient(self.url, self.headers, self.timeout))

    def ask(self, count: int, length: int, seed: int) -> list["Stated"]:
        """Up to `count` texts of one call."""
        body = {
            "model": self.model, "max_tokens": length, "temperature": 1.0, "top_p": 1.0, "n": count, "seed": seed,
            **self._form(), **self.more,
        }  # fmt: skip
        found = self.client.complete(body)
        try:
            texts = [_stated(choice["logprobs"]) for choice in found["choices"]]
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ArgumentError(
                f"{self.client.address} must answer with choices that have logprobs and top_logprobs, and its answer "
                f"lacks them ({type(error).__name__}: {error}); start the server with log-probabilities"
            ) from None
        if not texts:
            raise ArgumentError(f"{self.client.address} must answer with at least one choice, got none")
        return texts

    def _form(self) -> dict[str, Any]:
        """What differs between the two kinds of endpoint."""
        if self.client.is_chat:
            return {"messages": turns_of(self.prompt), "logprobs": True, "top_logprobs": self.top}
        return {"prompt": self.prompt, "logprobs": self.top}


@dataclass(frozen=True, slots=True)
class Stated:
    """One text, and the law that was stated at each of its tokens."""

    tokens: list[str]
    laws: list[dict[str, float]]  # the likeliest tokens' probabilities


def _stated(logprobs: Mapping[str, Any]) -> Stated:
    """From either form of log-probabilities."""
    if logprobs.get("content") is not None:
        places = logprobs["content"]
        laws = [{each["token"]: math.exp(each["logprob"]) for each in place["top_logprobs"]} for place in places]
        return Stated([place["token"] for place in places], laws)
    laws = [{token: math.exp(value) for token, value in place.items()} for place in logprobs["top_logprobs"]]
    return Stated(list(logprobs["tokens"]), laws)


class _Survey:
    """What an endpoint has stated so far: words, laws after texts, and how far its statements wandered."""

    def __init__(self, top: int, end: str | None) -> None:
        self.words: dict[str, int] = {} if end is None else {end: 1}
        self.stops = frozenset({REST} if end is None else {REST, 1})
        self.laws: dict[Text, dict[int, float]] = {}
        self.wandered, self.top, self.end = 0.0, top, end

    def read(self, stated: Stated, length: int) -> Text:
        """The text in numbers, as far as it is known; its laws are noted."""
        text: Text = ()
        for token, listed in zip(stated.tokens, stated.laws, strict=True):
            self._note(text, self._law(listed))
            text = (*text, self._number(token, text))
            if text[-1] in self.stops:
                return text
        return self._ended(text) if len(text) < length else text

    def _number(self, token: str, text: Text) -> int:
        number = self.words.get(token, REST)
        return number if number in self.laws[text] else REST

    def _ended(self, text: Text) -> Text:
        """A text that was cut short, with the end that is not shown; where no law was stated yet, without it."""
        if self.end is None:
            raise ArgumentError(
                f"a text of the endpoint ended after {len(text)} tokens, and endings are not shown; say how it spells "
                "the token that ends a text, as in --end '</s>', or ask it not to end: --body '{\"ignore_eos\": true}'"
            )
        return (*text, self._number(self.end, text)) if text in self.laws else text

    def _law(self, listed: Mapping[str, float]) -> dict[int, float]:
        """The listed tokens, and the rest. A server may list the sampled token besides its likeliest: it is left out,
        or the list would depend on what was sampled."""
        best = sorted(listed.items(), key=lambda pair: (-pair[1], pair[0]))[: self.top]
        law = {self.words.setdefault(token, len(self.words) + 1): chance for token, chance in best}
        total = sum(law.values())
        if total > 1 + 1e-3:
            raise LawError(f"an endpoint's top_logprobs must be of one law, and their probabilities sum to {total:.4f}")
        return {**law, REST: max(0.0, 1 - total)}

    def _note(self, text: Text, law: dict[int, float]) -> None:
        known = self.laws.setdefault(text, law)
        if known is law:
            return
        tokens = {*known, *law}
        distance = sum(abs(known.get(token, 0.0) - law.get(token, 0.0)) for token in tokens) / 2
        self.wandered = max(self.wandered, distance)

    def after(self, texts: Sequence[Text]) -> Tensor:
        """Laws (n, words); after a text that was never met all is zero, so that it is no cell of any test."""
        found = torch.zeros(len(texts), len(self.words) + 1, dtype=torch.float64)
        for row, text in enumerate(texts):
            for token, chance in self.laws.get(text, {}).items():
                found[row, token] = chance
        return found / found.sum(-1, keepdim=True).clamp_min(1e-300)


@dataclass(slots=True)
class _EndpointSampler:
    """Texts of an endpoint, read with a survey."""

    endpoint: Endpoint
    survey: _Survey
    calls: int = 0

    def __call__(self, seeds: Sequence[int], length: int) -> list[Text]:
        """As many texts as seeds; a call has the seed of the first of its texts."""
        return list(self._texts(seeds, length))

    def _texts(self, seeds: Sequence[int], length: int) -> Iterator[Text]:
        done = 0
        while done < len(seeds):
            count = min(self.endpoint.choices, len(seeds) - done)
            for stated in self.endpoint.ask(count, length, seeds[done])[:count]:
                done += 1
                yield self.survey.read(stated, length)
            self.calls += 1


def _run(endpoint: Endpoint, length: int, level: Level) -> Sequence[Finding]:
    survey = _Survey(endpoint.top, endpoint.end)
    sampler = _EndpointSampler(endpoint, survey)
    counted = level.seed + level.draws  # the seeds before belong to texts that count
    sampler(range(counted, counted + _SURVEY), length)
    law = TextLaw(survey.after, length, survey.stops, closed=False)
    found = law_finding(Claimed(endpoint.client.address, sampler, law, section="endpoint"), level)
    measured = f"one law stated twice differs by at most {survey.wandered:.1e}"
    details = {"total_variation": survey.wandered, "tolerance": _WANDERING, "calls": sampler.calls}
    stable = Finding("endpoint", "stated laws", survey.wandered < _WANDERING, measured, details)
    return [found, stable]


def endpoint_case(endpoint: Endpoint, length: int = 3) -> Case:
    """First tokens and short texts of an endpoint."""
    return Case("endpoint", endpoint.client.address, partial(_run, endpoint, length), tests=len(TESTS))
