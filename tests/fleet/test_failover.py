"""Streams through a router whose replicas are killed: real processes, real signals."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack

import httpx2
import pytest
from tests.fleet.processes import Heard, Process, hear_all, ready, server, started

pytestmark = pytest.mark.scale
STREAMS = range(16)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


@pytest.fixture(scope="module")
def undisturbed(folder: str) -> list[Heard]:
    """The texts of a server that nobody disturbs."""
    with server(folder) as alone:
        heard = asyncio.run(hear_all(alone.url, STREAMS))
    assert all(one.is_sound for one in heard)
    return heard


def texts(heard: list[Heard]) -> list[tuple[str, list[int], str | None]]:
    return [(one.text, one.tokens, one.finish_reason) for one in heard]


def routed(stack: ExitStack, replicas: list[Process], *more: str) -> str:
    flags = [flag for replica in replicas for flag in ("--replica", replica.url)]
    router: Process = stack.enter_context(started("route", "--port", "0", *flags, *more))
    ready(router.url, len(replicas))
    return router.url


def failovers(url: str) -> int:
    page = httpx2.get(f"{url}/metrics").text
    return int(float(page.split("\nspectr:router_failovers_total ")[1].split("\n")[0]))


def test_a_killed_replica_loses_no_token(folder: str, stack: ExitStack, undisturbed: list[Heard]) -> None:
    """16 streams at two replicas, one of which is killed amid them; then the other one's streams move to a third."""
    replicas = [stack.enter_context(server(folder)) for _ in range(3)]
    url = routed(stack, replicas)
    left = list(replicas)

    def kill(heard: list[Heard]) -> bool:
        """Whenever the streams have come a third further."""
        if sum(len(one.tokens) for one in heard) > (4 - len(left)) * 16 * 50:
            left.pop().kill()
        return len(left) == 1

    heard = asyncio.run(hear_all(url, STREAMS, kill))
    assert all(one.is_sound for one in heard)
    assert texts(heard) == texts(undisturbed)
    assert [one.seed for one in heard] == list(STREAMS)
    assert failovers(url) >= 4


def test_a_coupling_rule_says_why_it_cannot_go_on(folder: str, stack: ExitStack) -> None:
    replicas = [stack.enter_context(server(folder)) for _ in range(2)]
    url = routed(stack, replicas)

    def kill(heard: list[Heard]) -> bool:
        if all(len(one.tokens) > 20 for one in heard):
            replicas.pop().kill()
        return len(replicas) == 1

    heard = asyncio.run(hear_all(url, range(8), kill, spectr={"rule": "kseq", "drafter": "ngram"}))
    lost = [one for one in heard if not one.is_sound]
    assert 1 <= len(lost) < 8  # those of the other replica end as they should
    for one in lost:
        assert one.has_ended
        assert one.error is not None
        assert one.error["code"] == "not_resumable"
        assert "rule 'kseq' cannot go on" in one.error["message"]


def test_whole_answers_and_reconnections(folder: str, stack: ExitStack, undisturbed: list[Heard]) -> None:
    """A client that lost its router goes on by the last id; an answer in one piece outlives its replica."""
    replicas = [stack.enter_context(server(folder)) for _ in range(2)]
    url = routed(stack, replicas)
    body = {"prompt": "one two 3", "max_tokens": 200, "seed": 3, "temperature": 1.0}
    heard = Heard()
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}, "spectr": {"tokens": True}}
    with httpx2.Client(base_url=url, timeout=300) as client:
        with client.stream("POST", "/v1/completions", json=asked) as stream:
            for line in stream.iter_lines():
                heard.add(line)
                if len(heard.ids) == 20:
                    break
        before = len(heard.tokens)
        replicas.pop().kill()
        with client.stream("POST", "/v1/completions", json=asked, headers={"Last-Event-ID": heard.ids[-2]}) as stream:
            again = Heard()
            for line in stream.iter_lines():
                again.add(line)
        # the last event had no data yet when the client left
        assert heard.text + again.text == undisturbed[3].text
        assert again.tokens == undisturbed[3].tokens
        assert before < len(again.tokens)
        assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == undisturbed[3].text
        found = client.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})
        assert (found.status_code, json.loads(found.text)["error"]["code"]) == (400, "invalid_json")
        assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
        chosen = client.post("/v1/completions", json={**body, "seed": None}).json()["spectr"]["seed"]
        assert isinstance(chosen, int)


def test_none_is_left(folder: str, stack: ExitStack) -> None:
    replica = stack.enter_context(server(folder))
    url = routed(stack, [replica], "--patience", "2")
    replica.kill()
    with httpx2.Client(base_url=url, timeout=300) as client:
        found = client.post("/v1/completions", json={"prompt": "one", "max_tokens": 4})
        assert (found.status_code, found.json()["error"]["code"]) == (503, "no_replica")
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
