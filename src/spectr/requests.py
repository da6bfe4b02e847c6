"""What goes into the loop and what comes out: requests, jobs, steps, results. Nothing here does anything."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spectr.metrics import Stats
from spectr.policy import Policy

__all__ = ["Ends", "Job", "Memory", "Request", "Result", "Step"]

Ends = Callable[[list[int]], int | None]
"""New tokens of a row → how many of them belong to the text, if it ends among them."""


@dataclass(frozen=True, slots=True)
class Request:
    """What one row is asked for."""

    prompt: Sequence[int]
    seed: int = 0
    max_new_tokens: int = 128
    source: Sequence[int] | None = None  # what an encoder-decoder model answers to
    padding: Sequence[int] = ()  # tokens that custom processors see before the prompt
    ends: Ends | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """Requests that run as one batch, and what is to be told of them."""

    requests: Sequence[Request]
    policy: Policy = field(default_factory=Policy)
    logprobs: bool = False
    optimality_gap: bool = False


@dataclass(frozen=True, slots=True)
class Step:
    """What one step added to one row: the only thing that leaves the loop."""

    row: int
    tokens: list[int]  # accepted, then the bonus; cut at the end of the text
    accepted: int  # draft tokens among them
    corrected: bool  # the last token stands in the place of a draft
    finish_reason: str | None  # "stop", "length", or None while the row goes on
    logprobs: list[float] | None = None  # of the tokens, under the model's law before the policy


@dataclass(slots=True)
class Result:
    """One finished row."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    stats: Stats = field(default_factory=Stats)
    logprobs: list[float] | None = None
    steps: list[Step] = field(default_factory=list)


@dataclass(slots=True)
class Memory:
    """A session that outlives its request, so that a text which begins alike is not read again."""

    session: Any = None
    text: list[int] = field(default_factory=list)  # what the session holds
    reused: int = 0  # tokens of the last prompt that did not have to be read again
