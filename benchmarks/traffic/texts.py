"""Prompts of any length, cut from committed texts, of which no two begin alike: nothing is read for another's sake."""

import random
import re
from collections.abc import Sequence
from pathlib import Path

from benchmarks.traffic.order import Load
from spectr.data.prompts import built_in, read_prompts, shipped_tasks
from spectr.engine import Request
from spectr.engine.prefix import PrefixCache, common_prefix
from spectr.errors import ArgumentError
from spectr.lm import LM
from spectr.policy import Policy

__all__ = ["Stream", "Texts", "texts_of"]

_LEAST = PrefixCache().min_tokens  # tokens in common that are worth a copy
_TRIES = 1000
_BLOCK = 16  # requests among which lengths are spread evenly


class Texts:
    """Sentences in random order, and at the end a question with what stands before an answer."""

    def __init__(self, sentences: Sequence[list[int]], questions: Sequence[list[int]], seed: int) -> None:
        self.sentences, self.questions = list(sentences), list(questions)
        self.random = random.Random(seed)
        self._begun: set[tuple[int, ...]] = set()

    def prompt(self, length: int) -> list[int]:
        """So many tokens, which begin like no prompt before."""
        room = length - _LEAST
        question = self.random.choice(self.questions)[-room:] if room > 0 else []
        return [*self.plain(length - len(question)), *question]

    def plain(self, length: int) -> list[int]:
        """Sentences alone."""
        for _ in range(_TRIES):
            first = self.random.choice(self.sentences)
            tokens = first[self.random.randrange(len(first)) :]
            while len(tokens) < length:
                tokens = tokens + self.random.choice(self.sentences)
            tokens = tokens[:length]
            if (beginning := tuple(tokens[:_LEAST])) not in self._begun:
                self._begun.add(beginning)
                return tokens
        raise ArgumentError(
            f"no two prompts may begin alike, and after {len(self._begun)} the texts give no other beginning; give "
            "--prompts more texts"
        )


def texts_of(lm: LM, prompts: Path, seed: int) -> Texts:
    """From a file of prompts and from those that come with spectr."""
    asked = [one.text for one in read_prompts(prompts)]
    documents = [row["document"] for row in shipped_tasks("summarisation")]
    every = " ".join([*asked, *(one.text for one in built_in()), *documents])
    sentences = [lm.encode(f" {part}", raw=True) for part in re.split(r"(?<=[.!?:])\s+", every) if part.strip()]
    questions = [lm.encode(text) for text in asked]
    shared = min(common_prefix(questions[0], other) for other in questions[1:]) if len(questions) > 1 else 0
    return Texts([one for one in sentences if one], [question[shared:] for question in questions], seed)


class Stream:
    """Requests without end, the same for the same texts and seed."""

    def __init__(self, texts: Texts, load: Load) -> None:
        self.texts, self.load, self.random = texts, load, texts.random
        self._waiting: list[tuple[int, int, float]] = []

    def next(self) -> Request:
        """One more."""
        if not self._waiting:
            self._waiting = self._block()
        prompt, tokens, temperature = self._waiting.pop()
        return self.request(self.texts.prompt(prompt), tokens, temperature)

    def request(self, prompt: Sequence[int], tokens: int, temperature: float) -> Request:
        """A text of exactly so many tokens."""
        policy = Policy(temperature, min_new_tokens=tokens if self.load.strikes_stops else 0)
        return Request(prompt, self.random.getrandbits(32), tokens, policy)

    def short(self, count: int, tokens: int) -> list[Request]:
        """Requests with the shortest prompts, one temperature after the other."""
        temperatures = self.load.temperatures
        length = self.load.prompt_tokens[0]
        return [
            self.request(self.texts.prompt(length), tokens, temperatures[at % len(temperatures)]) for at in range(count)
        ]

    def _block(self) -> list[tuple[int, int, float]]:
        """Lengths from all parts of their ranges, and all temperatures, shuffled: a short run sees the same mix."""
        prompts, outputs = (self._spread(*ends) for ends in (self.load.prompt_tokens, self.load.output_tokens))
        temperatures = [self.load.temperatures[at % len(self.load.temperatures)] for at in range(_BLOCK)]
        for values in (prompts, outputs, temperatures):
            self.random.shuffle(values)
        return list(zip(prompts, outputs, temperatures, strict=True))

    def _spread(self, least: int, most: int) -> list[int]:
        """Log-uniform, one from each sixteenth."""
        shares = [(at + self.random.random()) / _BLOCK for at in range(_BLOCK)]
        return [min(most, int(least * ((most + 1) / least) ** share)) for share in shares]
