"""Streams through a router survive when replicas are killed, with real processes and real signals.

Starting servers takes most of the time. So all tests share five servers behind one router, and kill them one after the
other in the order of this file.
"""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass

import httpx2
import pytest
from tests.fleet.processes import Process, Received, ready, receive_all, server, started, texts

pytestmark = pytest.mark.scale
STREAMS = range(16)


@dataclass
class Fleet:
    """A router, and the servers behind it that have not been killed."""

    url: str
    left: list[Process]

    def kill(self) -> None:
        """Kill the last of the servers."""
        self.left.pop().kill()

    @property
    def failovers(self) -> int:
        """The number of streams that were continued on another server."""
        page = httpx2.get(f"{self.url}/metrics").text
        return int(float(page.split("\nspectr:router_failovers_total ")[1].split("\n")[0]))


@pytest.fixture(scope="module")
def fleet(folder: str) -> Iterator[Fleet]:
    with started(*[server(folder)] * 5) as replicas:
        flags = [flag for replica in replicas for flag in ("--replica", replica.url)]
        with started(["route", "--port", "0", "--patience", "2", *flags]) as (router,):
            ready(router.url, len(replicas))
            yield Fleet(router.url, replicas)


def test_whole_answers_and_reconnections(fleet: Fleet, undisturbed: list[Received]) -> None:
    """A client that reconnects with its last event id gets the rest of its text after the replica was killed; whole
    answers, errors, models and random seeds pass through the router."""
    body = {"prompt": "one two 3", "max_tokens": 200, "seed": 3, "temperature": 1.0}
    received = Received()
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}, "spectr": {"tokens": True}}
    with httpx2.Client(base_url=fleet.url, timeout=300) as client:
        with client.stream("POST", "/v1/completions", json=asked) as stream:
            for line in stream.iter_lines():
                received.add(line)
                if len(received.ids) == 20:
                    break
        before = len(received.tokens)
        fleet.kill()
        with client.stream(
            "POST", "/v1/completions", json=asked, headers={"Last-Event-ID": received.ids[-2]}
        ) as stream:
            again = Received()
            for line in stream.iter_lines():
                again.add(line)
        # the client left before the data of the last event had arrived
        assert received.text + again.text == undisturbed[3].text
        assert again.tokens == undisturbed[3].tokens
        assert before < len(again.tokens)
        assert client.post("/v1/completions", json=body).json()["choices"][0]["text"] == undisturbed[3].text
        found = client.post("/v1/completions", content=b"{", headers={"content-type": "application/json"})
        assert (found.status_code, json.loads(found.text)["error"]["code"]) == (400, "invalid_json")
        assert client.get("/v1/models").json()["data"][0]["id"] == "tiny"
        own = {"input": "one two 3", "max_output_tokens": 12, "seed": 3}
        chat = {"messages": [{"role": "user", "content": "one two 3"}], "max_tokens": 12, "seed": 3}
        response = client.post("/v1/responses", json=own).json()
        meant = client.post("/v1/chat/completions", json=chat).json()["choices"][0]["message"]["content"]
        assert response["output"][0]["content"][0]["text"] == meant
        streamed = client.post("/v1/responses", json={**own, "stream": True}).text
        assert json.loads(streamed.split("data: ")[-1])["response"]["output"][0]["content"][0]["text"] == meant
        chosen = client.post("/v1/completions", json={**body, "seed": None}).json()["spectr"]["seed"]
        assert isinstance(chosen, int)


def test_a_coupling_rule_says_why_it_cannot_go_on(fleet: Fleet) -> None:
    """Under a coupling rule the streams of a killed replica end with an error that says why; the others are whole."""

    def kill(received: list[Received]) -> bool:
        if all(len(one.tokens) > 20 for one in received):
            fleet.kill()
            return True
        return False

    received = asyncio.run(receive_all(fleet.url, STREAMS, kill, spectr={"rule": "kseq", "drafter": "ngram"}))
    lost = [one for one in received if not one.is_sound]
    assert 1 <= len(lost) < 16  # the streams of other replicas end normally
    for one in lost:
        assert one.has_ended
        assert one.error is not None
        assert one.error["code"] == "not_resumable"
        assert "rule 'kseq' cannot be resumed" in one.error["message"]


def test_a_killed_replica_loses_no_token(fleet: Fleet, undisturbed: list[Received]) -> None:
    """16 streams on three replicas have the same texts as without failures when two replicas are killed one after the
    other, so that some streams move twice."""
    before, kills = fleet.failovers, 0

    def kill(received: list[Received]) -> bool:
        """Kill a replica each time the streams have advanced by 50 tokens on average."""
        nonlocal kills
        if sum(len(one.tokens) for one in received) > (1 + kills) * 16 * 50:
            fleet.kill()
            kills += 1
        return kills == 2

    received = asyncio.run(receive_all(fleet.url, STREAMS, kill))
    assert all(one.is_sound for one in received)
    assert texts(received) == texts(undisturbed)
    assert [one.seed for one in received] == list(STREAMS)
    assert fleet.failovers >= before + 4


def test_none_is_left(fleet: Fleet) -> None:
    """Without replicas a router answers 503 and is not ready, but alive."""
    assert len(fleet.left) == 1
    fleet.kill()
    with httpx2.Client(base_url=fleet.url, timeout=300) as client:
        found = client.post("/v1/completions", json={"prompt": "one", "max_tokens": 4})
        assert (found.status_code, found.json()["error"]["code"]) == (503, "no_replica")
        assert client.get("/ready").status_code == 503
        assert client.get("/health").status_code == 200
