"""Runs thousands of short requests with random settings, and measures whether memory and captured steps grow."""

import random
import time
from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.cliffs.parts import Subject
from benchmarks.record import Found
from benchmarks.traffic.flow import flow
from spectr.engine import Engine, Request
from spectr.policy import Policy

__all__ = ["many", "random_request"]

_PARTS = 20  # measurements over the run
_WARM_UP = 50  # before them, 1 / 50 of the requests runs with each number of requests in flight
_LONGEST = 48  # maximum tokens of a prompt
_MOST = 3600.0  # time limit in seconds; the loop ends by itself when there are no more requests


def random_request(chance: random.Random, vocabulary: int) -> Request:
    """Return a request with a random prompt, one to four new tokens, and up to four settings other than the default."""

    def some(most: int) -> list[int]:
        return [chance.randrange(vocabulary) for _ in range(chance.randint(1, most))]

    offered: dict[str, Any] = {
        "temperature": chance.choice([0.0, 0.3, chance.uniform(0.2, 1.5)]),
        "top_k": chance.randint(1, 100),
        "top_p": chance.uniform(0.5, 0.99),
        "min_p": chance.uniform(0.0, 0.2),
        "typical_p": chance.uniform(0.5, 0.99),
        "repetition_penalty": chance.uniform(0.9, 1.3),
        "presence_penalty": chance.uniform(-0.5, 0.5),
        "frequency_penalty": chance.uniform(-0.5, 0.5),
        "no_repeat_ngram_size": chance.randint(2, 3),
        "logit_bias": {token: chance.uniform(-5.0, 5.0) for token in some(4)},
        "bad_words": [some(3) for _ in range(chance.randint(1, 3))],
        "suppress_tokens": some(4),
        "min_new_tokens": chance.randint(1, 4),
    }
    chosen = chance.sample(list(offered), chance.choice([0, 0, 1, 2, 4]))
    policy = Policy(**{name: offered[name] for name in chosen})
    return Request(
        some(_LONGEST), chance.getrandbits(32), chance.randint(1, 4), policy,
        stop_ids=frozenset(some(3)) if chance.random() < 0.1 else frozenset(),
        logprobs=chance.randint(0, 5) if chance.random() < 0.2 else None,
    )  # fmt: skip


def _look(engine: Engine) -> Found:
    """Return the bytes allocated on the device, and the number of steps that were run or captured."""
    device = engine.target.device
    held = [lane.memory.graphs for lane in engine.scheduler.lanes.values()]
    found: Found = {"graphs": sum(len(one.graphs) for one in held), "shapes": sum(len(one.seen) for one in held)}
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        found["allocated_bytes"] = torch.cuda.memory_allocated(device)
        found["reserved_bytes"] = torch.cuda.memory_reserved(device)
    return found


def _numbers(most: int) -> list[int]:
    """Return the powers of two below a number, and the number.

    >>> _numbers(6)
    [1, 2, 4, 6]
    """
    return [*(1 << power for power in range((most - 1).bit_length())), most]


def _run(engine: Engine, chance: random.Random, count: int, in_flight: int) -> None:
    """Run random requests to their ends."""
    given = iter([random_request(chance, engine.target.vocabulary) for _ in range(count)])
    found = flow(engine, lambda: next(given, None), in_flight, 0.0, (0.0, _MOST))
    assert len(found.results) == count


def many(subject: Subject) -> Iterator[Found]:
    """Run requests in a closed loop, and measure after each part of them.

    The measurements after the first part and after the last should be the same. At the end of a part fewer and fewer
    requests are in flight, and each number of rows has graphs of its own, so requests run with all of these numbers
    first.
    """
    trial, engine = subject.trial, subject.engine(subject.lm.engine.drafter)
    chance = random.Random(trial.seed)
    for in_flight in _numbers(trial.in_flight):
        _run(engine, chance, -(-trial.requests // _WARM_UP), in_flight)
    looks, done, size = list[Found](), 0, -(-trial.requests // _PARTS)
    while done < trial.requests:
        count, start = min(size, trial.requests - done), time.perf_counter()
        _run(engine, chance, count, trial.in_flight)
        done += count
        looks.append({"requests": done, "seconds": time.perf_counter() - start, **_look(engine)})
        yield {"before": looks[0], "after": looks[-1], "looks": looks, **_growth(looks), "left": trial.requests - done}


def _growth(looks: list[Found]) -> Found:
    names = [name for name in looks[0] if name not in ("requests", "seconds")]
    return {"growth": {name: looks[-1][name] - looks[0][name] for name in names}}
