"""Prompts that begin alike: how soon the first token comes where most of a prompt is known already."""

import statistics
from collections.abc import Iterator, Sequence

from benchmarks.record import Found, let_go
from benchmarks.traffic.subject import DEFAULT, Subject
from benchmarks.traffic.texts import Stream
from benchmarks.watch import Watch
from spectr.engine import Engine, Result

__all__ = ["shared"]

_TAIL = 32  # tokens that a prompt has of its own
_TOKENS = 16  # of an answer
_TURNS = 4
_SAMPLES = 8


def shared(subject: Subject) -> Iterator[Found]:
    """A second request that shares its beginning with the first, a conversation, the same where another request comes
    between its turns, and several samples of one prompt; medians, after one round that does not count."""
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
    """Of every number of every row, over the rounds."""

    def median(rows: Sequence[Found]) -> Found:
        return {key: statistics.median(row[key] for row in rows) for key in rows[0]}

    every = {name: zip(*(found[name] for found in rounds), strict=True) for name in rounds[0]}
    return {name: [median(rows) for rows in columns] for name, columns in every.items()}


def _asked(engine: Engine, stream: Stream, prompts: Sequence[list[int]]) -> tuple[list[float], list[Result]]:
    """Milliseconds to the first token of each of several prompts, submitted at once, and their answers."""
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
    """A request, then another one with the same first `count` tokens."""
    common = stream.texts.plain(count)
    (first,), _ = _asked(engine, stream, [[*common, *stream.texts.plain(_TAIL)]])
    (second,), (answer,) = _asked(engine, stream, [[*common, *stream.texts.plain(_TAIL)]])
    return {"first_ms": first, "second_ms": second, "ratio": second / first, "reused": answer.reused}


def _conversation(engine: Engine, stream: Stream, count: int, *, is_disturbed: bool) -> list[Found]:
    """Turns that each add an answer and a question, with another request between them if they are disturbed; and
    afterwards each turn's prompt as if nobody knew it."""
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
    """Until the last of several samples of one prompt has its first token; of one alone; and of as many prompts that
    share nothing."""
    (one,), _ = _asked(engine, stream, [stream.texts.plain(count)])
    same, answers = _asked(engine, stream, [stream.texts.plain(count)] * _SAMPLES)
    apart, _ = _asked(engine, stream, [stream.texts.plain(count) for _ in range(_SAMPLES)])
    reused = sum(answer.reused for answer in answers)
    return {"samples": _SAMPLES, "ms": max(same), "one_ms": one, "apart_ms": max(apart), "reused": reused}
