"""`LM`: a target with its tokenizer, a drafter and a rule, which turns prompts and settings into requests."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from jinja2 import TemplateError

from spectr.checks import whole
from spectr.engine import Engine, Handle, Request
from spectr.errors import ArgumentError, MismatchError
from spectr.grammar import CompiledGrammar, Grammar, GrammarCompiler
from spectr.grammar.vocabulary import Vocabulary
from spectr.lm.output import Output, TextHandle, TextReader, as_output
from spectr.lm.settings import (
    MAX_NEW_TOKENS,
    listed_seeds,
    seed_or_random,
    seeds_for,
    settings_of_each,
    split_settings,
    token_limit,
)
from spectr.policy import Policy, merge_settings
from spectr.text.prompt import Message, Prompt, as_ids, as_messages, check_text, is_single
from spectr.text.stream import TextStream, tokenizer_lock

if TYPE_CHECKING:
    from spectr.lm.chat import Chat
    from spectr.models.hf import OpenedModel

__all__ = ["LM"]


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
        self.require_tokenizer()
        if raw or not getattr(self.tokenizer, "chat_template", None):
            with tokenizer_lock(self.tokenizer):
                return list(self.tokenizer(text)["input_ids"])
        return self.encode_turns([{"role": "user", "content": text}])

    def encode_turns(self, turns: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, up to where the model's answer begins."""
        self.require_tokenizer()
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
        each = [given] if one else settings_of_each(given, len(several))
        asked = [self.request_maker(prompt, own) for prompt, own in zip(several, each, strict=True)]
        drawn = iter(seeds_for(seed, listed_seeds(seeds), [count for _, count in asked]))
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
        self.require_tokenizer()
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
        from spectr.lm.chat import Chat

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
        make, _ = self.request_maker(prompt, {**settings, **limit})
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
        make, _ = self.request_maker(prompt, given)
        return make(seed_or_random(seed))

    def request_maker(
        self, prompt: Prompt, settings: Mapping[str, Any], usual: int = MAX_NEW_TOKENS
    ) -> tuple[Callable[[int], Request], int]:
        """What makes a request from a seed, and how many are wanted."""
        given = dict(settings)
        limit = token_limit(given.pop("max_new_tokens", None), given, usual)
        asked, policy = split_settings(given)
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
        self.require_tokenizer()
        return self._encode_part(prediction)

    def require_tokenizer(self) -> None:
        if self.tokenizer is None:
            raise ArgumentError("text needs a tokenizer, and this model came without; give it: load(…, tokenizer=…)")

    def _reader(self, stops: Sequence[str], generated: Sequence[int] | None) -> TextReader | None:
        """What turns tokens into text, where there is a tokenizer. What was generated before is read and not shown."""
        if self.tokenizer is not None:
            made = TextReader(TextStream(self.tokenizer, stops))
            made.feed(list(generated or ()))
            return made
        if stops:
            self.require_tokenizer()
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
