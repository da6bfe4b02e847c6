"""`spectr.load`: a target by name, hub id or folder, with its tokenizer, a drafter and a rule, ready to generate."""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from spectr.checks import whole
from spectr.draft.options import DraftOptions
from spectr.engine import Engine, Job, Memory, Request, Result, Step
from spectr.errors import ArgumentError
from spectr.metrics import Stats
from spectr.pairing import pair, planned_rule
from spectr.policy import Policy, merge_settings
from spectr.registry import nearest
from spectr.text import TextStream
from spectr.verify import Rule

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
    stop: str | Sequence[str] | None = None  # strings that end a text
    logprobs: bool = False
    optimality_gap: bool = False

    def __post_init__(self) -> None:
        whole("n", self.n, 1)
        if self.stop is not None and not isinstance(self.stop, Iterable):
            raise ArgumentError(f"stop must be a string or several, got {self.stop!r}")
        if self.seeds is not None and not isinstance(self.seeds, Iterable):
            raise ArgumentError(f"seeds must be a list of whole numbers, one for each row, got {self.seeds!r}")

    @property
    def stops(self) -> Sequence[str]:
        """The stop strings, as several."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def seeds_from(self, seed: int, rows: int) -> Sequence[int]:
        """A seed for each row."""
        first = whole("seed", seed)
        if self.seeds is None:
            return range(first, first + rows)
        seeds = [whole("each of seeds", number) for number in self.seeds]
        if len(seeds) != rows:
            raise ArgumentError(f"seeds must have one number for each of {rows} rows, got {len(seeds)}")
        return seeds

    def refuse(self, what: str, *names: str) -> None:
        """Say so where a setting would not be listened to."""
        asked = [f.name for f in fields(self) if f.name in names and getattr(self, f.name) != f.default]
        if asked:
            raise ArgumentError(f"{what} gives one text in pieces and takes no {', '.join(asked)}; use generate")


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
        self._check_text(prompt, "a prompt")
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
        several = [prompts] if isinstance(prompts, str) else self._texts(prompts)
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
        asked.refuse("stream", "n", "seeds", "logprobs", "optimality_gap")
        watch = _Watch(TextStream(self.tokenizer, asked.stops))
        request = self._request(prompt, whole("seed", seed), max_new_tokens, watch, raw=asked.raw)
        job = Job([request], self._policy(policy))
        self.engine.check(job)  # now, not when the first piece is asked for
        return self._pieces(job, watch, Stats(), None)

    def chat(self) -> "Chat":
        """A conversation, whose cache is kept between turns."""
        return Chat(self)

    def _check_text(self, text: Any, what: str) -> None:
        """A text that can be read."""
        if not isinstance(text, str):
            raise ArgumentError(f"{what} must be a string, got {text!r}; token ids go to an Engine, as a Request")
        if not text:
            raise ArgumentError(f"{what} must not be empty")
        if self.tokenizer is None:
            raise ArgumentError("text needs a tokenizer, and this model came without; give it: load(…, tokenizer=…)")

    @staticmethod
    def _texts(prompts: Any) -> list[str]:
        """Several prompts."""
        if isinstance(prompts, bytes) or not isinstance(prompts, Iterable):
            raise ArgumentError(f"prompts must be a string or a list of strings, got {prompts!r}")
        several = list(prompts)
        if not several:
            raise ArgumentError("prompts must not be empty, got no prompt at all")
        return several

    def _request(self, prompt: str, seed: int, max_new_tokens: int, watch: "_Watch", *, raw: bool) -> Request:
        tokens, most = self.encode(prompt, raw=raw), whole("max_new_tokens", max_new_tokens, 1)
        if self.opened.start is None:
            return Request(tokens, seed, most, ends=watch)
        return Request(self.opened.start, seed, most, source=tokens, ends=watch)

    def _policy(self, settings: dict[str, Any]) -> Policy:
        """The model's own policy with these settings in place of its own. Bad words given as text become tokens, at the
        beginning of a word and inside."""
        settings = merge_settings(self.opened.settings, settings)
        given = settings.get("bad_words") or ()
        words = [given] if isinstance(given, str) else given
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
        self.stats = Stats()  # of the last answer

    @property
    def reused(self) -> int:
        """Tokens of the last prompt that did not have to be read again."""
        return self.memory.reused

    def say(self, text: str, max_new_tokens: int = 256, seed: int = 0, **settings: Any) -> Iterator[str]:
        """Ask, and get the answer in pieces. What has been said when the iterator is closed or interrupted stays in the
        history; a turn that fails does not."""
        self.lm._check_text(text, "a turn")
        if self.lm.opened.start is not None:
            raise ArgumentError("a conversation needs a decoder-only model; this one has an encoder: use generate")
        asked, policy = _sorted_out(settings)
        asked.refuse("say", "raw", "n", "seeds", "logprobs", "optimality_gap")
        turns = [*self.turns, {"role": "user", "content": text}]
        tokens, most = self.lm.encode_turns(turns), whole("max_new_tokens", max_new_tokens, 1)
        self._check_room(len(tokens), most)
        watch = _Watch(TextStream(self.lm.tokenizer, asked.stops))
        job = Job([Request(tokens, whole("seed", seed) + len(turns), most, ends=watch)], self.lm._policy(policy))
        self.lm.engine.check(job)  # now, not when the first piece is asked for
        return self._answer(job, turns, watch)

    def _check_room(self, tokens: int, most: int) -> None:
        context = self.lm.engine.target.context
        if tokens + most > context:
            raise ArgumentError(
                f"a conversation and its next answer must fit into the model's {context} positions, got {tokens} + "
                f"{most}; lower max_new_tokens, say less, take early turns out of turns, or begin another conversation"
            )

    def _answer(self, job: Job, turns: list[dict[str, str]], watch: _Watch) -> Iterator[str]:
        self.stats = Stats()
        try:
            yield from self.lm._pieces(job, watch, self.stats, self.memory)
        except (GeneratorExit, KeyboardInterrupt):  # what was said was said
            self._record(turns, watch)
            raise
        self._record(turns, watch)

    def _record(self, turns: list[dict[str, str]], watch: _Watch) -> None:
        self.turns = [*turns, {"role": "assistant", "content": watch.stream.text}]


def load(model: Any, drafter: Any = "auto", rule: str | Rule = "race", **options: Any) -> LM:
    """A model by catalog name, hub id or local folder, or one that is loaded already.

    `drafter`: auto (the one trained for this model, where one comes with spectr, else lookup), none, lookup, ngram,
    early_exit, random, a trained drafter's folder, a model's name or folder, several joined by +, or a drafter.
    `options`: of drafting (drafts, length, nodes, tree, layers, order, text, vocabulary, or in place of the first four
    plan: a profile that `spectr tune` wrote, or "auto", which chooses at every step and may begin with a profile) and
    of loading (dtype, device, device_map, quantization_config, attn_implementation, trust_remote_code, tokenizer, and
    progress, a function of one sentence). On a GPU steps are captured once and replayed as graphs, unless
    `capture=False`; `compile=True` also compiles layers, which takes seconds at the beginning.
    """
    from spectr.models.generation_config import unsupported_settings
    from spectr.models.hf import Loading, open_loaded, open_model

    drafting, loading = ([f.name for f in fields(kind)] for kind in (DraftOptions, Loading))
    known = [*drafting, *loading, "capture", "compile", "progress", "tokenizer"]
    for name in options:
        if name not in known:
            raise ArgumentError(f"load has no option {name!r}; {nearest(name, known)}")
    progress = options.get("progress") or (lambda _: None)
    chosen = DraftOptions(**{name: options[name] for name in options if name in drafting})
    made = planned_rule(rule, chosen)
    how = {name: options[name] for name in options if name in loading}
    tokenizer = options.get("tokenizer")
    if isinstance(model, str | os.PathLike):
        opened = open_model(os.fspath(model), progress, tokenizer, **how)
        partner = pair(drafter, opened, made.card, chosen, {**how, "progress": progress})
    elif how:
        raise ArgumentError(f"this model is loaded already, so {', '.join(how)} would change nothing; use model.to(…)")
    else:
        opened = open_loaded(model, tokenizer)
        partner = pair(drafter, opened, made.card, chosen)
    if said := unsupported_settings(opened.target.model, opened.target.vocabulary):
        (options.get("progress") or partial(warnings.warn, stacklevel=2))(said)
    engine = Engine(opened.target, partner, made, opened.stops)
    _hasten(engine, options.get("capture"), bool(options.get("compile")), progress)
    return LM(engine, opened)


def _hasten(engine: Engine, capture: bool | None, compiled: bool, progress: Callable[[str], None]) -> None:
    """Steps as graphs, where there are any, and layers compiled, if they shall be."""
    device = engine.target.device.type
    if capture and device != "cuda":
        raise ArgumentError(f"capture replays steps as CUDA graphs, and this model is on {device}; leave it out")
    engine.capture = device == "cuda" if capture is None else capture
    if compiled:
        progress("compiling one layer for all; what was compiled before is taken from the cache")
        engine.compile()
