"""Texts that a target writes itself: what a drafter learns from. On CUDA one captured call adds a token to all rows."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from spectr.models.session import Session
from spectr.models.target import Target

__all__ = ["Sampling", "Text", "sample"]


@dataclass(frozen=True, slots=True)
class Text:
    """A prompt and the answer to it."""

    tokens: list[int]
    start: int  # where the answer begins


@dataclass(frozen=True, slots=True)
class Sampling:
    """How texts are drawn."""

    temperatures: tuple[float, ...] = (1.0,)  # rows take them in turn
    longest: int = 256  # tokens of an answer
    rows: int = 64  # texts at a time
    stops: frozenset[int] = frozenset()


def _draw(logits: Tensor, heat: Tensor) -> Tensor:
    """One token a row (B,) from logits (B, V), by a race of exponentials."""
    noise = torch.empty_like(logits, dtype=torch.float32).exponential_().log_()
    return (logits.float() * heat[:, None] - noise).argmax(-1)


@dataclass(slots=True)
class _Writer:
    """One token of all rows at a time: `tokens` (B, 1) go in, and the next ones stand there afterwards."""

    target: Target
    session: Session
    tokens: Tensor
    heat: Tensor
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
        self.tokens.copy_(_draw(logits[:, 0], self.heat)[:, None])

    def capture(self) -> None:
        """Record the step; every call then looks at all slots, and lengths live on the device."""
        store = self.session.store
        lengths = store.filled.clone()
        held, first = lengths.clone(), self.tokens.clone()
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                self._still(lengths)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._still(lengths)
        lengths.copy_(held)
        self.tokens.copy_(first)

    def _still(self, lengths: Tensor) -> None:
        """A step whose lengths stay in one place, and whose bound on them is the size of the cache."""
        store = self.session.store
        store.filled, store.longest, store.bound_slack = lengths, store.cache.size - 1, 0
        self._step()
        lengths.copy_(store.filled)
        store.filled, store.longest, store.bound_slack = lengths, store.cache.size - 1, 0


def _wave(target: Target, prompts: list[list[int]], how: Sampling) -> list[Text]:
    """Answers to some prompts, all at once."""
    device = target.device
    session = target.open(len(prompts), max(map(len, prompts)) + how.longest + 1)
    target.read(session, [prompt[:-1] for prompt in prompts])
    heat = torch.tensor([1 / how.temperatures[at % len(how.temperatures)] for at in range(len(prompts))], device=device)
    tokens = torch.tensor([[prompt[-1]] for prompt in prompts], device=device)
    writer = _Writer(target, session, tokens, heat)
    if device.type == "cuda":
        writer.capture()
    found, ended = [], torch.zeros(len(prompts), dtype=torch.bool, device=device)
    stops = torch.tensor(sorted(how.stops), device=device)
    for count in range(how.longest):
        writer()
        found.append(tokens[:, 0].clone())
        ended |= torch.isin(found[-1], stops)
        if count % 32 == 31 and bool(ended.float().mean() > 0.97):
            break
    answers = torch.stack(found, 1).tolist()
    return [_text(prompt, answer, how.stops) for prompt, answer in zip(prompts, answers, strict=True)]


def _text(prompt: list[int], answer: list[int], stops: frozenset[int]) -> Text:
    end = next((at + 1 for at, token in enumerate(answer) if token in stops), len(answer))
    return Text(prompt + answer[:end], len(prompt))


@torch.no_grad()
def sample(
    target: Target, prompts: list[list[int]], how: Sampling, progress: Callable[[int], None] = lambda _: None
) -> Iterator[Text]:
    """An answer to every prompt, as they come; `progress` hears the number of new tokens."""
    order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))  # rows of a wave are about as long
    for start in range(0, len(order), how.rows):
        texts = _wave(target, [prompts[at] for at in order[start : start + how.rows]], how)
        progress(sum(len(text.tokens) - text.start for text in texts))
        yield from texts
