"""Settings of a request: what a user may say, one value for all prompts or one for each, and the seeds of the texts."""

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from spectr.checks import whole
from spectr.coins import derived_seed
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

_RANDOM_BITS = 53  # a seed that any JSON reader keeps whole
MAX_NEW_TOKENS = 128


@dataclass(frozen=True, slots=True)
class RequestSettings:
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


def seeds_for(seed: int | Sequence[int | None] | None, given: Sequence[int] | None, texts: Sequence[int]) -> list[int]:
    """A seed for each text, of which `texts` says how many each prompt gets: `seed` itself for the first, and hashes of
    it and of their number for the others; from one for each prompt likewise; or those that were `given`."""
    total = sum(texts)
    if given is not None:
        seeds = [whole("each of seeds", number) for number in given]
        if len(seeds) != total:
            raise ArgumentError(f"seeds must have one number for each of {total} texts, got {len(seeds)}")
        return seeds
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


def settings_of_each(settings: Mapping[str, Any], count: int) -> list[dict[str, Any]]:
    """The settings of each of several prompts."""
    each = {name for name, value in settings.items() if _is_one_each(name, value)}
    for name in each:
        _each(name, settings[name], count)
    return [{name: value[at] if name in each else value for name, value in settings.items()} for at in range(count)]


def seed_or_random(seed: int | None) -> int:
    """The seed given, or a random one."""
    return secrets.randbits(_RANDOM_BITS) if seed is None else whole("seed", seed)


def token_limit(max_new_tokens: int | None, settings: dict[str, Any], usual: int) -> int:
    """The most new tokens, under whichever of its two names it was given; `max_tokens` leaves the settings."""
    alias = settings.pop("max_tokens", None)
    if alias is not None and max_new_tokens is not None:
        raise ArgumentError(
            f"max_tokens and max_new_tokens mean the same; give one of them, got {alias} and {max_new_tokens}"
        )
    given = max_new_tokens if alias is None else alias
    return usual if given is None else whole("max_new_tokens", given, 1)


def split_settings(settings: Mapping[str, Any]) -> tuple[RequestSettings, dict[str, Any]]:
    """Settings of the request and of the policy; an unknown one is refused with the nearest."""
    of_request, of_policy = ([f.name for f in fields(kind)] for kind in (RequestSettings, Policy))
    if settings.get("num_beams", 1) != 1:
        raise ArgumentError("beam search is not offered: drafts are verified against a distribution; leave num_beams")
    known = ["max_new_tokens", "max_tokens", "seed", *of_request, *of_policy]
    for name in settings:
        if name not in known:
            raise ArgumentError(f"generation has no setting {name!r}; {nearest(name, known)}")
    mine = {name: value for name, value in settings.items() if name in of_request}
    return RequestSettings(**mine), {name: value for name, value in settings.items() if name in of_policy}


def listed_seeds(seeds: Any) -> Sequence[int] | None:
    """Seeds as a list, if there are any."""
    if seeds is not None and not isinstance(seeds, Iterable):
        raise ArgumentError(f"seeds must be a list of whole numbers, one for each text, got {seeds!r}")
    return None if seeds is None else list(seeds)
