"""From the body of a request to requests of the engine."""

import re
from dataclasses import dataclass, replace
from typing import Any

from spectr.coins import derived_seed, random_seed
from spectr.engine import Request
from spectr.grammar import CompiledGrammar
from spectr.lm import LM
from spectr.serve.errors import ApiError
from spectr.serve.grammars import WantedGrammar, wanted_grammar
from spectr.serve.messages import as_turns, characters, joined
from spectr.serve.protocol import (
    ChatRequest,
    CompletionRequest,
    GenerationFields,
    ResumedText,
    ResumeFields,
)
from spectr.serve.resuming import check_resume
from spectr.serve.service import Service
from spectr.serve.settings import Limits
from spectr.serve.tools import Calling, calling_of

__all__ = ["ParsedRequest", "parse_request"]

_SAME = (
    "temperature", "top_p", "min_p", "typical_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
)  # fmt: skip
"""Fields that are settings of the same name."""


@dataclass(frozen=True, slots=True)
class ParsedRequest:
    """A checked body, with its prompts as tokens."""

    body: GenerationFields
    lm: LM  # under the rule and with the drafter that the body names
    prompts: list[list[int]]
    n: int
    seed: int
    settings: dict[str, Any]  # of `LM.request`, but for the number of new tokens
    limits: list[int]  # most new tokens, for each prompt
    drops_text: bool  # no new token is wanted, and one is generated nevertheless
    calling: Calling | None = None  # the functions that the model may call

    @property
    def count(self) -> int:
        """The number of texts."""
        return len(self.prompts) * self.n

    @property
    def is_chat(self) -> bool:
        """Whether it is a conversation."""
        return isinstance(self.body, ChatRequest)

    @property
    def echoes(self) -> bool:
        """Whether the prompt is repeated."""
        return isinstance(self.body, CompletionRequest) and bool(self.body.echo)

    @property
    def logprobs(self) -> int | None:
        """How many log-probabilities are wanted in place of each token; 0 for that of the token alone."""
        return self.settings.get("logprobs")

    @property
    def resume(self) -> ResumeFields | None:
        """What was sent before, if a stream is resumed."""
        return None if self.body.spectr is None else self.body.spectr.resume

    def past(self, index: int) -> ResumedText | None:
        """Return what was sent of one text before, if the stream is resumed."""
        return None if self.resume is None else self.resume.texts[index]

    def seed_of(self, index: int) -> int:
        """Return the seed of one text, as `LM.generate` derives it."""
        return derived_seed(self.seed, index)

    def requests(self, scope: str) -> list[Request | None]:
        """Return a checked request of the engine for each text; None for one that had ended before. The first text of a
        prompt has the prompt's log-probabilities computed."""
        if self.resume is not None:
            return [self._resumed(index, scope) for index in range(self.count)]
        made: list[Request | None] = []
        for at, (prompt, limit) in enumerate(zip(self.prompts, self.limits, strict=True)):
            seeds = [self.seed_of(at * self.n + index) for index in range(self.n)]
            several = self.lm.requests(prompt, limit, seeds, cache_scope=scope, **self.settings)
            self.lm.engine.check(several[0])
            made += [several[0], *(replace(one, prompt_logprobs=None) for one in several[1:])]
        return made

    def _resumed(self, index: int, scope: str) -> Request | None:
        """Return the request of a text that is resumed. The prompt of one that has not begun is scored."""
        past, prompt = self.past(index), self.prompts[index // self.n]
        assert past is not None
        if past.finish_reason is not None:
            return None
        settings = {name: value for name, value in self.settings.items() if name != "prompt_logprobs" or not past.begun}
        (made,) = self.lm.requests(
            prompt, self.limits[index // self.n], [self.seed_of(index)], cache_scope=scope, generated=past.tokens,
            **settings,
        )  # fmt: skip
        self.lm.engine.check(made)
        return made


async def parse_request(
    body: CompletionRequest | ChatRequest, service: Service, tenant: str, most_texts: int
) -> tuple[ParsedRequest, list[Request | None]]:
    """Check a body, tokenize its prompts and make a request of the engine for each text, mostly in a worker."""
    service.check_name(body.model)
    _check_bounds(body, service.settings.limits)
    _check_sizes(body, service, most_texts)
    has_tools = isinstance(body, ChatRequest) and (body.tools or body.tool_choice)
    has_form = bool(body.response_format or body.structured_outputs)
    calling, wanted = None, None
    if has_tools or has_form:
        calling, wanted = await service.in_worker(lambda _: _form_of(body, service), tenant)
    grammar = None if wanted is None else await service.grammars.compiled(wanted, tenant)
    scope = tenant if service.settings.keys else ""

    def work(tokenizing_lm: LM) -> tuple[ParsedRequest, list[Request | None]]:
        parsed = _parsed(body, service, tokenizing_lm, grammar, calling)
        return parsed, parsed.requests(scope)

    return await service.in_worker(work, tenant)


def _form_of(body: CompletionRequest | ChatRequest, service: Service) -> tuple[Calling | None, WantedGrammar | None]:
    """Return what an answer may call, and the grammar that it must match. Tools and schemas may have megabytes."""
    calling = calling_of(body, service.lm)
    if calling is not None:
        try:
            for indent in (None, 1):  # deep nesting is bounded as well: its lines begin with very many spaces
                service.check_length(calling.characters(indent), "tools")
        except ValueError as error:
            raise ApiError(400, f"tools must be JSON with finite numbers: {error}", "tools", "invalid_value") from error
    return calling, wanted_grammar(body, calling)


def _listed(body: CompletionRequest) -> list[Any]:
    """Return the prompts of a body as a list."""
    given: Any = body.prompt
    return [given] if isinstance(given, str) or (given and isinstance(given[0], int)) else given


def _check_sizes(body: CompletionRequest | ChatRequest, service: Service, most_texts: int) -> None:
    """Refuse too many texts, and texts that cannot fit into the context, before anything is tokenized."""
    prompts = [] if isinstance(body, ChatRequest) else _listed(body)
    if (count := (body.n or 1) * max(1, len(prompts))) > most_texts:
        raise ApiError(400, f"one request may ask for {most_texts} texts, got {count}", "n")
    if isinstance(body, ChatRequest):
        service.check_length(characters(body.messages), "messages")
    for prompt in prompts:
        service.check_length(len(prompt), "prompt")
    if body.prediction is not None:
        service.check_length(len(joined(body.prediction.content)), "prediction")
    last = service.lm.engine.target.vocabulary - 1
    stops = [*(body.stop if isinstance(body.stop, list) else ()), *(body.stop_token_ids or ())]
    if wrong := [stop for stop in stops if isinstance(stop, int) and stop > last]:
        raise ApiError(400, f"tokens that end a text must lie in 0 … {last}, got {wrong[0]}",
                       "stop_token_ids")  # fmt: skip


def _parsed(
    body: CompletionRequest | ChatRequest,
    service: Service,
    tokenizing_lm: LM,
    grammar: CompiledGrammar | None,
    calling: Calling | None,
) -> ParsedRequest:
    lm = service.variant(body.spectr)
    prompts = _prompts(body, tokenizing_lm, calling)
    n = body.n or 1
    most = service.settings.limits.prompt_tokens
    longest = max(map(len, prompts))
    if longest >= service.context or (most is not None and longest > most):
        bound = min(service.context - 1, most or service.context)
        param = "messages" if isinstance(body, ChatRequest) else "prompt"
        raise ApiError(400, f"a prompt must have at most {bound} tokens, got {longest}; shorten it", param,
                       "context_length_exceeded")  # fmt: skip
    settings = _settings(body, tokenizing_lm, service.context)
    if grammar is not None:
        settings["grammar"] = grammar
    limit, drops = _limit(body)
    begins = longest if lm.opened.start is None else len(lm.opened.start)  # an encoder reads the prompt elsewhere
    if limit is not None and begins + limit > service.context:
        name = _limit_name(body)
        raise ApiError(400, f"prompt and new tokens must fit into the model's {service.context} positions, got "
                       f"{begins} + {limit}; shorten the prompt or lower {name}", name,
                       "context_length_exceeded")  # fmt: skip
    limits = [service.context - len(prompt) if limit is None else limit for prompt in prompts]
    seed = random_seed() if body.seed is None else body.seed
    parsed = ParsedRequest(body, lm, prompts, n, seed, settings, limits, drops, calling)
    _check_logprobs(parsed, service.settings.limits.logprobs)
    if parsed.resume is not None:
        check_resume(parsed.resume, parsed.count, lm.engine.rule.card.name, service.shown_fingerprint)
    return parsed


def _check_logprobs(parsed: ParsedRequest, most: int) -> None:
    """Refuse more log-probabilities than one response may have."""
    if parsed.logprobs is None:
        return
    echoed = sum(map(len, parsed.prompts)) if parsed.echoes else 0
    if (count := parsed.n * (sum(parsed.limits) + echoed) * (1 + parsed.logprobs)) > most:
        raise ApiError(400, f"a request may ask for {most} log-probabilities (texts × tokens × those of each), "
                       f"got {count}; lower max_tokens, n or the number of logprobs", "logprobs")  # fmt: skip


def _check_bounds(body: GenerationFields, limits: Limits) -> None:
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    strings = [stop for stop in stops if isinstance(stop, str)]
    if len(stops) > limits.stop_strings:
        raise ApiError(400, f"stop may have {limits.stop_strings} entries, got {len(stops)}", "stop")
    if any(not stop or len(stop) > limits.stop_characters for stop in strings):
        raise ApiError(400, f"a stop string must have 1 to {limits.stop_characters} characters", "stop")
    if len(body.logit_bias or ()) > limits.bias_tokens:
        raise ApiError(400, f"logit_bias may have {limits.bias_tokens} entries, got {len(body.logit_bias or ())}",
                       "logit_bias")  # fmt: skip
    if isinstance(body, ChatRequest) and body.top_logprobs and not body.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", "top_logprobs")
    if body.stream_options is not None and not body.stream:
        raise ApiError(400, "stream_options needs stream to be true", "stream_options")
    if body.spectr is not None and body.spectr.resume is not None and (not body.stream or body.seed is None):
        raise ApiError(400, "resume needs stream to be true, and the seed of what was sent before", "spectr.resume")


def _limit(body: CompletionRequest | ChatRequest) -> tuple[int | None, bool]:
    """Return the most new tokens, if the body has a limit, and whether no token is wanted."""
    given = body.max_tokens
    if isinstance(body, ChatRequest) and body.max_completion_tokens is not None:
        if given is not None and given != body.max_completion_tokens:
            raise ApiError(400, "max_tokens and max_completion_tokens mean the same; give one of them", "max_tokens")
        given = body.max_completion_tokens
    if given == 0:
        if isinstance(body, ChatRequest):
            name = _limit_name(body)
            raise ApiError(400, f"{name} must be at least 1, got 0", name)
        if not body.echo:
            raise ApiError(400, "max_tokens must be at least 1, or 0 with echo, got 0", "max_tokens")
        return 1, True
    return given, False


def _limit_name(body: CompletionRequest | ChatRequest) -> str:
    """Return the name under which a body has its limit of new tokens."""
    has_other = isinstance(body, ChatRequest) and body.max_completion_tokens is not None
    return "max_completion_tokens" if has_other else "max_tokens"


def _prompts(body: CompletionRequest | ChatRequest, tokenizing_lm: LM, calling: Calling | None) -> list[list[int]]:
    if isinstance(body, ChatRequest):
        return [tokenizing_lm.encode_turns(as_turns(body.messages), () if calling is None else calling.shown)]
    given = _listed(body)
    if not given or not all(given):
        raise ApiError(400, "a prompt must not be empty", "prompt")
    return [tokenizing_lm.encode(prompt, raw=True) for prompt in given]


def _settings(body: CompletionRequest | ChatRequest, tokenizing_lm: LM, context: int) -> dict[str, Any]:
    """Return the settings that `LM.request` takes; the model's own are used for those that the body leaves out."""
    found = {name: getattr(body, name) for name in _SAME if getattr(body, name) is not None}
    if body.top_k is not None:
        found["top_k"] = max(0, body.top_k)
    if body.min_tokens:
        found["min_new_tokens"] = body.min_tokens
    if body.logit_bias:
        found["logit_bias"] = _bias(body.logit_bias)
    stops = [body.stop] if isinstance(body.stop, str) else body.stop or []
    found["stop"] = [stop for stop in stops if isinstance(stop, str)]
    found["stop_ids"] = [*(stop for stop in stops if isinstance(stop, int)), *(body.stop_token_ids or ())]
    found["raw"] = True
    if body.spectr is not None and body.spectr.trace:
        found["trace"] = True
    if body.prediction is not None:
        found["prediction"] = tokenizing_lm.encode_prediction(joined(body.prediction.content))[:context]
    found["logprobs"] = _logprobs(body)
    if isinstance(body, CompletionRequest) and body.echo:
        found["prompt_logprobs"] = found["logprobs"]
    return {name: value for name, value in found.items() if value not in (None, [])}


def _logprobs(body: CompletionRequest | ChatRequest) -> int | None:
    """Return how many log-probabilities are wanted in place of each token; 0 for that of the token alone, None for
    none."""
    if isinstance(body, CompletionRequest):
        return body.logprobs
    return (body.top_logprobs or 0) if body.logprobs else None


def _bias(given: dict[str, float]) -> dict[int, float]:
    if (wrong := next((token for token in given if not re.fullmatch(r"[0-9]{1,10}", token)), None)) is not None:
        raise ApiError(400, f"the keys of logit_bias must be token ids, got {wrong[:80]!r}", "logit_bias")
    return {int(token): value for token, value in given.items()}
