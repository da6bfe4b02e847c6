"""Measures the time to first token of prompts with a shared prefix that is in the cache."""

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.record import Found, let_go
from benchmarks.traffic.subject import DEFAULT, Subject
from benchmarks.traffic.texts import Stream
from benchmarks.watch import Watch
from spectr.engine import Engine, Result

__all__ = ["shared"]

_TAIL = 32  # tokens of a prompt after the shared prefix
_TOKENS = 16  # tokens of an answer
_TURNS = 4
_SAMPLES = 8


def shared(subject: Subject) -> Iterator[Found]:
    """Measure the use cases of a prefix cache, and yield medians over the repeats after a warm-up.

    The cases are a second request with the prefix of the first, a conversation, a conversation with other requests
    between its turns, and several samples of one prompt.
    """
    engine, stream, load = subject.engine(DEFAULT), subject.stream(0), subject.load
    rounds: list[dict[str, list[Found]]] = []
    for repeat in range(load.repeats + 1):
        found = {
            "second": [_second(engine, stream, load.shared)],
            "conversation": _conversation(engine, stream, load.shared, is_disturbed=False),
            "disturbed_conversation": _conversation(engine, stream, load.shared, is_disturbed=True),
            "samples": [_samples(engine, stream, load.shared)],
        }
        if repeat:
            rounds.append(found)
            yield {"shared": load.shared, **_medians(rounds), "left": load.repeats - repeat}
    del engine
    let_go()


def _medians(rounds: Sequence[dict[str, list[Found]]]) -> Found:
    """Return the median over the rounds of every number in every row."""

    def median(rows: Sequence[Found]) -> Found:
        return {key: statistics.median(row[key] for row in rows) for key in rows[0]}

    every = {name: zip(*(found[name] for found in rounds), strict=True) for name in rounds[0]}
    return {name: [median(rows) for rows in columns] for name, columns in every.items()}


def _asked(engine: Engine, stream: Stream, prompts: Sequence[list[int]]) -> tuple[list[float], list[Result]]:
    """Submit several prompts at once; return the milliseconds to the first token of each, and the answers."""
    watch = Watch(engine)
    watch.submit([stream.request(prompt, _TOKENS, stream.load.temperatures[-1]) for prompt in prompts])
    try:
        for _ in prompts:
            watch.first_to_end()
    finally:
        watch.cancel()
    first: dict[int, float] = {}
    for event in watch.log:
        first.setdefault(event.number, 1e3 * (event.time - watch.submitted[event.number]))
    numbers = range(len(prompts))
    return [first[number] for number in numbers], [watch.results[number] for number in numbers]


def _second(engine: Engine, stream: Stream, count: int) -> Found:
    """Send a request, then another one with the same first `count` tokens."""
    common = stream.texts.plain(count)
    (first,), _ = _asked(engine, stream, [[*common, *stream.texts.plain(_TAIL)]])
    (second,), (answer,) = _asked(engine, stream, [[*common, *stream.texts.plain(_TAIL)]])
    return {"first_ms": first, "second_ms": second, "ratio": second / first, "reused": answer.reused}


def _conversation(engine: Engine, stream: Stream, count: int, *, is_disturbed: bool) -> list[Found]:
    """Run a conversation whose turns each add an answer and a question, with other requests between if disturbed.

    Then measure the prompt of each turn again without its prefix in the cache.
    """
    text, found = stream.texts.plain(max(_TAIL, count - _TURNS * (_TAIL + _TOKENS))), list[Found]()
    texts: list[list[int]] = []
    for _ in range(_TURNS):
        (known,), (answer,) = _asked(engine, stream, [text])
        found.append({"prompt": len(text), "reused": answer.reused, "ms": known})
        texts.append(text)
        text = [*text, *answer.tokens, *stream.texts.plain(_TAIL)]
        if is_disturbed:
            _asked(engine, stream, [stream.texts.plain(_TAIL)])
    anew = [_asked(engine, stream, [[*stream.texts.plain(_TAIL), *known[_TAIL:]]])[0][0] for known in texts]
    return [{**turn, "anew_ms": ms} for turn, ms in zip(found, anew, strict=True)]


def _samples(engine: Engine, stream: Stream, count: int) -> Found:
    """Measure the time until all samples of one prompt have their first token.

    It is compared with a single sample, and with as many prompts that share no prefix.
    """
    (one,), _ = _asked(engine, stream, [stream.texts.plain(count)])
    same, answers = _asked(engine, stream, [stream.texts.plain(count)] * _SAMPLES)
    apart, _ = _asked(engine, stream, [stream.texts.plain(count) for _ in range(_SAMPLES)])
    reused = sum(answer.reused for answer in answers)
    return {"samples": _SAMPLES, "ms": max(same), "one_ms": one, "apart_ms": max(apart), "reused": reused}
