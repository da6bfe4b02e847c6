"""`spectr.load`: a target by name, hub id or folder, with its tokenizer, a drafter and a rule, ready to generate."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, overload

from spectr.engine import Engine, Job, Memory, Request, Result, Step
from spectr.errors import ArgumentError
from spectr.metrics import Stats
from spectr.pairing import DraftOptions, pair
from spectr.policy import Policy
from spectr.registry import nearest
from spectr.text import TextStream
from spectr.verify import rule as named_rule

if TYPE_CHECKING:
    from spectr.models.hf import OpenedModel

__all__ = ["LM", "Chat", "Output", "load"]


@dataclass(frozen=True, slots=True)
class Output:
    """One generated text."""

    text: str
    tokens: list[int]
    finish_reason: str  # "stop" or "length"
    stats: Stats
    logprobs: list[float] | None = None  # of the tokens, under the model's law before the policy
    steps: list[Step] = field(default_factory=list, repr=False)  # what each target call added


@dataclass(frozen=True, slots=True)
class _Asked:
    """How a text is asked for, besides the policy."""

    raw: bool = False  # plain text: no chat template
    n: int = 1  # texts per prompt
    seeds: Sequence[int] | None = None  # one for each row, in place of seed, seed + 1, …
    stop: str | Sequence[str] = ()  # strings that end a text
    logprobs: bool = False
    optimality_gap: bool = False

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ArgumentError(f"n must be at least 1, got {self.n}")

    @property
    def stops(self) -> Sequence[str]:
        """The stop strings, as several."""
        return [self.stop] if isinstance(self.stop, str) else self.stop

    def seeds_from(self, seed: int, rows: int) -> Sequence[int]:
        """A seed for each row."""
        if self.seeds is not None and len(self.seeds) != rows:
            raise ArgumentError(f"seeds must have one number for each of {rows} rows, got {len(self.seeds)}")
        return range(seed, seed + rows) if self.seeds is None else self.seeds


def _sorted_out(settings: Mapping[str, Any]) -> tuple[_Asked, dict[str, Any]]:
    """Settings of the request and of the policy; an unknown one is refused with the nearest."""
    asked, policy = ([f.name for f in fields(kind)] for kind in (_Asked, Policy))
    if settings.get("num_beams", 1) != 1:
        raise ArgumentError("beam search is not offered: drafts are verified against a law, and beams have none")
    for name in settings:
        if name not in [*asked, *policy]:
            raise ArgumentError(f"generation has no setting {name!r}; {nearest(name, [*asked, *policy])}")
    mine = {name: value for name, value in settings.items() if name in asked}
    return _Asked(**mine), {name: value for name, value in settings.items() if name in policy}


class LM:
    """A target with its tokenizer, a drafter and a rule."""

    def __init__(self, engine: Engine, opened: "OpenedModel") -> None:
        self.engine, self.opened, self.tokenizer = engine, opened, opened.tokenizer

    def encode(self, prompt: str, *, raw: bool = False) -> list[int]:
        """Token ids, with the chat template applied where the model has one; `raw` for plain text."""
        if raw or not getattr(self.tokenizer, "chat_template", None):
            return list(self.tokenizer(prompt)["input_ids"])
        return self.encode_turns([{"role": "user", "content": prompt}])

    def encode_turns(self, turns: Sequence[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation, up to where the model's answer begins."""
        if not getattr(self.tokenizer, "chat_template", None):
            raise ArgumentError("a conversation needs a model with a chat template; this tokenizer has none")
        made = self.tokenizer.apply_chat_template(list(turns), add_generation_prompt=True, return_dict=True)
        return list(made["input_ids"])

    @overload
    def generate(self, prompts: str, max_new_tokens: int = 128, seed: int = 0, **settings: Any) -> Output: ...

    @overload
    def generate(
        self, prompts: Sequence[str], max_new_tokens: int = 128, seed: int = 0, **settings: Any
    ) -> list[Output]: ...

    def generate(
        self, prompts: str | Sequence[str], max_new_tokens: int = 128, seed: int = 0, **settings: Any
    ) -> Output | list[Output]:
        """An `Output` for one prompt; for a list of prompts a list, `n` for each, in order; row i uses seed + i.

        `settings`: n, seeds, stop, raw, logprobs, optimality_gap, and those of the policy (temperature, top_k, …).
        """
        asked, policy = _sorted_out(settings)
        if isinstance(prompts, str) and asked.n > 1:
            raise ArgumentError(f"n={asked.n} texts need a list of prompts, since they come as a list; give [prompt]")
        several = [prompts] if isinstance(prompts, str) else list(prompts)
        if not several or any(not prompt for prompt in several):
            raise ArgumentError("a prompt must not be empty")
        rows = [(prompt, TextStream(self.tokenizer, asked.stops)) for prompt in several for _ in range(asked.n)]
        seeds = asked.seeds_from(seed, len(rows))
        requests = [
            self._request(prompt, seeds[i], max_new_tokens, _Watch(stream), raw=asked.raw)
            for i, (prompt, stream) in enumerate(rows)
        ]
        job = Job(requests, self._policy(policy), asked.logprobs, asked.optimality_gap)
        outputs = [
            self._output(result, stream) for result, (_, stream) in zip(self.engine.generate(job), rows, strict=True)
        ]
        return outputs[0] if isinstance(prompts, str) else outputs

    def stream(self, prompt: str, max_new_tokens: int = 128, seed: int = 0, **settings: Any) -> Iterator[str]:
        """The text in pieces; never half a character. Closing the iterator cancels."""
        asked, policy = _sorted_out(settings)
        if not prompt:
            raise ArgumentError("a prompt must not be empty")
        watch = _Watch(TextStream(self.tokenizer, asked.stops))
        request = self._request(prompt, asked.seeds_from(seed, 1)[0], max_new_tokens, watch, raw=asked.raw)
        return self._pieces(Job([request], self._policy(policy)), watch, Stats(), None)

    def chat(self) -> "Chat":
        """A conversation, whose cache is kept between turns."""
        return Chat(self)

    def _request(self, prompt: str, seed: int, max_new_tokens: int, watch: "_Watch", *, raw: bool) -> Request:
        tokens = self.encode(prompt, raw=raw)
        if self.opened.start is None:
            return Request(tokens, seed, max_new_tokens, ends=watch)
        return Request([self.opened.start], seed, max_new_tokens, source=tokens, ends=watch)

    def _policy(self, settings: dict[str, Any]) -> Policy:
        """A policy, with bad words given as text turned into tokens, at the beginning of a word and inside."""
        words = settings.get("bad_words") or ()
        spelled = [form for word in words for form in ([word, f" {word}"] if isinstance(word, str) else [word])]
        ids = [
            self.tokenizer(form, add_special_tokens=False)["input_ids"] if isinstance(form, str) else form
            for form in spelled
        ]
        return Policy(**{**settings, "bad_words": ids}) if ids else Policy(**settings)

    def _pieces(self, job: Job, watch: "_Watch", stats: Stats, memory: Memory | None) -> Iterator[str]:
        for _ in self.engine.stream(job, [stats], memory):
            if piece := watch.take():
                yield piece
        if piece := watch.stream.finish():
            yield piece

    @staticmethod
    def _output(result: Result, stream: TextStream) -> Output:
        stream.finish()
        return Output(stream.text, result.tokens, result.finish_reason, result.stats, result.logprobs, result.steps)


@dataclass(slots=True)
class _Watch:
    """Turns a row's tokens into text as they come, and says when a stop string ends it."""

    stream: TextStream
    _fresh: list[str] = field(default_factory=list)

    def __call__(self, tokens: list[int]) -> int | None:
        """How many of the new tokens belong to the text, if it ends among them."""
        for count, token in enumerate(tokens, start=1):
            self._fresh.append(self.stream.feed(token))
            if self.stream.ended:
                return count
        return None

    def take(self) -> str:
        """What came since the last time."""
        piece = "".join(self._fresh)
        self._fresh.clear()
        return piece


class Chat:
    """A conversation: its turns, and what the target remembers of them."""

    def __init__(self, lm: LM) -> None:
        self.lm = lm
        self.turns: list[dict[str, str]] = []
        self.memory = Memory()
        self.reused = 0  # tokens of the last prompt that did not have to be read again
        self.stats = Stats()  # of the last answer

    def say(self, text: str, max_new_tokens: int = 256, seed: int = 0, **settings: Any) -> Iterator[str]:
        """Ask, and get the answer in pieces. What has been said when the iterator is closed stays in the history."""
        if not text:
            raise ArgumentError("a turn must not be empty")
        if self.lm.opened.start is not None:
            raise ArgumentError("a conversation needs a decoder-only model; this one has an encoder: use generate")
        asked, policy = _sorted_out(settings)
        turns = [*self.turns, {"role": "user", "content": text}]
        tokens = self.lm.encode_turns(turns)
        watch = _Watch(TextStream(self.lm.tokenizer, asked.stops))
        job = Job([Request(tokens, seed + len(turns), max_new_tokens, ends=watch)], self.lm._policy(policy))
        return self._answer(job, turns, watch)

    def _answer(self, job: Job, turns: list[dict[str, str]], watch: _Watch) -> Iterator[str]:
        held = list(self.memory.text)
        pairs = enumerate(zip(held, job.requests[0].prompt, strict=False))
        self.reused = next((at for at, (a, b) in pairs if a != b), min(len(held), len(job.requests[0].prompt) - 1))
        self.stats = Stats()
        try:
            yield from self.lm._pieces(job, watch, self.stats, self.memory)
        finally:
            self.turns = [*turns, {"role": "assistant", "content": watch.stream.text}]


def load(model: Any, drafter: Any = "lookup", rule: str = "race", **options: Any) -> LM:
    """A model by catalog name, hub id or local folder, or one that is loaded already.

    `drafter`: none, lookup, ngram, early_exit, random, a model's name or folder, several joined by +, or a drafter.
    `options`: of drafting (drafts, length, nodes, tree, layers, order, text) and of loading (dtype, device, device_map,
    quantization_config, attn_implementation, trust_remote_code, tokenizer, and progress, a function of one sentence).
    """
    from spectr.models.hf import Loading, open_loaded, open_model

    drafting, loading = [f.name for f in fields(DraftOptions)], [*(f.name for f in fields(Loading)), "progress"]
    for name in options:
        if name not in [*drafting, *loading, "tokenizer"]:
            raise ArgumentError(f"load has no option {name!r}; {nearest(name, [*drafting, *loading, 'tokenizer'])}")
    made = named_rule(rule)
    how = {name: options[name] for name in options if name in loading}
    opened = open_model(model, **how) if isinstance(model, str) else open_loaded(model, options.get("tokenizer"))
    chosen = DraftOptions(**{name: options[name] for name in options if name in drafting})
    return LM(Engine(opened.target, pair(drafter, opened, made.card, chosen, how), made, opened.stops), opened)
