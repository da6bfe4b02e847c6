"""The ways to run requests that the contracts compare (rules with drafters and plans), and the requests."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from tests.asking import LetterReader, trace

from spectr.draft import Plan
from spectr.engine import Request, Result
from spectr.policy import Policy

__all__ = ["CHAINS", "LONG", "OTHER", "PRUNED", "RACES", "WAYS", "Way", "asked", "refuses_at", "same", "ways"]


@dataclass(frozen=True)
class Way:
    """A rule, a drafter and its plan. With `late`, steps are read one step late, as on a GPU."""

    rule: str
    name: str
    plan: Plan
    late: bool = False

    def __str__(self) -> str:
        return f"{self.rule}-{self.name}{'-late' * self.late}"


PRUNED, CHAINS, ONE = Plan(drafts=3, length=4, nodes=10), Plan("iid", drafts=3, length=3), Plan("iid", 1, 3)
DRAWN, HYBRID = Plan("without_replacement", tree=(3, 2)), Plan("hybrid", tree=(3, 2))
RACES = ["none", "lookup", "random", "ngram", "model", "early_exit", "feature", "blockwise", "padded", "mixed", "short"]
WAYS = [
    *(Way("race", name, PRUNED) for name in RACES),
    Way("race", "model", Plan("race", tree=(3, 2, 1))),
    Way("kseq", "model", CHAINS), Way("optimal", "ngram", CHAINS), Way("optimal", "feature", CHAINS),
    Way("path_block", "early_exit", CHAINS), Way("recursive", "blockwise", CHAINS), Way("kseq_plus", "short", CHAINS),
    Way("block", "model", ONE), Way("speculative", "feature", ONE), Way("traversal", "model", DRAWN),
    Way("recursive_wor", "ngram", DRAWN), Way("hybrid", "model", HYBRID),
    Way("match", "model", Plan("fixed", tree=(2, 2))), Way("match", "lookup", PRUNED), Way("match", "mixed", PRUNED),
    *(Way("race", name, PRUNED, late=True) for name in ("none", "lookup", "model", "early_exit", "feature")),
    Way("kseq", "model", CHAINS, late=True), Way("optimal", "feature", CHAINS, late=True),
    *(Way("race", name, PRUNED, late=late) for name in ("eagle3", "dspark", "peagle") for late in (False, True)),
    Way("optimal", "dspark", CHAINS), Way("kseq", "eagle3", CHAINS, late=True),
    *(Way("race", name, PRUNED, late=late) for name in ("reads_few", "light") for late in (False, True)),
    Way("optimal", "light", CHAINS),
]  # fmt: skip


def ways(*quick: str, every: Sequence[Way] = WAYS) -> pytest.MarkDecorator:
    """Parametrize a test with `every` way, of which those with these names are in the quick tier.

    Tests that name the same ways share the results of the requests alone, which take most of the time.
    """
    names = [str(way) for way in every]
    assert set(quick) <= set(names)
    marked = [
        pytest.param(way, marks=() if name in quick else pytest.mark.slow, id=name)
        for way, name in zip(every, names, strict=True)
    ]
    return pytest.mark.parametrize("way", marked)


LONG = [3, 4, 5, 3, 4, 6, 1, 2, 3, 4, 5, 3, 4, 6, 8, 9] * 2 + [3, 4, 5, 3]
OTHER = [0, 10, 7, 11] * 9  # has no token in common with LONG


def asked() -> list[Request]:
    """Return eight requests, no two of which have the same settings."""
    penalties: dict[str, Any] = {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3}
    words: list[list[int]] = [[7], [3, 4], [1, 2, 8]]
    return [
        Request([3, 4, 5, 3, 4, 5, 3], 1, 22),
        Request([1], 2, 17, Policy(0)),
        Request([2, 2, 2, 2], 3, 20, Policy(0.7, top_k=5)),
        Request(LONG, 4, 16, Policy(0.9, top_p=0.8, min_p=0.05)),
        Request([5, 6, 5, 6, 5], 5, 24, Policy(**penalties)),
        Request([3, 3], 6, 13, Policy(0.8, logit_bias={2: 3.0, 5: -math.inf}, bad_words=words)),
        Request(LONG[:9], 7, 24, Policy(1.2, min_new_tokens=9, no_repeat_ngram_size=2), stop_ids=frozenset({3, 9, 10})),
        Request([8, 1, 8], 8, 24, Policy(0.6, repetition_penalty=0.9), reader=LetterReader("dbk")),
    ]  # fmt: skip


def refuses_at(length: int) -> Callable[[list[int]], list[int] | None]:
    """Return a hook that raises KeyError for texts of `length` tokens."""

    def hook(text: list[int]) -> list[int] | None:
        if len(text) == length:
            raise KeyError("off the grammar")
        return None

    return hook


def same(found: list[Result], want: list[Result]) -> None:
    """Assert that texts, finish reasons and steps are equal."""
    for at, (one, other) in enumerate(zip(found, want, strict=True)):
        assert (at, one.tokens, one.finish_reason, one.text) == (at, other.tokens, other.finish_reason, other.text)
        assert (at, trace(one)) == (at, trace(other))
