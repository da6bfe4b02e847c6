"""Audits an OpenAI-compatible endpoint: whether it samples from the distribution that its own log-probabilities state.

Tokens are strings, as the endpoint spells them. All tokens that it does not list among its likeliest count as one
token, the rest, after which no distribution is known, so a text ends there. The cells of the tests are fixed by a
survey whose samples are not counted. The distributions after a prefix are those that the endpoint states with it;
whether it always states the same ones is a finding of its own.
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

__all__ = ["Endpoint", "StatedText", "endpoint_case"]

REST = 0
"""The token that stands for all tokens that an endpoint does not list."""

_SURVEY = 256  # texts that are used only to find the distributions
_WANDERING = 0.01  # total variation between two statements of one distribution that rounding explains


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of an endpoint, and how to call it."""

    url: str  # …/v1, …/v1/completions or …/v1/chat/completions
    model: str
    prompt: str
    choices: int = 64  # texts per call
    top: int = 20  # likeliest tokens that it lists
    end: str | None = None  # the spelling of the token that ends a text
    timeout: float = 120.0
    headers: Mapping[str, str] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)  # additional fields of the request

    client: EndpointClient = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "client", EndpointClient(self.url, self.headers, self.timeout))

    def ask(self, count: int, length: int, seed: int) -> list["StatedText"]:
        """Request up to `count` texts in one call."""
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
        """Return the fields that differ between completions and chat completions."""
        if self.client.is_chat:
            return {"messages": turns_of(self.prompt), "logprobs": True, "top_logprobs": self.top}
        return {"prompt": self.prompt, "logprobs": self.top}


@dataclass(frozen=True, slots=True)
class StatedText:
    """One text, and the distribution that was stated at each of its tokens."""

    tokens: list[str]
    laws: list[dict[str, float]]  # the probabilities of the likeliest tokens


def _stated(logprobs: Mapping[str, Any]) -> StatedText:
    """Parse either form of log-probabilities."""
    if logprobs.get("content") is not None:
        places = logprobs["content"]
        laws = [{each["token"]: math.exp(each["logprob"]) for each in place["top_logprobs"]} for place in places]
        return StatedText([place["token"] for place in places], laws)
    laws = [{token: math.exp(value) for token, value in place.items()} for place in logprobs["top_logprobs"]]
    return StatedText(list(logprobs["tokens"]), laws)


class _Survey:
    """What an endpoint has stated so far: token strings, distributions after texts, and their largest variation."""

    def __init__(self, top: int, end: str | None) -> None:
        self.words: dict[str, int] = {} if end is None else {end: 1}
        self.stops = frozenset({REST} if end is None else {REST, 1})
        self.laws: dict[Text, dict[int, float]] = {}
        self.wandered, self.top, self.end = 0.0, top, end

    def read(self, stated: StatedText, length: int) -> Text:
        """Return the text as token numbers, as far as it is known, and record its distributions."""
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
        """Append the end token, which is not shown, to a short text, if a distribution is known there."""
        if self.end is None:
            raise ArgumentError(
                f"a text of the endpoint ended after {len(text)} tokens, and endings are not shown; give the spelling "
                "of the token that ends a text, as in --end '</s>', or disable endings: --body '{\"ignore_eos\": true}'"
            )
        return (*text, self._number(self.end, text)) if text in self.laws else text

    def _law(self, listed: Mapping[str, float]) -> dict[int, float]:
        """Return the probabilities of the listed tokens and of the rest.

        A server may list the sampled token in addition to its likeliest. It is left out, because otherwise the list
        would depend on the sample."""
        best = sorted(listed.items(), key=lambda pair: (-pair[1], pair[0]))[: self.top]
        law = {self.words.setdefault(token, len(self.words) + 1): chance for token, chance in best}
        total = sum(law.values())
        if total > 1 + 1e-3:
            raise LawError(f"an endpoint's top_logprobs must be of one distribution, and their sum is {total:.4f}")
        return {**law, REST: max(0.0, 1 - total)}

    def _note(self, text: Text, law: dict[int, float]) -> None:
        known = self.laws.setdefault(text, law)
        if known is law:
            return
        tokens = {*known, *law}
        distance = sum(abs(known.get(token, 0.0) - law.get(token, 0.0)) for token in tokens) / 2
        self.wandered = max(self.wandered, distance)

    def after(self, texts: Sequence[Text]) -> Tensor:
        """Return laws (n, words); they are zero after unknown texts, so that these are no cells of any test."""
        found = torch.zeros(len(texts), len(self.words) + 1, dtype=torch.float64)
        for row, text in enumerate(texts):
            for token, chance in self.laws.get(text, {}).items():
                found[row, token] = chance
        return found / found.sum(-1, keepdim=True).clamp_min(1e-300)


@dataclass(slots=True)
class _EndpointSampler:
    """Samples texts of an endpoint and reads them with a survey."""

    endpoint: Endpoint
    survey: _Survey
    calls: int = 0

    def __call__(self, seeds: Sequence[int], length: int) -> list[Text]:
        """Return as many texts as seeds; a call has the seed of its first text."""
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
    counted = level.seed + level.draws  # earlier seeds belong to texts that are counted
    sampler(range(counted, counted + _SURVEY), length)
    law = TextLaw(survey.after, length, survey.stops, closed=False)
    found = law_finding(Claimed(endpoint.client.address, sampler, law, section="endpoint"), level)
    measured = f"one law stated twice differs by at most {survey.wandered:.1e}"
    details = {"total_variation": survey.wandered, "tolerance": _WANDERING, "calls": sampler.calls}
    stable = Finding("endpoint", "stated laws", survey.wandered < _WANDERING, measured, details)
    return [found, stable]


def endpoint_case(endpoint: Endpoint, length: int = 3) -> Case:
    """Return the case that tests first tokens and short texts of an endpoint."""
    return Case("endpoint", endpoint.client.address, partial(_run, endpoint, length), tests=len(TESTS))
