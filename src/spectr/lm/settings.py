"""The settings of requests, with one value for all prompts or one for each, and the seeds of texts."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from spectr.checks import whole
from spectr.coins import derived_seed, random_seed
from spectr.errors import ArgumentError
from spectr.grammar import CompiledGrammar, Grammar
from spectr.policy import Policy
from spectr.registry import nearest
from spectr.text.prompt import as_ids

__all__ = [
    "MAX_NEW_TOKENS",
    "RequestSettings",
    "listed_seeds",
    "seed_or_random",
    "seeds_for",
    "settings_of_each",
    "split_settings",
    "token_limit",
]

MAX_NEW_TOKENS = 128


@dataclass(frozen=True, slots=True)
class RequestSettings:
    """Settings of a request that do not belong to the policy."""

    raw: bool = False  # do not apply the chat template
    n: int | None = None  # texts per prompt; if set, generate returns a list
    seeds: Sequence[int] | None = None  # one for each text, instead of those derived from `seed`
    stop: str | Sequence[str] | None = None  # strings that end a text
    stop_ids: Sequence[int] | None = None  # tokens that end a text, besides those of the model
    generated: Sequence[int] | None = None  # tokens that were generated before, if a text is continued
    cache_scope: str = ""  # only prompts of the same scope share prefixes
    # Of the tokens; a number: also of this many of the likeliest tokens in each place.
    logprobs: bool | int | None = None
    prompt_logprobs: bool | int | None = None  # the same for the prompt
    optimality_gap: bool = False
    trace: bool = False  # whether steps include their trees
    prediction: str | Sequence[int] | None = None  # text that will probably be repeated
    grammar: Grammar | CompiledGrammar | None = None  # constrains the text

    def __post_init__(self) -> None:
        if self.n is not None:
            whole("n", self.n, 1)
        if self.stop is not None and not isinstance(self.stop, Iterable):
            raise ArgumentError(f"stop must be a string or a list of strings, got {self.stop!r}")
        for name in ("stop_ids", "generated"):
            tokens = getattr(self, name)
            if tokens is not None and not isinstance(tokens, Iterable):
                raise ArgumentError(f"{name} must be a list of token ids, got {tokens!r}")
            for token in tokens or ():
                whole(f"each of {name}", token, 0)
        if self.seeds is not None and not isinstance(self.seeds, Iterable):
            raise ArgumentError(f"seeds must be a list of whole numbers, one for each text, got {self.seeds!r}")
        is_empty = isinstance(self.prediction, list | tuple) and not self.prediction
        if not (is_empty or isinstance(self.prediction, str | None) or as_ids(self.prediction) is not None):
            raise ArgumentError(f"prediction must be a string or a list of token ids, got {self.prediction!r}")
        if not isinstance(self.grammar, Grammar | CompiledGrammar | None):
            raise ArgumentError(f"grammar must be a Grammar, such as Grammar.json_schema(…), got {self.grammar!r}")
        for name in ("logprobs", "prompt_logprobs"):
            if not isinstance(value := getattr(self, name), bool | None):
                whole(name, value, 0)

    @property
    def stops(self) -> Sequence[str]:
        """The stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or ())

    def likeliest(self, name: str) -> int | None:
        """Return how many log-probabilities of likeliest tokens the setting `name` asks for: 0 for those of the
        generated tokens only, None for none."""
        value = getattr(self, name)
        return None if value is None or value is False else int(value) * (not isinstance(value, bool))


def seeds_for(seed: int | Sequence[int | None] | None, seeds: Sequence[int] | None, texts: Sequence[int]) -> list[int]:
    """Return a seed for each text, where `texts` has the number of texts of each prompt. These are `seeds` if they are
    given. Otherwise the first text has `seed` itself, and each other text a hash of `seed` and its index; a list `seed`
    has one value per prompt, from which the seeds of its texts are derived alike."""
    total = sum(texts)
    if seeds is not None:
        if len(seeds) != total:
            raise ArgumentError(f"seeds must have one number for each of {total} texts, got {len(seeds)}")
        return [whole("each of seeds", number) for number in seeds]
    if isinstance(seed, list | tuple):
        firsts = [seed_or_random(one) for one in _each("seed", seed, len(texts))]
        return [derived_seed(first, at) for first, count in zip(firsts, texts, strict=True) for at in range(count)]
    first = seed_or_random(seed)  # type: ignore[arg-type]
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
"""Settings that are lists themselves: one value per prompt is a list of lists."""


def _is_one_each(name: str, value: Any) -> bool:
    """Whether the value of a setting is a list with one value per prompt."""
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


def settings_of_each(settings: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """Return the settings of each of `count` prompts."""
    each = {name for name, value in settings.items() if _is_one_each(name, value)}
    for name in each:
        _each(name, settings[name], count)
    return [{name: value[at] if name in each else value for name, value in settings.items()} for at in range(count)]


def seed_or_random(seed: int | None) -> int:
    """Return `seed`, or a random seed for None."""
    return random_seed() if seed is None else whole("seed", seed)


def token_limit(max_new_tokens: int | None, settings: dict[str, Any], default: int) -> int:
    """Return the most new tokens, and remove its alias `max_tokens` from the settings."""
    alias = settings.pop("max_tokens", None)
    if alias is not None and max_new_tokens is not None:
        raise ArgumentError(
            f"max_tokens and max_new_tokens mean the same, got {alias} and {max_new_tokens}; set one of them"
        )
    limit = max_new_tokens if alias is None else alias
    return default if limit is None else whole("max_new_tokens", limit, 1)


def split_settings(settings: Mapping[str, Any]) -> tuple[RequestSettings, dict[str, Any]]:
    """Split settings into those of the request and those of the policy; raise ArgumentError for unknown ones."""
    of_request, of_policy = ([f.name for f in fields(kind)] for kind in (RequestSettings, Policy))
    if settings.get("num_beams", 1) != 1:
        raise ArgumentError(
            "beam search is not supported: drafts are verified against a distribution; leave out num_beams"
        )
    known = ["max_new_tokens", "max_tokens", "seed", *of_request, *of_policy]
    for name in settings:
        if name not in known:
            raise ArgumentError(f"generation has no setting {name!r}; {nearest(name, known)}")
    own = {name: value for name, value in settings.items() if name in of_request}
    return RequestSettings(**own), {name: value for name, value in settings.items() if name in of_policy}


def listed_seeds(seeds: Any) -> Sequence[int] | None:
    """Return `seeds` as a list, or None."""
    if seeds is not None and not isinstance(seeds, Iterable):
        raise ArgumentError(f"seeds must be a list of whole numbers, one for each text, got {seeds!r}")
    return None if seeds is None else list(seeds)
