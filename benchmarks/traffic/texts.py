"""Prompts of any length, cut from committed texts. No two share a prefix, so the prefix cache never helps."""

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

_LEAST = PrefixCache().min_tokens  # shortest prefix that the cache reuses
_TRIES = 1000
_BLOCK = 16  # requests over which lengths are spread evenly


class Texts:
    """Makes prompts of sentences in random order, which end with a question and the tokens before an answer."""

    def __init__(self, sentences: Sequence[list[int]], questions: Sequence[list[int]], seed: int) -> None:
        self.sentences, self.questions = list(sentences), list(questions)
        self.random = random.Random(seed)
        self._begun: set[tuple[int, ...]] = set()

    def prompt(self, length: int) -> list[int]:
        """Return a prompt of `length` tokens whose beginning differs from all previous ones."""
        room = length - _LEAST
        question = self.random.choice(self.questions)[-room:] if room > 0 else []
        return [*self.plain(length - len(question)), *question]

    def plain(self, length: int) -> list[int]:
        """Return a prompt of sentences without a question."""
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
            f"no two prompts may begin alike, but after {len(self._begun)} the texts have no other beginning; pass a "
            "file with more texts to --prompts"
        )


def texts_of(lm: LM, prompts: Path, seed: int) -> Texts:
    """Make texts from a file of prompts and from the prompts shipped with spectr."""
    asked = [one.text for one in read_prompts(prompts)]
    documents = [row["document"] for row in shipped_tasks("summarisation")]
    every = " ".join([*asked, *(one.text for one in built_in()), *documents])
    sentences = [lm.encode(f" {part}", raw=True) for part in re.split(r"(?<=[.!?:])\s+", every) if part.strip()]
    questions = [lm.encode(text) for text in asked]
    shared = min(common_prefix(questions[0], other) for other in questions[1:]) if len(questions) > 1 else 0
    return Texts([one for one in sentences if one], [question[shared:] for question in questions], seed)


class Stream:
    """An infinite stream of requests, determined by the texts and their seed."""

    def __init__(self, texts: Texts, load: Load) -> None:
        self.texts, self.load, self.random = texts, load, texts.random
        self._waiting: list[tuple[int, int, float]] = []

    def next(self) -> Request:
        """Return the next request."""
        if not self._waiting:
            self._waiting = self._block()
        prompt, tokens, temperature = self._waiting.pop()
        return self.request(self.texts.prompt(prompt), tokens, temperature)

    def request(self, prompt: Sequence[int], tokens: int, temperature: float) -> Request:
        """Return a request for a text of exactly `tokens` tokens."""
        policy = Policy(temperature, min_new_tokens=tokens if self.load.strikes_stops else 0)
        return Request(prompt, self.random.getrandbits(32), tokens, policy)

    def short(self, count: int, tokens: int) -> list[Request]:
        """Return requests with the shortest prompts, with all temperatures in turn."""
        temperatures = self.load.temperatures
        length = self.load.prompt_tokens[0]
        return [
            self.request(self.texts.prompt(length), tokens, temperatures[at % len(temperatures)]) for at in range(count)
        ]

    def _block(self) -> list[tuple[int, int, float]]:
        """Return shuffled lengths and temperatures that cover their ranges evenly; a short run has the same mix."""
        prompts, outputs = (self._spread(*ends) for ends in (self.load.prompt_tokens, self.load.output_tokens))
        temperatures = [self.load.temperatures[at % len(self.load.temperatures)] for at in range(_BLOCK)]
        for values in (prompts, outputs, temperatures):
            self.random.shuffle(values)
        return list(zip(prompts, outputs, temperatures, strict=True))

    def _spread(self, least: int, most: int) -> list[int]:
        """Return log-uniform lengths, one from each sixteenth of the range."""
        shares = [(at + self.random.random()) / _BLOCK for at in range(_BLOCK)]
        return [min(most, int(least * ((most + 1) / least) ** share)) for share in shares]
