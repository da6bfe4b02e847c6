"""The text of a request for users: pieces of text while it runs, and an `Output` at its end."""

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from html import escape
from os import PathLike
from pathlib import Path
from typing import Any

from spectr.engine import Handle, Request, Result, Step, TokenLogprobs
from spectr.engine.metrics import Stats
from spectr.text.stream import TextStream, tokenizer_lock

__all__ = ["Output", "TextHandle", "TextReader", "as_output"]


@dataclass(frozen=True, slots=True)
class Output:
    """One generated text."""

    text: str  # empty without a tokenizer
    tokens: list[int]
    finish_reason: str  # "stop" or "length"; "cancelled" if it was cancelled before its end
    stats: Stats
    logprobs: list[float] | None = None  # of the tokens, under the model's distribution before the policy
    steps: list[Step] = field(default_factory=list, repr=False)  # what each target call added
    seed: int = 0  # generate(prompt, seed=out.seed) gives the same text again
    # Of the likeliest tokens in the place of each token.
    top_logprobs: list[tuple[tuple[int, float], ...]] | None = None
    prompt_logprobs: list[TokenLogprobs | None] | None = None  # of the prompt's tokens; None for the first
    reused: int = 0  # prompt tokens that were copied from another text and not prefilled
    tokenizer: Any = field(default=None, repr=False, compare=False)  # decodes single tokens for pages

    def save_html(self, path: str | PathLike[str]) -> None:
        """Write a self-contained page that shows the text and the tree of every step. The text must have been traced:
        `generate(…, trace=True)`."""
        from spectr.view import TokenTexts, save_page

        save_page(Path(path), self.steps, TokenTexts(self.tokenizer), self._summary)

    def _repr_html_(self) -> str | None:
        """Return the same page for notebooks; None if the text was not traced."""
        from spectr.view import TokenTexts, page

        if self.tokenizer is None or all(step.tree is None for step in self.steps):
            return None
        shown = escape(page(self.steps, TokenTexts(self.tokenizer), self._summary))
        return f'<iframe srcdoc="{shown}" width="100%" height="640" sandbox="allow-scripts"></iframe>'

    @property
    def _summary(self) -> str:
        stats = self.stats
        return (
            f"{len(self.tokens)} tokens in {stats.steps} calls of the model, {stats.block_efficiency:.2f} a call, "
            f"seed {self.seed}"
        )


@dataclass(slots=True)
class TextReader:
    """Decodes the tokens of a text into pieces, and finds stop strings."""

    stream: TextStream

    def feed(self, tokens: list[int]) -> tuple[str, int | None]:
        """Return the text that can be shown, and how many of the tokens belong to the text if a stop string ends
        it."""
        with nullcontext() if self.stream.knows_bytes else tokenizer_lock(self.stream.tokenizer):
            return self.stream.feed_all(tokens)

    def finish(self) -> str:
        """Return the text that was held back."""
        with tokenizer_lock(self.stream.tokenizer):
            return self.stream.finish()


class TextHandle(Iterator[str]):
    """A text that is being generated. Iterate over its pieces with `for` or `async for`, `await` it, wait for its
    `result`, or `cancel` it. The text so far is available at any time."""

    def __init__(self, handle: Handle, ended: Callable[["TextHandle"], None] = lambda _: None) -> None:
        self._handle, self._ended = handle, ended
        self.has_begun = False  # somebody has begun to read the text, or to wait for it

    @property
    def seed(self) -> int:
        """The seed of the text."""
        return self._handle.request.seed

    @property
    def stats(self) -> Stats:
        """The statistics of the steps so far."""
        return self._handle.so_far.stats

    @property
    def tokens(self) -> list[int]:
        """The tokens so far."""
        return self._handle.so_far.tokens

    @property
    def steps(self) -> list[Step]:
        """The steps so far."""
        return self._handle.so_far.steps

    @property
    def text(self) -> str:
        """The text so far."""
        return self._handle.so_far.text

    @property
    def reused(self) -> int:
        """The number of prompt tokens that were copied from another text and not prefilled."""
        return self._handle.so_far.reused

    @property
    def finish_reason(self) -> str | None:
        """None while the text is generated; then "stop", "length", "cancelled", or "error" if it failed."""
        return self._handle.so_far.finish_reason

    @property
    def output(self) -> Output:
        """The text so far as an `Output`."""
        return as_output(self._handle.so_far, self._handle.request)

    def result(self, timeout: float | None = None) -> Output:
        """Wait for the end of the text, at most `timeout` seconds, and return it; raise the error that the request
        failed with."""
        self.has_begun = True
        try:
            self._handle.result(timeout)
        except KeyboardInterrupt:
            self.cancel()
            raise
        self._finish()
        return self.output

    def __next__(self) -> str:
        self.has_begun = True
        try:
            for step in self._handle:
                if step.text:
                    return step.text
        except KeyboardInterrupt:
            self.cancel()
            raise
        self._finish()
        raise StopIteration

    def __await__(self) -> Generator[Any, None, Output]:
        return self._awaited().__await__()

    async def _awaited(self) -> Output:
        async for _ in self:
            pass
        return self.output

    async def __aiter__(self) -> AsyncIterator[str]:
        self.has_begun = True
        async for step in self._handle:
            if step.text:
                yield step.text
        self._finish()

    def cancel(self) -> None:
        """Cancel the request; the text so far stays."""
        if self.finish_reason is None:
            self._handle.cancel()
        if self.has_begun and self.finish_reason != "error":
            self._finish()
        self._ended = lambda _: None

    close = cancel

    def _finish(self) -> None:
        ended, self._ended = self._ended, lambda _: None
        ended(self)

    def __enter__(self) -> "TextHandle":
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


def as_output(result: Result, request: Request) -> Output:
    """Convert a result of the engine to an `Output`."""
    logprobs, reader, seed = result.logprobs, request.reader, request.seed
    tokenizer = reader.stream.tokenizer if isinstance(reader, TextReader) else None
    return Output(
        result.text, list(result.tokens), result.finish_reason or "cancelled", result.stats,
        None if logprobs is None else [token.logprob for token in logprobs], list(result.steps), seed,
        None if logprobs is None else [token.top for token in logprobs], result.prompt_logprobs, result.reused,
        tokenizer,
    )  # fmt: skip
