"""Samples texts of a target, as training data for a drafter. On CUDA a captured graph adds one token to all rows."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.models.graphs import recorded
from spectr.models.session import Session
from spectr.models.target import Target

__all__ = ["Sampling", "Text", "batches", "sample"]


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the answer to it."""

    tokens: list[int]
    start: int  # index at which the answer begins


@dataclass(frozen=True, slots=True)
class Sampling:
    """Settings of sampling."""

    temperatures: tuple[float, ...] = (1.0,)  # assigned to the rows in turn
    longest: tuple[int, ...] = (256,)  # maximum numbers of tokens of an answer, used by the batches in turn
    rows: int = 64  # texts at once
    stops: frozenset[int] = frozenset()
    seconds: float = float("inf")  # no batch begins after this time
    seed: int = 0  # batch `i` is drawn with seed + i, so that its texts do not depend on the batches before it


def _draw(logits: Tensor, inverse_temperature: Tensor) -> Tensor:
    """Draw one token per row (B,) from logits (B, V), by a race of exponentials."""
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_().log_()
    return (logits.float() * inverse_temperature[:, None] - noise).argmax(-1)


@dataclass(slots=True)
class _Writer:
    """Decodes one token of all rows at a time: reads `tokens` (B, 1) and overwrites them with the next ones."""

    target: Target
    session: Session
    tokens: Tensor
    inverse_temperature: Tensor
    graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self.graph is None:
            self._step()
        else:
            self.graph.replay()

    def _step(self) -> None:
        batch = len(self.tokens)
        own = torch.ones(batch, 1, 1, dtype=torch.bool, device=self.tokens.device)
        logits = self.target.score(self.session, self.tokens, own, torch.zeros_like(self.tokens))
        self.target.keep(self.session, torch.zeros_like(self.tokens))
        self.tokens.copy_(_draw(logits[:, 0], self.inverse_temperature)[:, None])

    def capture(self) -> None:
        """Capture the step; every call then attends to all slots, and lengths are on the device."""
        store = self.session.store
        lengths = store.filled.clone()
        before, first = lengths.clone(), self.tokens.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._static_step(lengths)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with recorded(self.graph):
            self._static_step(lengths)
        lengths.copy_(before)
        self.tokens.copy_(first)

    def _static_step(self, lengths: Tensor) -> None:
        """Run a step with lengths in a fixed buffer, bounded by the size of the cache."""
        store = self.session.store
        store.filled, store.longest, store.bound_slack = lengths, store.cache.size - 1, 0
        self._step()
        lengths.copy_(store.filled)
        store.filled, store.longest, store.bound_slack = lengths, store.cache.size - 1, 0


def _sample_batch(target: Target, prompts: list[list[int]], how: Sampling, longest: int) -> list[Text]:
    """Sample answers of at most `longest` tokens to some prompts, all at once."""
    device = target.device
    session = target.open(len(prompts), max(map(len, prompts)) + longest + 1)
    target.read(session, [prompt[:-1] for prompt in prompts])
    inverse_temperature = torch.tensor(
        [1 / how.temperatures[at % len(how.temperatures)] for at in range(len(prompts))], device=device
    )
    tokens = torch.tensor([[prompt[-1]] for prompt in prompts], device=device)
    writer = _Writer(target, session, tokens, inverse_temperature)
    if device.type == "cuda":
        writer.capture()
    steps, ended = [], torch.zeros(len(prompts), dtype=torch.bool, device=device)
    stops = torch.tensor(sorted(how.stops), device=device)
    for count in range(longest):
        writer()
        steps.append(tokens[:, 0].clone())
        ended |= torch.isin(steps[-1], stops)
        if count % 32 == 31 and bool(ended.float().mean() > 0.97):
            break
    answers = torch.stack(steps, 1).tolist()
    return [_text(prompt, answer, how.stops) for prompt, answer in zip(prompts, answers, strict=True)]


def _text(prompt: list[int], answer: list[int], stops: frozenset[int]) -> Text:
    end = next((at + 1 for at, token in enumerate(answer) if token in stops), len(answer))
    return Text(prompt + answer[:end], len(prompt))


def batches(prompts: list[list[int]], rows: int) -> list[list[list[int]]]:
    """Return the prompts in batches of similar lengths. They are shuffled, the same way each time: if the time is up
    early, prompts of all lengths have been answered."""
    order = sorted(prompts, key=len)
    found = [order[start : start + rows] for start in range(0, len(order), rows)]
    random.Random(0).shuffle(found)
    return found


@torch.no_grad()
def sample(target: Target, prompts: list[list[int]], how: Sampling, first: int = 0) -> Iterator[list[Text]]:
    """Yield answers to all prompts, or to as many as the time allows, one batch at a time, beginning with the batch
    `first`. The random generators of the caller are not changed."""
    end = time.monotonic() + how.seconds
    for number, batch in enumerate(batches(prompts, how.rows)):
        if number < first:
            continue
        if number > first and time.monotonic() > end:
            return
        with torch.random.fork_rng():
            torch.manual_seed(how.seed + number)
            texts = _sample_batch(target, batch, how, how.longest[number % len(how.longest)])
        yield texts
