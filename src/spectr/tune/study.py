"""What is generated to find out: prompts, how many tokens of each text, how many texts at a time."""

from dataclasses import dataclass

from spectr.engine import Job, Request
from spectr.errors import ArgumentError
from spectr.policy import Policy

__all__ = ["Study"]


@dataclass(frozen=True, slots=True)
class Study:
    """Prompts as tokens, distinct, and how texts are made of them."""

    prompts: tuple[tuple[int, ...], ...]
    tokens: int = 48  # most of each text
    temperature: float = 1.0
    rows: tuple[int, ...] = (1,)  # texts at a time; each is tuned for
    repeats: int = 2  # times that each text is written by each way
    start: tuple[int, ...] | None = None  # what the answers of an encoder-decoder model begin with

    def __post_init__(self) -> None:
        if not self.prompts or not all(self.prompts):
            raise ArgumentError("tune needs at least one prompt, and none that is empty")
        if len(set(self.prompts)) < len(self.prompts):
            raise ArgumentError("the prompts of tune must differ from each other; leave out the copies")

    @property
    def policy(self) -> Policy:
        """Of all texts."""
        return Policy(self.temperature)

    def all_at_once(self) -> Job:
        """One row for each prompt."""
        return self.batches(len(self.prompts), 0)[0]

    def batches(self, rows: int, seed: int) -> list[Job]:
        """All prompts, `rows` at a time; the last batch is filled up with the first ones again."""
        count = -(-len(self.prompts) // rows) * rows
        every = [self._request(at, seed + at, self.tokens) for at in range(count)]
        return [Job(every[at : at + rows], self.policy) for at in range(0, count, rows)]

    def long(self, rows: int, tokens: int, context: int) -> Job:
        """So many rows, as long as there is room; for timing."""
        room = min(tokens, context - max(len(self.start or prompt) for prompt in self.prompts))
        return Job([self._request(at, at, room) for at in range(rows)], self.policy)

    def _request(self, number: int, seed: int, tokens: int) -> Request:
        """For the prompt of this number, counted on from the last to the first."""
        prompt = self.prompts[number % len(self.prompts)]
        if self.start is None:
            return Request(prompt, seed, tokens)
        return Request(self.start, seed, tokens, source=prompt)
