"""What is asked of the engine, and what comes out of it. Nothing here does anything."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spectr.engine.metrics import Stats
from spectr.grammar import CompiledGrammar
from spectr.policy import Policy

__all__ = ["Reader", "Request", "Result", "Step", "StepTree", "TokenLogprobs", "TreeNode"]


class Reader(Protocol):
    """Turns the tokens of one text into what people read, and finds stop strings."""

    def feed(self, tokens: list[int]) -> tuple[str, int | None]:
        """What can be shown once these tokens are there, and how many of them belong to the text, if it ends among
        them."""
        ...

    def finish(self) -> str:
        """What was held back, once no token follows."""
        ...


@dataclass(frozen=True, slots=True)
class Request:
    """One text to generate, with settings of its own. `generated` holds what was generated before, if it goes on:
    penalties, least lengths and limits count it."""

    prompt: Sequence[int]
    seed: int = 0
    max_new_tokens: int = 128  # those generated before included
    policy: Policy = field(default_factory=Policy)
    generated: Sequence[int] = ()
    stop_ids: frozenset[int] = frozenset()  # tokens that end it, beside those of the model
    source: Sequence[int] | None = None  # what an encoder-decoder model answers to
    padding: Sequence[int] = ()  # tokens that custom processors see before the prompt
    reader: Reader | None = None  # serves this one request
    logprobs: int | None = None  # of every token, and of so many of the likeliest in its place
    prompt_logprobs: int | None = None  # the same for the tokens of the prompt, but the first
    optimality_gap: bool = False
    cache_scope: str = ""  # only requests of the same scope share the beginnings of their prompts
    trace: bool = False  # steps tell their trees
    grammar: CompiledGrammar | None = None  # what the text has to look like; for the vocabulary of the target
    reference: Sequence[int] = ()  # what the text will probably repeat: tokens that are drafted, and decide nothing

    @property
    def tokens(self) -> list[int]:
        """The text so far, prompt included."""
        return [*self.prompt, *self.generated]

    @property
    def limit(self) -> int:
        """Most tokens of prompt and text."""
        return len(self.prompt) + self.max_new_tokens

    @property
    def has_hooks(self) -> bool:
        """Whether functions of the user or a grammar take part, which run on the host."""
        return not self.policy.capturable or self.grammar is not None

    @property
    def refers(self) -> bool:
        """Whether tokens are drafted from a reference, beside those of the drafter."""
        return bool(self.reference)


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """The log-probability of a token under the model's own distribution, and those of the likeliest tokens."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One node of a token tree. Chances are those of its token after the text before it, under the policy."""

    token: int
    parent: int | None  # place of its parent among the nodes; None: the root, the last token before the step
    draft: float | None  # its chance under the drafter's distribution; None where the drafter has none
    target: float | None  # its chance under the model's
    accepted: bool
    origin: str  # one of ORIGINS


@dataclass(frozen=True, slots=True)
class StepTree:
    """The token tree of a step, parents before children, and the token that the model added to the accepted path."""

    nodes: list[TreeNode]
    last: int  # place of the last accepted node, which the added token follows
    added: float  # the chance of the added token


@dataclass(frozen=True, slots=True)
class Step:
    """What one step added to one text: the only thing that leaves the loop."""

    tokens: list[int]  # accepted, then the bonus; cut at the end of the text
    accepted: int = 0  # draft tokens among them
    corrected: bool = False  # the last token stands in the place of a draft
    finish_reason: str | None = None  # "stop", "length", or None while the text goes on
    logprobs: list[TokenLogprobs] | None = None
    text: str = ""  # what can be shown, if the request has a reader
    drafted: int = 0  # draft tokens that were scored
    tree: StepTree | None = None  # what was drafted, if the request is traced

    @property
    def origins(self) -> list[str]:
        """Where each token came from: one of ORIGINS for an accepted draft, else correction, bonus or plain."""
        nodes = [] if self.tree is None else [node.origin for node in self.tree.nodes if node.accepted]
        drafts = (nodes or ["drafter"] * self.accepted)[: len(self.tokens)]
        own = "correction" if self.corrected else "bonus" if self.drafted else "plain"
        return [*drafts[: self.accepted], *[own] * (len(self.tokens) - self.accepted)]


@dataclass(slots=True)
class Result:
    """A text as far as it has come."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str | None = None  # "stop", "length", "cancelled", or None while it goes on
    stats: Stats = field(default_factory=Stats)
    logprobs: list[TokenLogprobs] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # None for the first token, which follows nothing
    steps: list[Step] = field(default_factory=list)
    text: str = ""
    reused: int = 0  # tokens of the prompt that were known from another text and not read again

    def add(self, step: Step) -> None:
        """One step more."""
        self.tokens += step.tokens
        self.steps.append(step)
        self.text += step.text
        self.finish_reason = step.finish_reason
        if step.logprobs is not None:
            if self.logprobs is None:
                self.logprobs = []
            self.logprobs += step.logprobs
