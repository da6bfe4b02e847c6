"""`spectr.load`: a target by name, hub id or folder, with its tokenizer, a drafter and a rule, ready to generate."""

import os
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, overload

from jinja2 import TemplateError

from spectr.checks import whole
from spectr.coins import derived_seed
from spectr.draft.options import DraftOptions
from spectr.engine import Engine, Handle, Request
from spectr.engine.scheduler import end_threads
from spectr.errors import ArgumentError, MismatchError
from spectr.generation import Output, TextHandle, TextReader, as_output
from spectr.grammar import CompiledGrammar, Grammar, GrammarCompiler
from spectr.grammar.vocabulary import Vocabulary
from spectr.metrics import Stats
from spectr.notices import notice
from spectr.pairing import pair, planned_rule
from spectr.policy import Policy, merge_settings
from spectr.prompt import Message, Prompt, as_ids, as_messages, check_text, is_single
from spectr.registry import nearest
from spectr.text import TextStream, tokenizer_lock
from spectr.types import Drafter
from spectr.verify import Rule

if TYPE_CHECKING:
    from spectr.models.hf import OpenedModel

__all__ = ["LM", "Chat", "Output", "TextHandle", "load"]

_RANDOM_BITS = 53  # a seed that any JSON reader keeps whole
_MAX_NEW_TOKENS = 128


@dataclass(frozen=True, slots=True)
class _RequestSettings:
    """Settings of a request that do not belong to the policy."""

    raw: bool = False  # plain text: no chat template
    n: int | None = None  # texts per prompt; if given, outputs come as a list
    seeds: Sequence[int] | None = None  # one for each text, in place of those derived from `seed`
    stop: str | Sequence[str] | None = None  # strings that end a text
    stop_ids: Sequence[int] | None = None  # tokens that end a text, beside those of the model
    generated: Sequence[int] | None = None  # tokens that were generated before, if a text goes on
    cache_scope: str = ""  # only prompts of the same scope share what was read of their beginnings
    logprobs: bool | int | None = None  # of the tokens; a number: of so many of the likeliest in place of each, too
    prompt_logprobs: bool | int | None = None  # the same for the prompt
    optimality_gap: bool = False
    trace: bool = False  # steps tell what was drafted, and why it was kept or not
    prediction: str | Sequence[int] | None = None  # what the text will probably repeat
    grammar: Grammar | CompiledGrammar | None = None  # what the text has to look like

    def __post_init__(self) -> None:
        if self.n is not None:
            whole("n", self.n, 1)
        if self.stop is not None and not isinstance(self.stop, Iterable):
            raise ArgumentError(f"stop must be a string or several, got {self.stop!r}")
        for name in ("stop_ids", "generated"):
            for token in getattr(self, name) or ():
                whole(f"each of {name}", token, 0)
        if self.seeds is not None and not isinstance(self.seeds, Iterable):
            raise ArgumentError(f"seeds must be a list of whole numbers, one for each text, got {self.seeds!r}")
        is_nothing = isinstance(self.prediction, list | tuple) and not self.prediction
        if not (is_nothing or isinstance(self.prediction, str | None) or as_ids(self.prediction) is not None):
            raise ArgumentError(f"prediction must be a string or a list of token ids, got {self.prediction!r}")
        if not isinstance(self.grammar, Grammar | CompiledGrammar | None):
            raise ArgumentError(f"grammar must be a Grammar, such as Grammar.json_schema(…), got {self.grammar!r}")
        for name in ("logprobs", "prompt_logprobs"):
            if not isinstance(value := getattr(self, name), bool | None):
                whole(name, value, 0)

    @property
    def stops(self) -> Sequence[str]:
        """The stop strings, as several."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def likeliest(self, name: str) -> int | None:
        """How many log-probabilities are wanted in place of each token: 0 where that of the token alone is."""
        value = getattr(self, name)
        return None if value is None or value is False else int(value) * (not isinstance(value, bool))


def _seeds(seed: int | Sequence[int | None] | None, given: Sequence[int] | None, texts: Sequence[int]) -> list[int]:
    """A seed for each text, of which `texts` says how many each prompt gets: `seed` itself for the first, and hashes of
    it and of their number for the others; from one for each prompt likewise; or those that were `given`."""
    total = sum(texts)
    if given is not None:
        seeds = [whole("each of seeds", number) for number in given]
        if len(seeds) != total:
            raise ArgumentError(f"seeds must have one number for each of {total} texts, got {len(seeds)}")
        return seeds
    if isinstance(seed, list | tuple):
        firsts = [_seed(one) for one in _each("seed", seed, len(texts))]
        return [derived_seed(first, at) for first, count in zip(firsts, texts, strict=True) for at in range(count)]
    first = _seed(seed)  # type: ignore[arg-type]
    return [derived_seed(first, at) for at in range(total)]


def _each(name: str, values: Sequence[Any], count: int) -> Sequence[Any]:
    if len(values) != count:
        raise ArgumentError(f"{name} must have one value for each of {count} prompts, got {len(values)}")
    return values


_LISTS = (
    "stop",
    "stop_ids",
    "generated",
    "bad_words",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_eos_token_id",
    "processors",
)
"""Settings that are lists themselves: one for each prompt is a list of lists."""


def _is_one_each(name: str, value: Any) -> bool:
    """Whether a setting of several prompts has a value for each."""
    if not isinstance(value, list | tuple) or name == "seeds":
        return False
    if name == "prediction":
        return bool(value) and as_ids(value) is None
    if name not in _LISTS:
        return True
    nested = bool(value) and all(part is None or isinstance(part, list | tuple) for part in value)
    if name != "bad_words" or not nested:
        return nested
    words = [word for part in value for word in part or ()]
    return all(isinstance(word, str | list | tuple) for word in words)


def _of_each(settings: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The settings of each of several prompts."""
    each = {name for name, value in settings.items() if _is_one_each(name, value)}
    for name in each:
        _each(name, settings[name], count)
    return [{name: value[at] if name in each else value for name, value in settings.items()} for at in range(count)]


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
    """A target with its tokenizer, a drafter and a rule. Several threads may use one: their texts run together."""

    def __init__(self, engine: Engine, opened: "OpenedModel") -> None:
        self.engine, self.opened, self.tokenizer = engine, opened, opened.tokenizer
        self._grammars: GrammarCompiler | None = None
        self._compiling = threading.Lock()

    @property
    def settings(self) -> Mapping[str, Any]:
        """The model's own settings, from its generation_config; what a call says stands in their place."""
        return self.opened.settings

    def __repr__(self) -> str:
        from spectr.models.packed import packed_bytes

        net, drafter = self.opened.target.model, self.engine.drafter
        name = getattr(net, "name_or_path", "") or type(net).__name__
        dtype = str(net.dtype).removeprefix("torch.")
        nodes = f", nodes={drafter.nodes}" if drafter.nodes > 1 else ""
        rule = self.engine.rule.card.name
        held = ", ".join(sorted(packed_bytes(net)))
        weights = f" over {held} weights" if held else ""
        target: Any = self.opened.target
        ranks = f", over {target.group.size} processes" if target.is_sharded else ""
        return f"<LM {name!r}: drafter={drafter.name}{nodes}, rule={rule}, {dtype}{weights} on {net.device}{ranks}>"

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
            with tokenizer_lock(self.tokenizer):
                return list(self.tokenizer(text)["input_ids"])
        return self.encode_turns([{"role": "user", "content": text}])

    def encode_turns(self, turns: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, up to where the model's answer begins."""
        self._need_tokenizer()
        if not getattr(self.tokenizer, "chat_template", None):
            raise ArgumentError("a conversation needs a model with a chat template; this tokenizer has none")
        for turn in turns:
            check_text(turn["content"], "the content of a message")
        try:
            with tokenizer_lock(self.tokenizer):
                made = self.tokenizer.apply_chat_template(
                    [dict(turn) for turn in turns], add_generation_prompt=True, return_dict=True
                )
        except TemplateError as error:
            roles = ", ".join(str(turn["role"]) for turn in turns)
            raise ArgumentError(f"the model's chat template refuses messages of {roles}: {error}") from error
        return list(made["input_ids"])

    @overload
    def generate(self, prompts: Prompt, max_new_tokens: Any = None, seed: Any = None, **settings: Any) -> Output: ...

    @overload
    def generate(
        self, prompts: Sequence[Prompt], max_new_tokens: Any = None, seed: Any = None, **settings: Any
    ) -> list[Output]: ...

    def generate(
        self, prompts: Prompt | Sequence[Prompt], max_new_tokens: Any = None, seed: Any = None, **settings: Any
    ) -> Output | list[Output]:
        """An `Output` for one prompt; a list for a list of prompts, or where `n` is given, `n` for each, in order.

        A prompt is a string, a list of token ids, or a list of messages. At most 128 new tokens unless
        `max_new_tokens` (or `max_tokens`) says otherwise. Without a `seed` a random one is taken; every output tells
        its own. `settings`: n, seeds, stop, raw, logprobs, prompt_logprobs, optimality_gap, trace, prediction (a string
        or token ids that the text will probably repeat: they are drafted, which makes it faster and changes nothing
        else), grammar (what the text has to look like: a `spectr.Grammar`), and those of the policy (temperature,
        top_k, …), whose defaults are the model's own. With several prompts, each setting has one value for all, or a
        list with one for each.
        """
        several = [prompts] if is_single(prompts) else self._several(prompts)
        given = {**settings, **({} if max_new_tokens is None else {"max_new_tokens": max_new_tokens})}
        seeds, n = given.pop("seeds", None), given.get("n")
        one = is_single(prompts)
        each = [given] if one else _of_each(given, len(several))
        asked = [self._asked(prompt, own) for prompt, own in zip(several, each, strict=True)]
        drawn = iter(_seeds(seed, _listed(seeds), [count for _, count in asked]))
        requests = [make(next(drawn)) for make, count in asked for _ in range(count)]
        results = self.engine.generate(requests)
        outputs = [as_output(result, request) for result, request in zip(results, requests, strict=True)]
        return outputs[0] if one and n is None else outputs

    def submit(
        self, prompt: Prompt, max_new_tokens: int | None = None, seed: int | None = None, **settings: Any
    ) -> TextHandle:
        """Begin with a text in the background, beside all others that run, each with its own settings; from any thread.
        The handle gives pieces as they come, a result to wait for, or can be awaited."""
        return TextHandle(self._submitted("submit", prompt, max_new_tokens, seed, settings))

    def stream(
        self, prompt: Prompt, max_new_tokens: int | None = None, seed: int | None = None, **settings: Any
    ) -> TextHandle:
        """The text in pieces, never half a character. Closing the iterator cancels; its `output` has what came."""
        return TextHandle(self._submitted("stream", prompt, max_new_tokens, seed, settings))

    def compile_grammar(self, grammar: Grammar) -> CompiledGrammar:
        """A grammar for this model's tokens, as `generate(…, grammar=…)` compiles it: to be sure beforehand that it can
        be, and when. From any thread; what was compiled before is remembered."""
        return self.grammars.compile(grammar)

    @property
    def grammars(self) -> GrammarCompiler:
        """What compiles grammars for this model."""
        self._need_tokenizer()
        with self._compiling, tokenizer_lock(self.tokenizer):
            if self._grammars is None:
                size, stops = self.engine.target.vocabulary, self.engine.stops
                self._grammars = GrammarCompiler(Vocabulary.of(self.tokenizer, size, stops, self._encode_part))
            return self._grammars

    def _encode_part(self, text: str) -> list[int]:
        """Tokens of a part of a text."""
        with tokenizer_lock(self.tokenizer):
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def chat(self) -> "Chat":
        """A conversation: its turns are not read again."""
        return Chat(self)

    def request(
        self, prompt: Prompt, max_new_tokens: int | None = None, seed: int | None = None, **settings: Any
    ) -> Request:
        """What `submit` would ask of the engine."""
        return self._requested("request", prompt, max_new_tokens, seed, settings)

    def requests(
        self, prompt: Prompt, max_new_tokens: int | None, seeds: Sequence[int], **settings: Any
    ) -> list[Request]:
        """What `submit` would ask of the engine for each of several seeds. Prompt and settings are read once."""
        limit = {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
        make, _ = self._asked(prompt, {**settings, **limit})
        return [make(whole("seed", seed)) for seed in seeds]

    def _submitted(self, what: str, prompt: Prompt, limit: int | None, seed: int | None, settings: Any) -> Handle:
        return self.engine.submit(self._requested(what, prompt, limit, seed, settings))

    def _requested(self, what: str, prompt: Prompt, limit: int | None, seed: int | None, settings: Any) -> Request:
        if not is_single(prompt):
            raise ArgumentError(f"{what} takes one prompt: a string, token ids or messages, got {prompt!r}")
        for name in ("n", "seeds"):
            if settings.get(name) is not None:
                raise ArgumentError(f"{what} gives one text and takes no {name}; use generate")
        given = {**settings, **({} if limit is None else {"max_new_tokens": limit})}
        make, _ = self._asked(prompt, given)
        return make(_seed(seed))

    def _asked(
        self, prompt: Prompt, settings: Mapping[str, Any], usual: int = _MAX_NEW_TOKENS
    ) -> tuple[Callable[[int], Request], int]:
        """What makes a request from a seed, and how many are wanted."""
        given = dict(settings)
        limit = _limit(given.pop("max_new_tokens", None), given, usual)
        asked, policy = _split_settings(given)
        grammar = self._grammar(asked.grammar)
        if grammar is not None:  # where the model's own says what the last token is, the grammar does
            policy.setdefault("forced_eos_token_id", None)
        tokens, made = self.encode(prompt, raw=asked.raw), self._policy(policy)
        reference = self.encode_prediction(asked.prediction)
        start, source = (tokens, None) if self.opened.start is None else (list(self.opened.start), tokens)

        def make(seed: int) -> Request:
            return Request(
                start, seed, limit, made, tuple(asked.generated or ()), frozenset(asked.stop_ids or ()), source,
                reader=self._reader(asked.stops, asked.generated), cache_scope=asked.cache_scope,
                logprobs=asked.likeliest("logprobs"), prompt_logprobs=asked.likeliest("prompt_logprobs"),
                optimality_gap=asked.optimality_gap, trace=asked.trace, grammar=grammar, reference=reference,
            )  # fmt: skip

        return make, asked.n or 1

    def _grammar(self, given: Grammar | CompiledGrammar | None) -> CompiledGrammar | None:
        """A grammar for this model's tokens, compiled if it is not."""
        if given is None or isinstance(given, Grammar):
            return None if given is None else self.compile_grammar(given)
        if given.vocabulary != self.grammars.vocabulary:
            raise MismatchError("a compiled grammar must be of this model; compile it with lm.compile_grammar(…)")
        return given

    def encode_prediction(self, prediction: str | Sequence[int] | None) -> list[int]:
        """The tokens of a prediction, as they would stand in a text."""
        if not isinstance(prediction, str):
            return as_ids(prediction) or []
        if not prediction:
            return []
        check_text(prediction, "a prediction")
        self._need_tokenizer()
        return self._encode_part(prediction)

    def _need_tokenizer(self) -> None:
        if self.tokenizer is None:
            raise ArgumentError("text needs a tokenizer, and this model came without; give it: load(…, tokenizer=…)")

    def _reader(self, stops: Sequence[str], generated: Sequence[int] | None) -> TextReader | None:
        """What turns tokens into text, where there is a tokenizer. What was generated before is read and not shown."""
        if self.tokenizer is not None:
            made = TextReader(TextStream(self.tokenizer, stops))
            made.feed(list(generated or ()))
            return made
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


def _listed(seeds: Any) -> Sequence[int] | None:
    """Seeds as a list, if there are any."""
    if seeds is not None and not isinstance(seeds, Iterable):
        raise ArgumentError(f"seeds must be a list of whole numbers, one for each text, got {seeds!r}")
    return None if seeds is None else list(seeds)


class Chat:
    """A conversation: its turns. What the engine has read of them is not read again."""

    def __init__(self, lm: LM) -> None:
        self.lm = lm
        self.turns: list[dict[str, str]] = []
        self._answering: TextHandle | None = None

    @property
    def stats(self) -> Stats:
        """Of the last answer."""
        return Stats() if self._answering is None else self._answering.stats

    @property
    def reused(self) -> int:
        """Tokens of the last prompt that did not have to be read again."""
        return 0 if self._answering is None else self._answering.reused

    def say(self, text: str, max_new_tokens: int | None = None, seed: int | None = None, **settings: Any) -> TextHandle:
        """Ask, and get the answer in pieces, of at most 256 tokens unless told otherwise. What has been said when the
        iterator is closed or interrupted stays in the history; a turn that fails does not."""
        check_text(text, "a turn")
        self.lm._need_tokenizer()
        if self.lm.opened.start is not None:
            raise ArgumentError("a conversation needs a decoder-only model; this one has an encoder: use generate")
        for name in ("raw", "n", "seeds"):
            if settings.get(name):
                raise ArgumentError(f"say gives one text and takes no {name}; use generate")
        turns = [*self.turns, {"role": "user", "content": text}]
        tokens = self.lm.encode_turns(turns)
        given = {**settings, **({} if max_new_tokens is None else {"max_new_tokens": max_new_tokens})}
        make, _ = self.lm._asked(tokens, given, 2 * _MAX_NEW_TOKENS)
        request = make(_seed(seed))
        self._check_room(len(tokens), request.max_new_tokens)
        self.lm.engine.check(request)
        if self._answering is not None:
            self._answering.cancel()

        def record(answer: TextHandle) -> None:
            self.turns = [*turns, {"role": "assistant", "content": answer.text}]

        self._answering = TextHandle(self.lm.engine.submit(request), record)
        return self._answering

    def _check_room(self, tokens: int, limit: int) -> None:
        context = self.lm.engine.target.context
        if tokens + limit > context:
            raise ArgumentError(
                f"a conversation and its next answer must fit into the model's {context} positions, got {tokens} + "
                f"{limit}; lower max_new_tokens, say less, take early turns out of turns, or begin another conversation"
            )


def load(model: Any, drafter: Any = "auto", rule: str | Rule = "race", **options: Any) -> LM:
    """A model by catalog name, hub id, local folder or GGUF file, or one that is loaded already.

    `drafter`: auto (the one trained for this model, where one comes with spectr, else none), none, lookup, ngram,
    early_exit, random, a trained drafter's folder, the name or folder of a published head or of a model, several joined
    by +, or a drafter.
    `options`: of drafting (drafts, length, nodes, tree, layers, order, text, vocabulary, hidden_states, or in place of
    the first four plan: a profile that `spectr tune` wrote, or "auto", which chooses at every step and may begin with a
    profile) and of loading (dtype, that of the arithmetic; weights, how they are stored on a CPU: "file", "float32" or
    "int8"; device, device_map, quantization_config, attn_implementation, trust_remote_code, tokenizer, and progress, a
    function of one sentence). `rows` is how many texts run at once, at most. On a GPU steps are captured
    once and replayed as graphs, unless `capture=False`; `compile=True` also compiles layers, which takes seconds at the
    beginning. `tensor_parallel=N` spreads the layers over N processes that torchrun started: all of them call `load`;
    it returns on rank 0 alone, and the others follow until rank 0 ends, and end then.
    """
    from spectr.models.generation_config import unsupported_settings
    from spectr.models.hf import Loading, open_loaded, open_model

    drafting, loading = ([f.name for f in fields(kind)] for kind in (DraftOptions, Loading))
    known = [*drafting, *loading, "capture", "compile", "progress", "rows", "tokenizer"]
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
        _divide_work(opened)
        drafter_loading = {**how, "dtype": opened.target.model.dtype, "progress": progress, "tensor_parallel": 1}
        partner = pair(drafter, opened, made.card, chosen, drafter_loading)
    elif how:
        raise ArgumentError(f"this model is loaded already, so {', '.join(how)} would change nothing; use model.to(…)")
    else:
        opened = open_loaded(model, tokenizer)
        partner = pair(drafter, opened, made.card, chosen)
    if said := unsupported_settings(opened.target.model, opened.target.vocabulary):
        (options.get("progress") or notice)(said)
    return LM(_engine(opened, partner, made, options, progress), opened)


def _divide_work(opened: "OpenedModel") -> None:
    """Where a model spans several processes, rank 0 goes on, and the others follow it until it ends: for them this does
    not return."""
    target: Any = opened.target
    if not target.is_sharded:
        return
    if target.group.leads:
        target.group.before_the_end = end_threads
        return
    from spectr.models.parallel.follower import follow

    follow(target)


def _engine(
    opened: "OpenedModel", drafter: Drafter, rule: Rule, options: Mapping[str, Any], progress: Callable[[str], None]
) -> Engine:
    """Steps as graphs, where there are any, and layers compiled, if they shall be."""
    device, captures = opened.target.device.type, options.get("capture")
    if captures and device != "cuda":
        raise ArgumentError(f"capture replays steps as CUDA graphs, and this model is on {device}; leave it out")
    if captures and opened.target.is_sharded:
        raise ArgumentError(
            "steps of a model over several processes are not captured; leave capture or tensor_parallel"
        )
    made = Engine(opened.target, drafter, rule, opened.stops, rows=options.get("rows") or 64, captures=captures)
    if options.get("compile"):
        progress("compiling one layer for all; what was compiled before is taken from the cache")
        made.compile()
    return made
