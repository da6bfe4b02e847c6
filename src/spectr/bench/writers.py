"""Requests for benchmark texts, which are the same for every method, and the methods that generate them."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from spectr.bench.tasks import KINDS, Prompt, Task
from spectr.endpoint import EndpointClient, turns_of
from spectr.engine import Engine, Request
from spectr.engine.metrics import Stats
from spectr.errors import ArgumentError, SpectrError
from spectr.lm import LM
from spectr.policy import Policy

if TYPE_CHECKING:
    from spectr.models.baselines import TransformersBaseline

__all__ = [
    "BenchRequest",
    "EndpointWriter",
    "SpectrWriter",
    "TransformersWriter",
    "Writer",
    "Written",
    "open_endpoint",
    "requests",
]


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """A request for one text of a task."""

    task: Task
    number: int  # index of the prompt in its task
    request: Request
    temperature: float = 1.0

    @property
    def prompt(self) -> Prompt:
        """The prompt as text."""
        return self.task.prompts[self.number]

    @property
    def raw(self) -> bool:
        """Whether the prompt is plain text, without a chat template."""
        return KINDS[self.task.kind].raw

    def at(self, temperature: float, seed: int) -> "BenchRequest":
        """Return the request with another temperature and seed."""
        return replace(self, request=replace(self.request, seed=seed), temperature=temperature)

    def shorter(self, tokens: int) -> "BenchRequest":
        """Return the request for at most `tokens` tokens."""
        most = min(tokens, self.request.max_new_tokens)
        return replace(self, request=replace(self.request, max_new_tokens=most))


@dataclass(frozen=True, slots=True)
class Written:
    """A generated text, and its costs."""

    text: str
    count: int  # tokens
    seconds: float  # from the prompt's tokens to the last token
    tokens: list[int] | None = None  # None for endpoints
    steps: int | None = None  # target calls
    parts: dict[str, float] = field(default_factory=dict)  # seconds of prompt, draft, target and rule, if known
    stats: Stats | None = None


class Writer(Protocol):
    """Generates texts: an engine, transformers, or an endpoint."""

    def write(self, item: BenchRequest) -> Written:
        """Generate one text."""
        ...


def _tokens(lm: LM, prompt: Prompt, *, raw: bool) -> list[int]:
    if len(prompt.turns) < 2:
        return lm.encode(prompt.text, raw=raw)
    if getattr(lm.tokenizer, "chat_template", None):
        return lm.encode_turns(turns_of(*prompt.turns))
    lines = [f"{turn['role'].capitalize()}: {turn['content']}" for turn in turns_of(*prompt.turns)]
    return lm.encode("\n".join([*lines, "Assistant:"]), raw=True)


def requests(lm: LM, tasks: Sequence[Task], tokens: int, prefix: str = "") -> tuple[list[BenchRequest], int]:
    """Return requests for all prompts of all tasks, and the number of prompts that are too long for the model.

    An encoder-decoder model reads the source only, after `prefix`."""
    found, start, context = [], lm.opened.start, lm.engine.target.context
    for task in tasks:
        for number, prompt in enumerate(task.prompts):
            if start is None:
                request = Request(_tokens(lm, prompt, raw=KINDS[task.kind].raw), 0, tokens)
            else:
                source = lm.encode(prefix + (prompt.source or prompt.text), raw=True)
                request = Request(start, 0, tokens, source=source)
            if max(len(request.prompt) + tokens, len(request.source or ())) <= context:
                found.append(BenchRequest(task, number, request))
    return found, sum(len(task.prompts) for task in tasks) - len(found)


@dataclass(frozen=True, slots=True)
class SpectrWriter:
    """Generates texts with spectr."""

    engine: Engine
    tokenizer: Any

    def write(self, item: BenchRequest) -> Written:
        """Generate step by step, so that the time of the prefill is known."""
        parts, request = dict[str, float](), replace(item.request, policy=Policy(item.temperature))
        start = time.perf_counter()
        handle = self.engine.submit(request)
        for _ in handle:
            if not parts:
                steps = sum(handle.so_far.stats.seconds.values())
                parts["prompt"] = max(0.0, time.perf_counter() - start - steps)
        seconds, result = time.perf_counter() - start, handle.so_far
        tokens, stats = result.tokens, result.stats
        text = self.tokenizer.decode(tokens, skip_special_tokens=True)
        return Written(text, len(tokens), seconds, tokens, stats.steps, {**parts, **stats.seconds}, stats)


@dataclass(frozen=True, slots=True)
class TransformersWriter:
    """Generates texts with `model.generate` of transformers."""

    baseline: "TransformersBaseline"
    tokenizer: Any

    def write(self, item: BenchRequest) -> Written:
        """Generate one text; the prefill counts as part of the target calls."""
        request = item.request
        settings = {"temperature": item.temperature, "max_new_tokens": request.max_new_tokens}
        found = self.baseline.write(request.prompt, request.seed, settings, request.source)
        text = self.tokenizer.decode(found.tokens, skip_special_tokens=True)
        parts = {"draft": found.draft, "target": found.target}
        return Written(text, len(found.tokens), found.seconds, found.tokens, found.calls, parts)


@dataclass(frozen=True, slots=True)
class EndpointWriter:
    """Generates texts with a server; times include network and queue, and target calls are unknown."""

    client: EndpointClient
    model: str

    def write(self, item: BenchRequest) -> Written:
        """Generate one text by chat completions, or by completions for plain text."""
        request, prompt = item.request, item.prompt
        body: dict[str, Any] = {"model": self.model, "temperature": item.temperature, "seed": request.seed}
        body["max_tokens"] = request.max_new_tokens
        body |= {"prompt": prompt.text} if item.raw else {"messages": turns_of(*(prompt.turns or (prompt.text,)))}
        start = time.perf_counter()
        found = self.client.complete(body)
        seconds = time.perf_counter() - start
        try:
            choice = found["choices"][0]
            text = choice["text"] if item.raw else choice["message"]["content"]
            return Written(text or "", int(found["usage"]["completion_tokens"]), seconds)
        except (KeyError, IndexError, TypeError) as error:
            raise SpectrError(
                f"{self.client.base} gave no text or no count of tokens (usage.completion_tokens): {error}"
            ) from None


def open_endpoint(url: str) -> EndpointWriter:
    """Open `URL` or `URL#MODEL`; without a model, the first that the server lists."""
    address, _, model = url.partition("#")
    client = EndpointClient(address)
    listed = [model] if model else client.models()
    if not listed:
        raise ArgumentError(f"{client.base} lists no models; name the one to ask: --endpoint {address}#MODEL")
    return EndpointWriter(client, listed[0])
