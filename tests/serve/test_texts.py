"""The server's text equals that of `LM.generate` with the same seed, alone and under load.

Models are float64, where every difference is a bug."""

import random
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import httpx2
import pytest
from tests.saved import TEXTS

from spectr.lm import LM
from spectr.serve.service import Service

COUNT = 24
MANY = pytest.param(200, marks=pytest.mark.slow)


def asked(seed: int) -> tuple[str, dict[str, Any], dict[str, Any]]:
    """Return the path and body of a random request, and the same settings for `LM.generate`."""
    rng = random.Random(seed)
    words = " ".join(rng.choice(TEXTS).split()[: rng.randint(1, 9)])
    limit = rng.randint(1, 40)
    body: dict[str, Any] = {"max_tokens": limit, "seed": rng.randrange(1 << 40), "n": rng.choice([1, 1, 1, 2])}
    settings: dict[str, Any] = {"max_new_tokens": limit, "seed": body["seed"], "n": body["n"]}
    choices: dict[str, Any] = {
        "temperature": [0, 0.3, 0.8, 1.0, 1.3], "top_p": [0.5, 0.9], "top_k": [3, 30], "min_p": [0.02],
        "typical_p": [0.9], "presence_penalty": [0.5], "frequency_penalty": [0.4, -0.3], "repetition_penalty": [1.2],
    }  # fmt: skip
    for name, values in choices.items():
        if rng.random() < 0.35:
            body[name] = settings[name] = rng.choice(values)
    if rng.random() < 0.3:
        body["stop"] = settings["stop"] = rng.sample(["e", "th", "an", "\ufffd", " o"], 2)
    if rng.random() < 0.2:
        body["min_tokens"] = settings["min_new_tokens"] = rng.randint(1, limit)
    if rng.random() < 0.3:
        body["spectr"] = {"drafter": rng.choice(["none", "ngram", "lookup"])}
    if rng.random() < 0.5:
        turns = [{"role": "user", "content": words}]
        return "/v1/chat/completions", {**body, "messages": turns}, {**settings, "prompts": turns}
    return "/v1/completions", {**body, "prompt": words}, {**settings, "prompts": words, "raw": True}


def answer(client: httpx2.Client, seed: int) -> list[tuple[str, str]]:
    path, body, _ = asked(seed)
    found = client.post(path, json=body)
    assert found.status_code == 200, found.text
    return [(c.get("text", c.get("message", {}).get("content")), c["finish_reason"]) for c in found.json()["choices"]]


@pytest.fixture(scope="module")
def meant(lm: LM) -> Callable[[int], list[tuple[str, str]]]:
    """A function that returns the texts of `LM.generate` for a random request."""

    @cache
    def texts(seed: int) -> list[tuple[str, str]]:
        return [(one.text, one.finish_reason) for one in lm.generate(**asked(seed)[2])]

    return texts


@pytest.mark.parametrize("count", [COUNT, MANY])
def test_texts_of_single_requests(client: httpx2.Client, meant: Callable[[int], Any], count: int) -> None:
    """A request that is alone on the server has the text of `LM.generate`, for random settings."""
    for seed in range(0, count, 4 if count == COUNT else 1):
        assert answer(client, seed) == meant(seed), asked(seed)


@pytest.mark.parametrize("count", [COUNT, MANY])
def test_texts_under_load(running: tuple[str, Service], meant: Callable[[int], Any], count: int) -> None:
    """Requests of sixteen concurrent clients have the texts of `LM.generate`, for random settings."""
    found: dict[int, Any] = {}

    def work(first: int) -> None:
        with httpx2.Client(base_url=running[0], timeout=120) as client:
            for seed in range(first, count, 16):
                found[seed] = answer(client, seed)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(count):
        assert found[seed] == meant(seed), asked(seed)
