"""`spectr.load`: a target by name, hub id or folder, with its tokenizer, a drafter and a rule, ready to generate."""

import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, overload

from spectr.checks import whole
from spectr.coins import derived_seed
from spectr.draft.options import DraftOptions
from spectr.engine import LOCK, Engine, Job, Memory, Request, Result, Step
from spectr.errors import ArgumentError
from spectr.metrics import Stats
from spectr.notices import notice
from spectr.pairing import pair, planned_rule
from spectr.policy import Policy, merge_settings
from spectr.prompt import Message, Prompt, as_ids, as_messages, check_text, is_single
from spectr.registry import nearest
from spectr.text import TextStream
from spectr.verify import Rule

if TYPE_CHECKING:
    from spectr.models.hf import OpenedModel

__all__ = ["LM", "Chat", "Output", "TextPieces", "load"]

_RANDOM_BITS = 53  # a seed that any JSON reader keeps whole
_MAX_NEW_TOKENS = 128


@dataclass(frozen=True, slots=True)
class Output:
    """One generated text."""

    text: str  # empty where there is no tokenizer
    tokens: list[int]
    finish_reason: str  # "stop" or "length"; "cancelled" for a stream that was closed before its end
    stats: Stats
    logprobs: list[float] | None = None  # of the tokens, under the model's distribution before the policy
    steps: list[Step] = field(default_factory=list, repr=False)  # what each target call added
    seed: int = 0  # what this text was drawn with; generate(prompt, seed=out.seed) gives it again


@dataclass(frozen=True, slots=True)
class _RequestSettings:
    """Settings of a request that do not belong to the policy."""

    raw: bool = False  # plain text: no chat template
    n: int | None = None  # texts per prompt; if given, outputs come as a list
    seeds: Sequence[int] | None = None  # one for each row, in place of those derived from `seed`
    stop: str | Sequence[str] | None = None  # strings that end a text
    logprobs: bool = False
    optimality_gap: bool = False

    def __post_init__(self) -> None:
        if self.n is not None:
            whole("n", self.n, 1)
        if self.stop is not None and not isinstance(self.stop, Iterable):
            raise ArgumentError(f"stop must be a string or several, got {self.stop!r}")
        if self.seeds is not None and not isinstance(self.seeds, Iterable):
            raise ArgumentError(f"seeds must be a list of whole numbers, one for each row, got {self.seeds!r}")

    @property
    def stops(self) -> Sequence[str]:
        """The stop strings, as several."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def row_seeds(self, seed: int | None, rows: int) -> Sequence[int]:
        """A seed for each row: `seed` itself for the first, and hashes of it and of the row for the others."""
        first = _seed(seed)
        if self.seeds is None:
            return [derived_seed(first, row) for row in range(rows)]
        seeds = [whole("each of seeds", number) for number in self.seeds]
        if len(seeds) != rows:
            raise ArgumentError(f"seeds must have one number for each of {rows} rows, got {len(seeds)}")
        return seeds

    def refuse(self, what: str, *names: str) -> None:
        """Raise if one of `names` was given, since `what` would ignore it."""
        given = [f.name for f in fields(self) if f.name in names and getattr(self, f.name) != f.default]
        if given:
            raise ArgumentError(f"{what} gives one text in pieces and takes no {', '.join(given)}; use generate")


def _seed(seed: int | None) -> int:
    """The seed given, or a random one."""
    return secrets.randbits(_RANDOM_BITS) if seed is None else whole("seed", seed)


def _limit(max_new_tokens: int | None, settings: dict[str, Any], usual: int) -> int:
    """The most new tokens, under whichever of its two names it was given; `max_tokens` leaves the settings."""
    alias = settings.pop("max_tokens", None)
    if alias is not None and max_new_tokens is not None:
        raise ArgumentError(
            f"max_tokens and max_new_tokens mean the same; give one of them, got {alias} and {max_new_tokens}"
        )
    given = max_new_tokens if alias is None else alias
    return usual if given is None else whole("max_new_tokens", given, 1)


def _split_settings(settings: Mapping[str, Any]) -> tuple[_RequestSettings, dict[str, Any]]:
    """Settings of the request and of the policy; an unknown one is refused with the nearest."""
    of_request, of_policy = ([f.name for f in fields(kind)] for kind in (_RequestSettings, Policy))
    if settings.get("num_beams", 1) != 1:
        raise ArgumentError("beam search is not offered: drafts are verified against a distribution; leave num_beams")
    known = ["max_new_tokens", "max_tokens", "seed", *of_request, *of_policy]
    for name in settings:
        if name not in known:
            raise ArgumentError(f"generation has no setting {name!r}; {nearest(name, known)}")
    mine = {name: value for name, value in settings.items() if name in of_request}
    return _RequestSettings(**mine), {name: value for name, value in settings.items() if name in of_policy}


class LM:
    """A target with its tokenizer, a drafter and a rule. Several threads may use one: their steps take turns."""

    def __init__(self, engine: Engine, opened: "OpenedModel") -> None:
        self.engine, self.opened, self.tokenizer = engine, opened, opened.tokenizer

    @property
    def settings(self) -> Mapping[str, Any]:
        """The model's own settings, from its generation_config; what a call says stands in their place."""
        return self.opened.settings

    def __repr__(self) -> str:
        net, drafter = self.opened.target.model, self.engine.drafter
        name = getattr(net, "name_or_path", "") or type(net).__name__
        dtype = str(net.dtype).removeprefix("torch.")
        nodes = f", nodes={drafter.nodes}" if drafter.nodes > 1 else ""
        rule = self.engine.rule.card.name
        return f"<LM {name!r}: drafter={drafter.name}{nodes}, rule={rule}, {dtype} on {net.device}>"

    def encode(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """Token ids of a prompt: a string, with the chat template applied where the model has one unless it is `raw`;
        a list of messages; or token ids, which are taken as they are."""
        if (ids := as_ids(prompt)) is not None:
            return ids
        if (messages := as_messages(prompt)) is not None:
            return self.encode_turns(messages)
        text = check_text(prompt, "a prompt")
        self._need_tokenizer()
        if raw or not getattr(self.tokenizer, "chat_template", None):
            with LOCK:  # fast tokenizers refuse to be used by two threads at once
                return list(self.tokenizer(text)["input_ids"])
        return self.encode_turns([{"role": "user", "content": text}])

    def encode_turns(self, turns: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, up to where the model's answer begins."""
        self._need_tokenizer()
        if not getattr(self.tokenizer, "chat_template", None):
            raise ArgumentError("a conversation needs a model with a chat template; this tokenizer has none")
        for turn in turns:
            check_text(turn["content"], "the content of a message")
        with LOCK:
            made = self.tokenizer.apply_chat_template(
                [dict(turn) for turn in turns], add_generation_prompt=True, return_dict=True
            )
        return list(made["input_ids"])

    @overload
    def generate(
        self, prompts: Prompt, max_new_tokens: int | None = None, seed: int | None = None, **settings: Any
    ) -> Output: ...

    @overload
    def generate(
        self, prompts: Sequence[Prompt], max_new_tokens: int | None = None, seed: int | None = None, **settings: Any
    ) -> list[Output]: ...

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        max_new_tokens: int | None = None,
        seed: int | None = None,
        **settings: Any,
    ) -> Output | list[Output]:
        """An `Output` for one prompt; a list for a list of prompts, or where `n` is given, `n` for each, in order.

        A prompt is a string, a list of token ids, or a list of messages. At most 128 new tokens unless
        `max_new_tokens` (or `max_tokens`) says otherwise. Without a `seed` a random one is taken; every output tells
        its own. `settings`: n, seeds, stop, raw, logprobs, optimality_gap, and those of the policy (temperature,
        top_k, …), whose defaults are the model's own.
        """
        limit = _limit(max_new_tokens, settings, _MAX_NEW_TOKENS)
        asked, policy = _split_settings(settings)
        several = [prompts] if is_single(prompts) else self._several(prompts)
        streams = [self._text_stream(asked.stops) for _ in several for _ in range(asked.n or 1)]
        seeds = asked.row_seeds(seed, len(streams))
        encoded = [self.encode(prompt, raw=asked.raw) for prompt in several for _ in range(asked.n or 1)]
        requests = [
            self._request(tokens, seeds[row], limit, _Watch(streams[row])) for row, tokens in enumerate(encoded)
        ]
        job = Job(requests, self._policy(policy), asked.logprobs, asked.optimality_gap)
        results = self.engine.generate(job)
        outputs = [_output(*found) for found in zip(results, streams, seeds, strict=True)]
        return outputs[0] if is_single(prompts) and asked.n is None else outputs

    def stream(
        self, prompt: Prompt, max_new_tokens: int | None = None, seed: int | None = None, **settings: Any
    ) -> "TextPieces":
        """The text in pieces, never half a character. Closing the iterator cancels; its `output` has what came."""
        limit = _limit(max_new_tokens, settings, _MAX_NEW_TOKENS)
        asked, policy = _split_settings(settings)
        asked.refuse("stream", "n", "seeds")
        watch = _Watch(self._text_stream(asked.stops))
        if not is_single(prompt):
            raise ArgumentError(f"stream takes one prompt: a string, token ids or messages, got {prompt!r}")
        request = self._request(self.encode(prompt, raw=asked.raw), _seed(seed), limit, watch)
        job = Job([request], self._policy(policy), asked.logprobs, asked.optimality_gap)
        self.engine.check(job)  # now, not when the first piece is asked for
        return TextPieces(self.engine, job, watch)

    def chat(self) -> "Chat":
        """A conversation, whose cache is kept between turns."""
        return Chat(self)

    def _need_tokenizer(self) -> None:
        if self.tokenizer is None:
            raise ArgumentError("text needs a tokenizer, and this model came without; give it: load(…, tokenizer=…)")

    def _text_stream(self, stops: Sequence[str]) -> TextStream | None:
        """What turns tokens into text, where there is a tokenizer."""
        if self.tokenizer is not None:
            return TextStream(self.tokenizer, stops)
        if stops:
            self._need_tokenizer()
        return None

    @staticmethod
    def _several(prompts: Any) -> list[Prompt]:
        """Several prompts."""
        if isinstance(prompts, bytes) or not isinstance(prompts, Iterable):
            raise ArgumentError(f"prompts must be a string, token ids or messages, or a list of those, got {prompts!r}")
        several = list(prompts)
        if not several:
            raise ArgumentError("prompts must not be empty, got no prompt at all")
        return several

    def _request(self, tokens: list[int], seed: int, limit: int, watch: "_Watch") -> Request:
        if self.opened.start is None:
            return Request(tokens, seed, limit, ends=watch)
        return Request(self.opened.start, seed, limit, source=tokens, ends=watch)

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


def _output(result: Result, stream: TextStream | None, seed: int) -> Output:
    text = "" if stream is None else (stream.finish(), stream.text)[1]
    return Output(text, result.tokens, result.finish_reason, result.stats, result.logprobs, result.steps, seed)


@dataclass(slots=True)
class _Watch:
    """Turns a row's tokens into text as they come, and says when a stop string ends it."""

    stream: TextStream | None
    _fresh: list[str] = field(default_factory=list)

    def __call__(self, tokens: list[int]) -> int | None:
        """How many of the new tokens belong to the text, if it ends among them."""
        if self.stream is None:
            return None
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

    def finish(self) -> str:
        """What was held back, once no token follows."""
        return "" if self.stream is None else self.stream.finish()

    @property
    def text(self) -> str:
        """All of the text so far."""
        return "" if self.stream is None else self.stream.text


class TextPieces(Iterator[str]):
    """One text in pieces, as they come, and all that is known of it so far."""

    def __init__(
        self,
        engine: Engine,
        job: Job,
        watch: _Watch,
        memory: Memory | None = None,
        ended: Callable[["TextPieces"], None] = lambda _: None,
    ) -> None:
        self.stats, self.tokens, self.steps = Stats(), list[int](), list[Step]()
        self.finish_reason: str | None = None  # None while it goes on; "cancelled" if it was closed before its end
        self.seed = job.requests[0].seed
        self._watch, self._ended, self._has_logprobs = watch, ended, job.logprobs
        self._running = engine.stream(job, [self.stats], memory)
        self._started = False

    @property
    def text(self) -> str:
        """Everything shown so far."""
        return self._watch.text

    @property
    def output(self) -> Output:
        """What has come so far, as `generate` would give it."""
        reason = self.finish_reason or "cancelled"
        logprobs = [value for step in self.steps for value in step.logprobs or ()] if self._has_logprobs else None
        return Output(self.text, list(self.tokens), reason, self.stats, logprobs, list(self.steps), self.seed)

    def __next__(self) -> str:
        if self.finish_reason is not None:
            raise StopIteration
        self._started = True
        try:
            for step in self._running:
                self.tokens += step.tokens
                self.steps.append(step)
                if step.finish_reason is not None:
                    return self._finish(step.finish_reason)
                if piece := self._watch.take():
                    return piece
        except KeyboardInterrupt:
            self.close()
            raise
        except BaseException:
            self.finish_reason = "error"
            raise
        raise StopIteration

    def _finish(self, reason: str) -> str:
        """The last piece, which may be empty; nothing follows."""
        self.finish_reason = reason
        self._running.close()
        piece = self._watch.take() + self._watch.finish()
        self._ended(self)
        if not piece:
            raise StopIteration
        return piece

    def close(self) -> None:
        """Cancel; what came so far stays."""
        if self.finish_reason is not None:
            return
        self.finish_reason = "cancelled"
        self._running.close()
        self._watch.finish()
        if self._started:
            self._ended(self)

    def __enter__(self) -> "TextPieces":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "finish_reason", "never began") is None:
            self.close()


class Chat:
    """A conversation: its turns, and what the target remembers of them."""

    def __init__(self, lm: LM) -> None:
        self.lm = lm
        self.turns: list[dict[str, str]] = []
        self.memory = Memory()
        self.stats = Stats()  # of the last answer
        self._answering: TextPieces | None = None

    @property
    def reused(self) -> int:
        """Tokens of the last prompt that did not have to be read again."""
        return self.memory.reused

    def say(self, text: str, max_new_tokens: int | None = None, seed: int | None = None, **settings: Any) -> TextPieces:
        """Ask, and get the answer in pieces, of at most 256 tokens unless told otherwise. What has been said when the
        iterator is closed or interrupted stays in the history; a turn that fails does not."""
        limit = _limit(max_new_tokens, settings, 2 * _MAX_NEW_TOKENS)
        check_text(text, "a turn")
        self.lm._need_tokenizer()
        if self.lm.opened.start is not None:
            raise ArgumentError("a conversation needs a decoder-only model; this one has an encoder: use generate")
        asked, policy = _split_settings(settings)
        asked.refuse("say", "raw", "n", "seeds")
        turns = [*self.turns, {"role": "user", "content": text}]
        tokens = self.lm.encode_turns(turns)
        self._check_room(len(tokens), limit)
        watch = _Watch(self.lm._text_stream(asked.stops))
        request = Request(tokens, _seed(seed), limit, ends=watch)
        job = Job([request], self.lm._policy(policy), asked.logprobs, asked.optimality_gap)
        self.lm.engine.check(job)  # now, not when the first piece is asked for
        return self._answer(job, turns, watch)

    def _check_room(self, tokens: int, limit: int) -> None:
        context = self.lm.engine.target.context
        if tokens + limit > context:
            raise ArgumentError(
                f"a conversation and its next answer must fit into the model's {context} positions, got {tokens} + "
                f"{limit}; lower max_new_tokens, say less, take early turns out of turns, or begin another conversation"
            )

    def _answer(self, job: Job, turns: list[dict[str, str]], watch: _Watch) -> TextPieces:
        """Cancel an answer that is still running, and begin the next."""
        if self._answering is not None:
            self._answering.close()

        def record(pieces: TextPieces) -> None:
            self.turns = [*turns, {"role": "assistant", "content": pieces.text}]

        pieces = TextPieces(self.lm.engine, job, watch, self.memory, record)
        self.stats, self._answering = pieces.stats, pieces
        return pieces


def load(model: Any, drafter: Any = "auto", rule: str | Rule = "race", **options: Any) -> LM:
    """A model by catalog name, hub id or local folder, or one that is loaded already.

    `drafter`: auto (the one trained for this model, where one comes with spectr, else none), none, lookup, ngram,
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
        drafter_loading = {**how, "dtype": opened.target.model.dtype, "progress": progress}
        partner = pair(drafter, opened, made.card, chosen, drafter_loading)
    elif how:
        raise ArgumentError(f"this model is loaded already, so {', '.join(how)} would change nothing; use model.to(…)")
    else:
        opened = open_loaded(model, tokenizer)
        partner = pair(drafter, opened, made.card, chosen)
    if said := unsupported_settings(opened.target.model, opened.target.vocabulary):
        (options.get("progress") or notice)(said)
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
