"""`LM`, which turns prompts and settings into requests and generates texts."""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from spectr.calls import TEMPLATE_ERRORS, CallForm
from spectr.checks import whole
from spectr.engine import Engine, Request
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
from spectr.text.prompt import Prompt, as_ids, as_messages, check_text, is_single
from spectr.text.stream import TextStream, tokenizer_lock

if TYPE_CHECKING:
    from spectr.lm.chat import Chat
    from spectr.models.hf import OpenedModel

__all__ = ["LM"]


_MAY_BE_EMPTY = ("system", "assistant", "tool")  # messages with these roles
_MOST_ROLES = 8  # that an error lists: with those of a long conversation, its reason would be cut off


class LM:
    """A target with its tokenizer, a drafter and a rule. Several threads may use one LM; their texts run together."""

    def __init__(self, engine: Engine, opened: "OpenedModel") -> None:
        self.engine, self.opened, self.tokenizer = engine, opened, opened.tokenizer
        self._grammars: GrammarCompiler | None = None
        self._compiling = threading.Lock()
        self._call_form: CallForm | ArgumentError | None = None  # once it was looked for

    @property
    def settings(self) -> Mapping[str, Any]:
        """The default settings of the model, from its generation_config; settings of a call override them."""
        return self.opened.settings

    def __repr__(self) -> str:
        from spectr.models.packed import packed_bytes

        net, drafter = self.opened.target.model, self.engine.drafter
        name = getattr(net, "name_or_path", "") or type(net).__name__
        dtype = str(net.dtype).removeprefix("torch.")
        nodes = f", nodes={drafter.nodes}" if drafter.nodes > 1 else ""
        rule = self.engine.rule.card.name
        packed = ", ".join(sorted(packed_bytes(net)))
        weights = f" over {packed} weights" if packed else ""
        target: Any = self.opened.target
        ranks = f", over {target.group.size} processes" if target.is_sharded else ""
        return f"<LM {name!r}: drafter={drafter.name}{nodes}, rule={rule}, {dtype}{weights} on {net.device}{ranks}>"

    def encode(self, prompt: Prompt, *, raw: bool = False) -> list[int]:
        """Return the token ids of a prompt: a string, to which the chat template is applied if the model has one
        and `raw` is false; a list of messages; or token ids, which are returned unchanged."""
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

    def encode_turns(
        self, turns: Sequence[Mapping[str, Any]], functions: Sequence[Mapping[str, Any]] = ()
    ) -> list[int]:
        """Return the token ids of a conversation, up to where the model's answer begins. `functions` describes what the
        model may call, as OpenAI's interface does. A message may be empty unless its role is `user`: a model may
        end its answer at once."""
        self._require_template()
        if functions or any(turn.get("tool_calls") for turn in turns):
            _ = self.call_form  # a template that has no form for calls would leave them out
        for turn in turns:
            if turn["content"] != "" or turn["role"] not in _MAY_BE_EMPTY:
                check_text(turn["content"], "the content of a message")
        try:
            with tokenizer_lock(self.tokenizer):
                encoded = self.tokenizer.apply_chat_template(
                    [dict(turn) for turn in turns], tools=[*functions] or None, add_generation_prompt=True,
                    return_dict=True,
                )  # fmt: skip
        except TEMPLATE_ERRORS as error:
            roles = ", ".join(str(turn["role"]) for turn in turns[:_MOST_ROLES])
            others = " and others" if len(turns) > _MOST_ROLES else ""
            given = f"messages of {roles}{others}" + (" with these functions" if functions else "")
            raise ArgumentError(f"the model's chat template refuses {given}: {error}") from error
        return list(encoded["input_ids"])

    @property
    def call_form(self) -> CallForm:
        """How the model writes calls of functions; raises ArgumentError if its chat template has no form for them that
        is known."""
        if isinstance(self._call_form, ArgumentError):
            raise ArgumentError(str(self._call_form))
        if self._call_form is None:
            self._require_template()
            try:
                form = CallForm.of(self._render)
                self._check_marks(form)
                self._call_form = form
            except ArgumentError as error:
                self._call_form = error
                raise
        return self._call_form

    def _check_marks(self, form: CallForm) -> None:
        """Refuse marks that are special tokens: these do not appear in texts, so that no call would be found."""
        with tokenizer_lock(self.tokenizer):
            tokens = self.tokenizer(form.begin + form.end, add_special_tokens=False)["input_ids"]
            shown = self.tokenizer.decode(tokens, skip_special_tokens=True)
        if not (form.marker in shown and form.closing in shown):
            raise ArgumentError(
                "tools need a model that marks calls by ordinary tokens; this one marks them by special tokens, which "
                f"are not part of its texts: {form.marker!r}, {form.closing!r}"
            )

    def _require_template(self) -> None:
        """Raise ArgumentError if the model has no chat template."""
        self.require_tokenizer()
        if not getattr(self.tokenizer, "chat_template", None):
            raise ArgumentError("a conversation needs a model with a chat template; this tokenizer has none")

    def _render(self, turns: Sequence[dict[str, Any]], functions: Sequence[dict[str, Any]], is_open: bool) -> str:
        with tokenizer_lock(self.tokenizer):
            return str(
                self.tokenizer.apply_chat_template(
                    [*turns], tools=[*functions], add_generation_prompt=is_open, tokenize=False
                )
            )

    @overload
    def generate(self, prompts: Prompt, max_new_tokens: Any = None, seed: Any = None, **settings: Any) -> Output: ...

    @overload
    def generate(
        self, prompts: Sequence[Prompt], max_new_tokens: Any = None, seed: Any = None, **settings: Any
    ) -> list[Output]: ...

    def generate(
        self, prompts: Prompt | Sequence[Prompt], max_new_tokens: Any = None, seed: Any = None, **settings: Any
    ) -> Output | list[Output]:
        """Return an `Output` for one prompt, and a list for several prompts or if `n` is set: `n` outputs per prompt.

        A prompt is a string, a list of token ids, or a list of messages. At most 128 new tokens are generated by
        default; set `max_new_tokens` (or `max_tokens`) for more. Without a `seed` a random one is used; every output
        has its own `seed`. `settings` are n, seeds, stop, raw, logprobs, prompt_logprobs, optimality_gap, trace,
        prediction (a string or token ids that the text will probably repeat: they are drafted, which makes generation
        faster and does not change the distribution), grammar (a `spectr.Grammar` that the text must match), and those
        of the policy (temperature, top_k, …), whose defaults are the model's own. With several prompts, a setting has
        one value for all, or a list with one value per prompt.
        """
        is_one = is_single(prompts)
        several = [prompts] if is_single(prompts) else self._several(prompts)
        merged = {**settings, **({} if max_new_tokens is None else {"max_new_tokens": max_new_tokens})}
        seeds, n = merged.pop("seeds", None), merged.get("n")
        each = [merged] if is_one else settings_of_each(merged, len(several))
        makers = [self.request_maker(prompt, own) for prompt, own in zip(several, each, strict=True)]
        drawn = iter(seeds_for(seed, listed_seeds(seeds), [count for _, count in makers]))
        requests = [make(next(drawn)) for make, count in makers for _ in range(count)]
        results = self.engine.generate(requests)
        outputs = [as_output(result, request) for result, request in zip(results, requests, strict=True)]
        return outputs[0] if is_one and n is None else outputs

    def submit(
        self, prompt: Prompt, max_new_tokens: int | None = None, seed: int | None = None, **settings: Any
    ) -> TextHandle:
        """Start a text in the background, together with all others that run; may be called from any thread. The handle
        yields pieces of text, has a result to wait for, and can be awaited."""
        return TextHandle(self.engine.submit(self._single_request("submit", prompt, max_new_tokens, seed, settings)))

    def stream(
        self, prompt: Prompt, max_new_tokens: int | None = None, seed: int | None = None, **settings: Any
    ) -> TextHandle:
        """Return an iterator over pieces of the text, which never split a character. Closing it cancels the
        request; its `output` has the text so far."""
        return TextHandle(self.engine.submit(self._single_request("stream", prompt, max_new_tokens, seed, settings)))

    def compile_grammar(self, grammar: Grammar) -> CompiledGrammar:
        """Compile a grammar for this model's tokens, as `generate(…, grammar=…)` does; call it to check a grammar or
        to compile it early. Results are cached, and any thread may call it."""
        return self.grammars.compile(grammar)

    @property
    def grammars(self) -> GrammarCompiler:
        """The compiler of grammars for this model."""
        self.require_tokenizer()
        with self._compiling, tokenizer_lock(self.tokenizer):
            if self._grammars is None:
                size, stops = self.engine.target.vocabulary, self.engine.stops
                self._grammars = GrammarCompiler(Vocabulary.of(self.tokenizer, size, stops, self._encode_part))
            return self._grammars

    def _encode_part(self, text: str) -> list[int]:
        """Encode a part of a text, without special tokens."""
        with tokenizer_lock(self.tokenizer):
            return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def chat(self) -> "Chat":
        """Return a new conversation."""
        from spectr.lm.chat import Chat

        return Chat(self)

    def request(
        self, prompt: Prompt, max_new_tokens: int | None = None, seed: int | None = None, **settings: Any
    ) -> Request:
        """Return the request that `submit` would pass to the engine."""
        return self._single_request("request", prompt, max_new_tokens, seed, settings)

    def requests(
        self, prompt: Prompt, max_new_tokens: int | None, seeds: Sequence[int], **settings: Any
    ) -> list[Request]:
        """Return the requests that `submit` would pass to the engine for several seeds. The prompt is encoded once."""
        limit = {} if max_new_tokens is None else {"max_new_tokens": max_new_tokens}
        make, _ = self.request_maker(prompt, {**settings, **limit})
        return [make(whole("seed", seed)) for seed in seeds]

    def _single_request(
        self, method: str, prompt: Prompt, limit: int | None, seed: int | None, settings: Mapping[str, Any]
    ) -> Request:
        """Make the request of a method that takes one prompt and returns one text."""
        if not is_single(prompt):
            raise ArgumentError(f"{method} takes one prompt: a string, token ids or messages, got {prompt!r}")
        for name in ("n", "seeds"):
            if settings.get(name) is not None:
                raise ArgumentError(f"{method} gives one text and takes no {name}; use generate")
        make, _ = self.request_maker(prompt, {**settings, **({} if limit is None else {"max_new_tokens": limit})})
        return make(seed_or_random(seed))

    def request_maker(
        self, prompt: Prompt, settings: Mapping[str, Any], default_limit: int = MAX_NEW_TOKENS
    ) -> tuple[Callable[[int], Request], int]:
        """Return a function that makes a request from a seed, and how many requests the settings ask for."""
        remaining = dict(settings)
        limit = token_limit(remaining.pop("max_new_tokens", None), remaining, default_limit)
        own, policy_settings = split_settings(remaining)
        grammar = self._grammar(own.grammar)
        if grammar is not None:  # the grammar decides where a text ends, not the model's default
            policy_settings.setdefault("forced_eos_token_id", None)
        tokens, policy = self.encode(prompt, raw=own.raw), self._policy(policy_settings)
        prediction = self.encode_prediction(own.prediction)
        start, source = (tokens, None) if self.opened.start is None else (list(self.opened.start), tokens)

        def make(seed: int) -> Request:
            return Request(
                start, seed, limit, policy, tuple(own.generated or ()), frozenset(own.stop_ids or ()), source,
                reader=self._reader(own.stops, own.generated), cache_scope=own.cache_scope,
                logprobs=own.likeliest("logprobs"), prompt_logprobs=own.likeliest("prompt_logprobs"),
                optimality_gap=own.optimality_gap, trace=own.trace, grammar=grammar, prediction=prediction,
            )  # fmt: skip

        return make, own.n or 1

    def _grammar(self, grammar: Grammar | CompiledGrammar | None) -> CompiledGrammar | None:
        """Compile a grammar for this model's tokens unless it is compiled."""
        if grammar is None or isinstance(grammar, Grammar):
            return None if grammar is None else self.compile_grammar(grammar)
        if grammar.vocabulary != self.grammars.vocabulary:
            raise MismatchError("a compiled grammar must be of this model; compile it with lm.compile_grammar(…)")
        return grammar

    def encode_prediction(self, prediction: str | Sequence[int] | None) -> list[int]:
        """Return the tokens of a prediction, encoded like a part of a text."""
        if not isinstance(prediction, str):
            return as_ids(prediction) or []
        if not prediction:
            return []
        check_text(prediction, "a prediction")
        self.require_tokenizer()
        return self._encode_part(prediction)

    def require_tokenizer(self) -> None:
        """Raise ArgumentError if the model has no tokenizer."""
        if self.tokenizer is None:
            raise ArgumentError(
                "text needs a tokenizer, and this model was loaded without one; use load(…, tokenizer=…)"
            )

    def _reader(self, stops: Sequence[str], generated: Sequence[int] | None) -> TextReader | None:
        """Return a reader that decodes tokens, if there is a tokenizer. Tokens that were generated before are decoded
        and not shown."""
        if self.tokenizer is not None:
            reader = TextReader(TextStream(self.tokenizer, stops))
            reader.feed(list(generated or ()))
            return reader
        if stops:
            self.require_tokenizer()
        return None

    @staticmethod
    def _several(prompts: Any) -> list[Prompt]:
        """Return several prompts as a list; raise ArgumentError if there is none."""
        if isinstance(prompts, bytes | Mapping) or not isinstance(prompts, Iterable):
            raise ArgumentError(f"prompts must be a string, token ids or messages, or a list of those, got {prompts!r}")
        several = list(prompts)
        if not several:
            raise ArgumentError("prompts must not be empty, got no prompt at all")
        return several

    def _policy(self, settings: dict[str, Any]) -> Policy:
        """Return the policy of the model's settings, overridden by these. Bad words that are strings are encoded
        twice: with and without a space before them."""
        settings = merge_settings(self.opened.settings, settings)
        bad_words = () if settings.get("bad_words") is None else settings["bad_words"]
        if not isinstance(bad_words, Iterable):
            raise ArgumentError(f"bad_words must be a list of strings or of sequences of token ids, got {bad_words!r}")
        words = [bad_words] if isinstance(bad_words, str) else bad_words
        spelled = [form for word in words for form in ([word, f" {word}"] if isinstance(word, str) else [word])]
        if any(isinstance(form, str) for form in spelled):
            self.require_tokenizer()
        ids = [self._encode_part(form) if isinstance(form, str) else form for form in spelled]
        return Policy(**{**settings, "bad_words": ids or ()})
