"""Requests to the engine, and the steps and results that come out of it: data only."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spectr.engine.metrics import Stats
from spectr.grammar import CompiledGrammar
from spectr.policy import Policy

__all__ = ["Reader", "Request", "Result", "Step", "StepTree", "TokenLogprobs", "TreeNode"]


class Reader(Protocol):
    """Decodes the tokens of one text into characters, and finds stop strings."""

    def feed(self, tokens: list[int]) -> tuple[str, int | None]:
        """Take the next tokens. Return the text that can be shown now, and how many of the tokens belong to the text
        if it ends among them, else None."""
        ...

    def finish(self) -> str:
        """Return the text that was held back, once no more tokens follow."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One text to generate, with its own settings. `generated` are tokens generated before, if a text is continued:
    penalties, minimum lengths and limits count them."""

    prompt: Sequence[int]
    seed: int = 0
    max_new_tokens: int = 128  # including those generated before
    policy: Policy = field(default_factory=Policy)
    generated: Sequence[int] = ()
    stop_ids: frozenset[int] = frozenset()  # tokens that end it, besides those of the model
    source: Sequence[int] | None = None  # the encoder's input, for an encoder-decoder model
    padding: Sequence[int] = ()  # tokens that custom processors see before the prompt
    reader: Reader | None = None  # used for this request only
    logprobs: int | None = None  # of every token, and of this many of the likeliest tokens in its place
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt except the first
    optimality_gap: bool = False
    cache_scope: str = ""  # only requests of the same scope share prefixes
    trace: bool = False  # whether steps include their trees
    grammar: CompiledGrammar | None = None  # constrains the text; compiled for the target's vocabulary
    prediction: Sequence[int] = ()  # tokens that the text will probably repeat; they are only drafted

    @property
    def tokens(self) -> list[int]:
        """The text so far, including the prompt."""
        return [*self.prompt, *self.generated]

    @property
    def limit(self) -> int:
        """The most tokens that prompt and text may have together."""
        return len(self.prompt) + self.max_new_tokens

    @property
    def runs_on_host(self) -> bool:
        """Whether a part of its steps runs on the host: users' functions, or a grammar."""
        return not self.policy.capturable or self.grammar is not None


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probability of a token under the model's own distribution, and those of the likeliest tokens."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One node of a token tree. Probabilities are those of its token after the text before it, under the policy."""

    token: int
    parent: int | None  # index of its parent; None for the root, the last token before the step
    draft: float | None  # its probability under the drafter's distribution; None if the drafter has none
    target: float | None  # its probability under the target's distribution
    accepted: bool
    origin: str  # one of ORIGINS


@dataclass(frozen=True, slots=True)
class StepTree:
    """The token tree of a step, parents before children, and the token that the model added to the accepted path."""

    nodes: list[TreeNode]
    last: int  # index of the last accepted node, which the added token follows
    added: float  # the probability of the added token


@dataclass(frozen=True, slots=True)
class Step:
    """What one step added to one text."""

    tokens: list[int]  # the accepted drafts, then the target's own token; cut at the end of the text
    accepted: int = 0  # how many of them are drafts
    corrected: bool = False  # whether the last token replaces a rejected draft
    finish_reason: str | None = None  # "stop", "length", or None while the text goes on
    logprobs: list[TokenLogprobs] | None = None
    text: str = ""  # the text that can be shown, if the request has a reader
    drafted: int = 0  # draft tokens that were scored
    tree: StepTree | None = None  # if the request is traced

    @property
    def origins(self) -> list[str]:
        """Where each token came from: one of ORIGINS for an accepted draft, else correction, bonus or plain."""
        nodes = [] if self.tree is None else [node.origin for node in self.tree.nodes if node.accepted]
        drafts = (nodes or ["drafter"] * self.accepted)[: len(self.tokens)]
        own = "correction" if self.corrected else "bonus" if self.drafted else "plain"
        return [*drafts[: self.accepted], *[own] * (len(self.tokens) - self.accepted)]


@dataclass(slots=True)
class Result:
    """A text as far as it has been generated."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None  # "stop", "length", "cancelled", "error", or None while it goes on
    stats: Stats = field(default_factory=Stats)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # None for the first token, which follows nothing
    steps: list[Step] = field(default_factory=list)
    text: str = ""
    reused: int = 0  # prompt tokens that were copied from another row and not prefilled

    def add(self, step: Step) -> None:
        """Append a step."""
        self.tokens += step.tokens
        self.steps.append(step)
        self.text += step.text
        self.finish_reason = step.finish_reason
        if step.logprobs is not None:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs += step.logprobs
