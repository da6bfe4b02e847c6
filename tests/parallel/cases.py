"""The texts that are compared between a model over several processes and the same model in one process."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from tests.tiny import llama
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import PreTrainedTokenizerFast

from spectr.draft import Plan
from spectr.draft import drafter as named_drafter
from spectr.draft.options import DraftOptions
from spectr.engine import Engine, Request
from spectr.models.blockwise import blockwise_of
from spectr.models.head import head_of
from spectr.models.target import Target
from spectr.pairing import pair
from spectr.policy import Policy
from spectr.types import Drafter
from spectr.verify import RULES, rule

__all__ = ["DEFAULT", "default_texts", "save_tiny", "tiny_texts", "verdicts"]

DEFAULT = "smollm2-135m"
_SIZE = 24
_PROMPTS = [[3, 4, 5, 3, 4, 5, 3], [1], [2, 2, 2, 2], [3, 4, 5, 3, 4, 5, 3, 4, 5, 6, 7, 8, 9]]
_NAMED = ("none", "lookup", "random", "ngram", "early_exit", "lookup+ngram")
_STARTS = "The One A Rain It Why My Two In We No Every From Six Blue Water"
_HEADS = ("feature", "blockwise")


def save_tiny(folder: Path, seed: int, layers: int = 2, *, kv_heads: int = 2) -> Path:
    """Save a Llama with 4 heads in float64, with a tokenizer."""
    llama(seed, _SIZE, layers, num_key_value_heads=kv_heads, max_position_embeddings=1024).save_pretrained(folder)
    core: Any = Tokenizer(WordLevel({f"w{number}": number for number in range(_SIZE)}, "w0"))
    core.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=core).save_pretrained(folder)
    return folder


def _head(kind: str, target: Target) -> Drafter:
    """Return a head with random weights on a target's features; it drafts badly, which must not change the text."""
    torch.manual_seed(5)
    plan = Plan(drafts=2, length=2, nodes=5)
    base: Any = target.model_for_drafters
    head: Any = blockwise_of(base, 2) if kind == "blockwise" else head_of(base, 1, (0,))
    head.to(target.model.dtype).requires_grad_(False)
    if kind == "blockwise":
        return named_drafter("blockwise", heads=head.eval(), target=target, plan=plan)
    return named_drafter("feature", head=Target(head.eval()), target=target, plan=plan, feature_layers=(0,))


def _engines(opened: Any, other: Path | None) -> Iterator[tuple[str, Engine]]:
    """Yield engines with every drafter under the race, and with every rule and a drafter that gives distributions."""
    race = rule("race")
    for name in (*_NAMED, *(() if other is None else (str(other),))):
        few = DraftOptions(drafts=2, length=2) if name == "early_exit" else DraftOptions()
        drafter = pair(name, opened, race.card, few)
        yield f"race with {'a model' if name == str(other) else name}", Engine(opened.target, drafter, race)
    for kind in _HEADS if other is not None else ():
        yield f"race with {kind}", Engine(opened.target, _head(kind, opened.target), race)
    for name in RULES:
        made = rule(name)
        drafter = pair("ngram", opened, made.card, DraftOptions(nodes=5))
        yield name, Engine(opened.target, drafter, made)


def _requests(prompts: Sequence[Sequence[int]], length: int, policy: Policy) -> list[Request]:
    return [Request(prompt, 9 + seed, length, policy) for seed, prompt in enumerate(prompts)]


def tiny_texts(opened: Any, other: Path) -> dict[str, list[list[int]]]:
    """Return the texts of a small model for each case, in a batch in which two prompts share a prefix."""
    policy = Policy(0.9, top_p=0.95, repetition_penalty=1.1)
    found = {}
    for name, engine in _engines(opened, other):
        found[name] = [result.tokens for result in engine.generate(_requests(_PROMPTS, 14, policy))]
    return {**found, **_more_texts(opened)}


def _more_texts(opened: Any) -> dict[str, list[list[int]]]:
    """Return a text that needs more memory than the one before, one with prompt log-probabilities, and one that reuses
    the prefix of another."""
    race = rule("race")
    engine = Engine(opened.target, pair("lookup", opened, race.card, DraftOptions()), race)
    short = engine.generate([Request([1, 2, 3], 3, 8)])[0].tokens
    long = engine.generate([Request([1, 2, 3], 4, 280)])[0].tokens
    scored = engine.generate([Request(_PROMPTS[3], 6, 4, prompt_logprobs=2)])[0]
    assert scored.prompt_logprobs is not None
    ranks = [[token for token, _ in given.top] for given in scored.prompt_logprobs if given is not None]
    more = engine.generate([Request([1, 2, 3, *long[:90]], 5, 12)])[0].tokens
    return {"short": [short], "long": [long], "scored": [scored.tokens, *ranks], "more": [more]}


def verdicts(opened: Any, rows: int, length: int) -> list[list[int]]:
    """Return the texts of many rows without drafts, which take one verdict per row and step."""
    engine = Engine(opened.target, named_drafter("none"), rule("race"))
    asked = [Request([1 + row % 5, row % 7], 100 + row, length) for row in range(rows)]
    return [result.tokens for result in engine.generate(asked)]


def default_texts(lm: Any) -> dict[str, tuple[list[Request], list[list[int]]]]:
    """Return texts of the default model: drafters under the race at temperature 1, and all rules at temperature 0.

    The texts are short, because processes that share few cores wait for each other in every layer.
    """
    starts = [lm.encode(text, raw=True)[:1] for text in _STARTS.split()]
    warm, greedy = _requests(starts, 2, Policy()), _requests(starts[:4], 2, Policy(0))
    found = {"race with its trained head": (warm, [result.tokens for result in lm.engine.generate(warm)])}
    for name, engine in _engines(lm.opened, None):
        asked = warm if name.startswith("race with") else greedy
        found[name] = asked, [result.tokens for result in engine.generate(asked)]
    return found
