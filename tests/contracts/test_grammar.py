"""Texts under a grammar equal those under the same grammar written as a function `allowed`.

This holds for all rules, drafters, policies and seeds, and for requests that run alone, in a batch, join late, are
cancelled or resumed, and reuse rows. Models are float64, so that texts are exactly equal.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from tests.asking import LetterReader, Stepped
from tests.contracts.conftest import SIZE, Make
from tests.contracts.ways import CHAINS, DRAWN, HYBRID, LONG, ONE, PRUNED, Way, same
from tests.contracts.ways import ways as ways_among
from tests.grammars import ENDS, GRAMMARS, compiled, hooked
from tests.tiny import llama
from transformers import PreTrainedModel

import spectr
from spectr.draft import Plan, drafter
from spectr.engine import Engine, Handle, Request, Result, lane
from spectr.engine.grammars import RowGrammars
from spectr.errors import ArgumentError, MismatchError
from spectr.grammar import Grammar, GrammarCompiler, GrammarWalk
from spectr.grammar.vocabulary import Vocabulary
from spectr.models import memory
from spectr.models.target import Target
from spectr.policy import Policy

RACES = ["none", "model", "lookup", "random", "ngram", "early_exit", "feature", "blockwise", "padded", "mixed", "short"]
WAYS = [
    *(Way("race", name, PRUNED) for name in RACES), Way("race", "model", Plan("race", tree=(3, 2, 1))),
    Way("kseq", "model", CHAINS), Way("optimal", "ngram", CHAINS), Way("optimal", "feature", CHAINS),
    Way("path_block", "early_exit", CHAINS), Way("recursive", "blockwise", CHAINS), Way("kseq_plus", "short", CHAINS),
    Way("block", "model", ONE), Way("speculative", "feature", ONE), Way("traversal", "model", DRAWN),
    Way("recursive_wor", "ngram", DRAWN), Way("hybrid", "model", HYBRID),
    Way("match", "model", Plan("fixed", tree=(2, 2))), Way("match", "lookup", PRUNED), Way("match", "mixed", PRUNED),
]  # fmt: skip
ways = partial(ways_among, every=WAYS)


def asked() -> list[Request]:
    """Return nine requests, no two of which have the same settings."""
    penalties: dict[str, Any] = {"repetition_penalty": 1.4, "presence_penalty": 0.5, "frequency_penalty": 0.3}

    def made(prompt: list[int], seed: int, limit: int, name: str, policy: Policy | None = None, **more: Any) -> Request:
        return Request(prompt, seed, limit, policy or Policy(), grammar=compiled(name), **more)

    return [
        made([3, 4, 5, 3, 4, 5, 3], 1, 22, "letters", Policy(logit_bias={11: -6.0})),
        made([1], 2, 17, "lists", Policy(0)),
        made([2, 2, 2, 2], 3, 20, "lists", Policy(0.9, top_k=5, logit_bias={5: -3.0})),
        made(LONG, 4, 16, "pairs", Policy(0.9, top_p=0.8, min_p=0.05, logit_bias={11: -3.0})),
        made([5, 6, 5, 6, 5], 5, 24, "anything", Policy(**penalties)),
        made([3, 3], 6, 13, "words", Policy(1.5)),
        made(LONG[:9], 7, 24, "free", Policy(1.2, min_new_tokens=9, no_repeat_ngram_size=3)),
        made([8, 1, 8], 8, 24, "anything", Policy(0.6, logit_bias={2: 1.0}), reader=LetterReader("bc")),
        made([7, 7], 9, 30, "forced", Policy(0.9), logprobs=3),
    ]


def same_texts(found: list[Result], want: list[Result]) -> None:
    """Assert that texts and finish reasons are equal.

    Steps differ where forced text is drafted, because its tokens are learnt from earlier texts.
    """
    for at, (one, other) in enumerate(zip(found, want, strict=True)):
        assert (at, one.tokens, one.finish_reason, one.text) == (at, other.tokens, other.finish_reason, other.text)


@pytest.fixture
def build(net: PreTrainedModel, makers: dict[str, Make]) -> Callable[..., Engine]:
    """A function that makes the engine of a way."""

    def made(way: Way, **options: Any) -> Engine:
        return Engine(Target(net), makers[way.name](way.plan), spectr.rule(way.rule), ENDS, **options)

    return made


_KNOWN: dict[tuple[Way, int], list[Result]] = {}


@pytest.fixture
def meant(build: Callable[..., Engine]) -> Callable[[Way], list[Result]]:
    """A function that returns the results of the requests with their grammars as functions, run one by one."""

    def found(way: Way) -> list[Result]:
        key = (way, 0)
        if key not in _KNOWN:
            _KNOWN[key] = [build(way).generate([hooked(request)])[0] for request in asked()]
        return list(_KNOWN[key])

    return found


def test_the_requests_say_what_they_should(meant: Callable[[Way], list[Result]]) -> None:
    """The requests of these tests are suitable: texts end for different reasons, and some end by their grammar."""
    results = meant(WAYS[0])
    assert {result.finish_reason for result in results} == {"stop", "length"}
    assert min(len(result.tokens) for result in results) >= 2
    assert sum(result.finish_reason == "stop" for result in results) >= 4


@ways("race-lookup", "kseq-model")
def test_a_grammar_gives_the_text_of_its_function(
    way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]
) -> None:
    """Texts are equal alone and in a batch; steps are equal too if forced text is not drafted."""
    want = meant(way)
    if way.rule == "race":
        same_texts(want, meant(WAYS[0]))
    same([build(way).with_parts(forced_text=False).generate([request])[0] for request in asked()], want)
    engine = build(way)
    same_texts(engine.generate(asked()), want)
    same_texts(engine.generate(asked()[::-1]), want[::-1])


@pytest.mark.parametrize("way", [WAYS[0], WAYS[1], WAYS[2], WAYS[9]], ids=str)
def test_forced_text_is_drafted(way: Way, build: Callable[..., Engine]) -> None:
    """Drafting forced text does not change texts and saves calls; without a drafter only forced text is accepted."""
    requests = [Request([7, seed], seed, 30, Policy(0.7), grammar=compiled("forced")) for seed in range(8)]
    found = build(way).generate(requests)
    plain = build(way).with_parts(forced_text=False).generate(requests)
    same_texts(found, plain)
    calls, before = (sum(result.stats.steps for result in results) for results in (found, plain))
    assert calls <= before
    if way.name == "none":
        assert all(result.stats.accepted == 0 for result in plain)
        assert sum(result.stats.accepted for result in found) >= before - calls > 30


@pytest.mark.parametrize("name", GRAMMARS)
@ways("race-model", "optimal-ngram")
def test_texts_end_where_the_grammar_allows_it(way: Way, name: str, build: Callable[..., Engine]) -> None:
    """For many seeds and temperatures a text stops exactly where its grammar has ended."""
    requests = [
        Request([3, 1], seed, 18, Policy(temperature, top_k=top_k), grammar=compiled(name))
        for seed, (temperature, top_k) in enumerate([(1.0, 0), (0.0, 0), (0.4, 0), (2.0, 4), (1.0, 1), (3.0, 0)] * 2)
    ]
    found = build(way).generate(requests)
    same_texts(found, build(way).generate([hooked(request) for request in requests]))
    for result in found:
        walk = compiled(name).walk(result.tokens)
        assert walk.has_ended == (result.finish_reason == "stop")


@ways("race-lookup", "kseq-model")
def test_joined_late_and_cancelled(
    way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]
) -> None:
    """Requests that join while others run, end and are cancelled have the same texts, also beside a request without a
    grammar."""
    want, gone = meant(way), {0: 2, 4: 5}
    free = Request([1, 2, 3], 5, 40, Policy(0.9))
    (alone,) = build(way).generate([free])
    stepped, handles = Stepped(build(way, rows=4)), list[Handle]()
    other = stepped.submit(free)
    for at, request in enumerate(asked()):
        handles.append(stepped.submit(request))
        stepped.turn(1 + at % 2)
        for row, when in gone.items():
            if when == at:
                handles[row].cancel()
    found = stepped.finish([*handles, other])
    same(found[-1:], [alone])
    left = [row for row in range(len(want)) if row not in gone]
    check = same_texts if way.rule == "race" else same
    check([found[row] for row in left], [want[row] for row in left])


@ways("race-lookup", "kseq-model")
def test_rows_that_others_had(way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """Requests with a grammar have the same texts in rows that other requests used before."""
    want, engine = meant(way), build(way, rows=3)
    order = [5, 0, 8, 7, 2, 6, 1, 4, 3]
    for _ in range(2):
        engine.generate([Request([row, *LONG], row, 30, grammar=compiled("lists")) for row in range(3)])
        found = engine.generate([asked()[row] for row in order])
        (same_texts if way.rule == "race" else same)(found, [want[row] for row in order])


@pytest.mark.parametrize("name", [name for name in RACES if name != "none"])
def test_a_resumed_text_has_the_same_rest(
    name: str, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]
) -> None:
    """A text that is continued from any position has the same rest: its grammar continues from there."""
    requests, want = list[Request](), list[tuple[list[int], str | None]]()
    for request, result in zip(asked(), meant(WAYS[0]), strict=True):
        for cut in {1, 2, len(result.tokens) // 2, len(result.tokens) - 1} & set(range(1, len(result.tokens))):
            given = result.tokens[:cut]
            fed = None if request.reader is None else LetterReader("bc")
            if fed is not None:
                fed.feed(given)
            requests.append(replace(request, generated=given, reader=fed))
            want.append((result.tokens[cut:], result.finish_reason))
    found = build(Way("race", name, PRUNED)).generate(requests)
    assert [(result.tokens, result.finish_reason) for result in found] == want


@pytest.mark.slow
def test_texts_that_find_no_room_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts that run out of memory are restarted later, and their grammars continue from the text so far."""
    monkeypatch.setattr(lane, "_HEADROOM", 100)
    target = Target(llama(3, max_position_embeddings=1024))

    def made() -> Engine:
        return Engine(target, drafter("lookup", drafts=2, length=3), spectr.rule("race"), ENDS)

    bias, names = Policy(0.9, logit_bias={11: -30.0, 5: -9.0}), ["free", "lists", "anything", "free"]
    requests = [
        Request([3 + row, 4, 5], row, 600 - 90 * row, bias, grammar=compiled(name)) for row, name in enumerate(names)
    ]
    alone = [made().generate([request])[0] for request in requests]
    assert min(len(result.tokens) for result in alone) > 200
    free = target.cache_bytes(4, 500)
    monkeypatch.setattr(memory, "available", lambda _: free)
    engine = made()
    same_texts(engine.generate(requests), alone)
    assert engine.scheduler.preemptions > 0


# Errors.


@pytest.mark.parametrize("way", [WAYS[0], WAYS[1], WAYS[12]], ids=str)
def test_a_grammar_that_cannot_go_on(
    way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]]
) -> None:
    """A grammar that cannot be continued ends only its own request, which keeps the text so far.

    This happens where no token spells the next character, and where the settings exclude all allowed tokens.
    """
    compile_ = GrammarCompiler(compiled("letters").vocabulary).compile
    dead = compile_(Grammar.ebnf('root ::= [ab]{4} "x" [ab]'))
    short = Request([3, 4], 3, 30, Policy(min_new_tokens=9), grammar=compiled("words"))
    stepped = Stepped(build(way))
    handles = [stepped.submit(request) for request in asked()[:5]]
    stepped.turn()
    bad = [stepped.submit(Request([3, 4], seed, 30, grammar=dead)) for seed in (1, 2)]
    worse = stepped.submit(short)
    while stepped.turn():
        pass
    same_texts(stepped.finish(handles), meant(way)[:5])
    for handle in bad:
        with pytest.raises(ArgumentError, match="it admits none: it cannot be continued"):
            handle.result(timeout=0)
        spelled = b"".join(compiled("letters").vocabulary.pieces[token] for token in handle.so_far.tokens)
        assert len(spelled) <= 4
    with pytest.raises(ArgumentError, match="processors and grammar must leave at least one token"):
        worse.result(timeout=0)


def test_a_grammar_that_takes_too_long(build: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar that exceeds its time limit ends only its own request."""
    engine = build(WAYS[1])
    (want,) = engine.generate([asked()[0]])
    slow = compiled("anything")
    walk = GrammarWalk._traverse

    def late(self: GrammarWalk, tree: Any, found: torch.Tensor) -> None:
        monkeypatch.setattr("spectr.grammar.walk._PATIENCE", 0.0 if self.compiled is slow else 60.0)
        walk(self, tree, found)

    monkeypatch.setattr(GrammarWalk, "_traverse", late)
    handles = [engine.submit(Request([1, 2], 3, 30, grammar=slow)), engine.submit(asked()[0])]
    with pytest.raises(ArgumentError, match="must determine the next tokens within 0 seconds"):
        handles[0].result()
    same_texts([handles[1].result()], [want])


def test_a_tokenizer_that_fails(build: Callable[..., Engine]) -> None:
    """An error in the tokenizer ends only the requests whose forced text was to be encoded."""

    def fails(_: str) -> list[int]:
        raise OSError("the tokenizer is gone")

    vocabulary = replace(compiled("letters").vocabulary, encode=fails)
    failing = GrammarCompiler(vocabulary).compile(GRAMMARS["forced"])
    engine = build(WAYS[1])
    (want,) = engine.generate([asked()[8]])
    handles = [engine.submit(Request([1, 2], 3, 30, grammar=failing)), engine.submit(asked()[8])]
    with pytest.raises(OSError, match="the tokenizer is gone"):
        handles[0].result()
    same_texts([handles[1].result()], [want])


def test_bad_requests_are_refused_at_once(build: Callable[..., Engine], net: PreTrainedModel) -> None:
    """`submit` refuses a grammar for another vocabulary, one that contradicts the request, and one without an end."""
    engine, grammar = build(WAYS[0]), compiled("words")
    wide = GrammarCompiler(Vocabulary((b"a",) * (SIZE + 1), frozenset({1}))).compile(Grammar.choice(["a"]))
    bad: list[tuple[type[Exception], str, Request]] = [
        (MismatchError, "compiled for the 12 tokens", Request([1], grammar=wide)),
        (ArgumentError, "token 8 at index 1", Request([1], grammar=grammar, generated=[3, 8])),
        (ArgumentError, "must not contain a stop token", Request([1], grammar=grammar, generated=[3, 7, 11])),
        (ArgumentError, "forced_eos_token_id", Request([1], policy=Policy(forced_eos_token_id=11), grammar=grammar)),
    ]
    for error, said, request in bad:
        with pytest.raises(error, match=said):
            engine.submit(request)
    without = Engine(Target(net), engine.drafter, engine.rule)
    with pytest.raises(ArgumentError, match="must have a token that ends it"):
        without.submit(Request([1], grammar=grammar))
    same_texts(
        without.generate([Request([1], grammar=grammar, stop_ids=ENDS)]),
        engine.generate([Request([1], grammar=grammar)]),
    )


def test_other_stop_tokens(build: Callable[..., Engine]) -> None:
    """A request's own stop tokens end it only where the grammar may end, although they also spell text."""
    engine = build(WAYS[1])
    for seed in range(12):
        request = Request([3, 1], seed, 40, Policy(1.5), grammar=compiled("letters"), stop_ids=frozenset({0, 9}))
        (result,) = engine.generate([request])
        assert result.finish_reason == "stop"
        assert result.tokens[-1] in (0, 9, 11)
        text = b"".join(compiled("letters").vocabulary.pieces[token] for token in result.tokens[:-1])
        assert len(text) >= 3
        assert not {0, 9, 11} & set(result.tokens[:-1])


# Planted faults.


@pytest.mark.parametrize("fault", ["masks of another row", "a step late", "no masks"])
def test_planted_faults_are_seen(fault: str, build: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    """With wrong masks texts differ, or a request fails."""
    way = WAYS[1]
    want = build(way).generate(asked())
    masks, commit = RowGrammars._masks, GrammarWalk.commit

    def planted(self: RowGrammars, paths: Any) -> torch.Tensor:
        found = masks(self, paths)
        return found.roll(1, 0) if fault == "masks of another row" else torch.full_like(found, -1)

    def late(self: GrammarWalk, tokens: Any) -> None:
        held = self.__dict__.pop("held", [])
        self.__dict__["held"] = list(tokens)
        commit(self, held)

    if fault == "a step late":
        monkeypatch.setattr(GrammarWalk, "commit", late)
    else:
        monkeypatch.setattr(RowGrammars, "_masks", planted)
    try:
        found = build(way).generate(asked())
    except ArgumentError:
        return
    with pytest.raises(AssertionError):
        same_texts(found, want)
