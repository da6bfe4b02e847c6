"""Routing of requests, and the record that a router keeps of a stream."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from spectr.errors import ArgumentError
from spectr.fleet.over_http import HttpReplicas
from spectr.fleet.plan import FleetPlan, Scaling, read_plan
from spectr.fleet.ring import Ring, choose, prefix_key
from spectr.fleet.router import admitted
from spectr.fleet.stream_record import Block, StreamRecord, blocks

NAMES = [f"http://10.0.0.{number}:8000" for number in range(20)]
KEYS = [f"beginning {number}" for number in range(2000)]


def test_every_replica_gets_a_share() -> None:
    """The ring spreads 2,000 keys over all replicas; with 64 points each, shares vary by about an eighth."""
    ring = Ring(NAMES)
    counts = Counter(next(ring.order(key)) for key in KEYS)
    assert set(counts) == set(NAMES)
    assert min(counts.values()) >= 50
    assert max(counts.values()) <= 170


def test_a_replica_that_goes_moves_its_own_requests_alone() -> None:
    """When a replica is removed, only its own keys move, each to the next replica in its order."""
    before, after = Ring(NAMES), Ring(NAMES[1:])
    for key in KEYS:
        assert next(after.order(key)) == next(name for name in before.order(key) if name != NAMES[0])


def test_no_replica_gets_more_than_its_share() -> None:
    """If all requests have the same prefix, they spread over the replicas, and no load exceeds the bound."""
    ring, loads = Ring(NAMES), dict.fromkeys(NAMES, 0)
    for count in range(1, 401):
        name = choose(ring, "one beginning", loads)
        assert name is not None
        loads[name] += 1
        assert max(loads.values()) <= -(-1.25 * count // len(NAMES))
    assert choose(ring, "x", {}) is None
    assert choose(ring, "x", {NAMES[3]: 7}) == NAMES[3]


def test_requests_with_the_same_beginning_have_the_same_key() -> None:
    """Chats with the same beginning, and turns of one conversation, have the same key; odd bodies have some key."""
    system = {"role": "system", "content": "s" * 600}
    first = [system, {"role": "user", "content": "one"}]
    other = [system, {"role": "user", "content": "two"}]
    short = [{"role": "user", "content": "one"}]
    later = [*short, {"role": "assistant", "content": "a"}, {"role": "user", "content": "b"}]
    assert prefix_key({"messages": first}) == prefix_key({"messages": other})
    assert prefix_key({"messages": short}) == prefix_key({"messages": later})
    assert prefix_key({"messages": short}) != prefix_key({"messages": [{"role": "user", "content": "two"}]})
    assert prefix_key({"prompt": ["a", "b"]}) == "a"
    assert prefix_key({"prompt": [[1, 2], [3]]}) == prefix_key({"prompt": [1, 2]})
    for odd in ({}, {"prompt": None}, {"prompt": []}, {"prompt": 7}, {"messages": [7]}, {"prompt": [[]]}):
        assert isinstance(prefix_key(odd), str)


async def pieces(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_events_come_in_any_pieces(size: int) -> None:
    """Events are parsed correctly however the bytes are divided; comments and incomplete events are dropped."""
    data = ': keep-alive\n\nid: 1:ab\ndata: {"a": "é: \\n"}\n\ndata: [DONE]\n\ndata: {"lacks its en'.encode()

    async def read() -> list[Block]:
        return [block async for block in blocks(pieces(data, size))]

    assert asyncio.run(read()) == [Block('{"a": "é: \\n"}'.encode(), "1:ab"), Block(b"[DONE]")]


def chunk(index: int, text: str, tokens: list[int], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": index, "text": text, "logprobs": None, "finish_reason": reason}
    head = {"id": "cmpl-1", "created": 5, "system_fingerprint": "fp_1"}
    return {**head, "choices": [choice], "spectr": {"tokens": tokens}}


def test_a_ledger_resumes_with_every_token_once() -> None:
    """The `resume` field of the next request has all tokens received so far, for each text."""
    body = {"prompt": ["a", "b"], "n": 2, "seed": 1, "stream": True, "spectr": {"rule": "race"}}
    record = StreamRecord(body, None, event_ids=True)
    assert record.body()["spectr"] == {"rule": "race", "tokens": True}
    assert record.headers() == {}
    wrong = {**body, "stream_options": {"event_ids": "x"}, "spectr": {"tokens": 1}}
    assert StreamRecord(wrong, None, event_ids=True).body() == wrong  # the replica refuses these
    event = record.add(chunk(0, "x", [4, 5]), "2:a,-,-,-")
    assert (event.id, "spectr" in event.data) == ("2:a,-,-,-", False)
    record.add(chunk(2, "y", [6], "stop"), "2:a,-,1:b.,-")
    record.add(chunk(0, "z", [7]), "3:c,-,1:b.,-")
    resume = record.body()["spectr"]["resume"]
    assert (resume["id"], resume["created"], resume["fingerprint"]) == ("cmpl-1", 5, "fp_1")
    assert [(text["tokens"], text["begun"], text["finish_reason"]) for text in resume["texts"]] == [
        ([4, 5, 7], True, None), ([], False, None), ([6], True, "stop"), ([], False, None),
    ]  # fmt: skip
    assert not record.is_closed
    record.add({**chunk(0, "", []), "choices": []}, "3:c,-,1:b.,-")
    assert record.is_closed


def test_a_ledger_of_a_client_that_reconnected() -> None:
    """The tokens that a reconnected client already has are unknown until its texts continue; until then the next
    replica gets the event id instead."""
    record = StreamRecord({"prompt": "a", "n": 2, "seed": 1, "spectr": {"tokens": True}}, "2:a,3:b", event_ids=False)
    assert record.headers() == {"last-event-id": "2:a,3:b"}
    event = record.add(chunk(0, "x", [4, 5, 6]), "3:c,3:b")
    assert (event.id, event.data["spectr"]["tokens"]) == ("3:c,3:b", [4, 5, 6])
    assert record.headers() == {"last-event-id": "3:c,3:b"}
    assert "resume" not in record.body()["spectr"]
    record.add(chunk(1, "x", [7, 8, 9, 1]), "3:c,4:d")
    assert record.headers() == {}
    assert [text["tokens"] for text in record.body()["spectr"]["resume"]["texts"]] == [[4, 5, 6], [7, 8, 9, 1]]


def test_a_ledger_of_a_client_that_goes_on_itself() -> None:
    """If the client itself sends a `resume` field, its tokens come first."""
    texts = [
        {"tokens": [1, 2], "begun": True, "finish_reason": None},
        {"tokens": [3], "begun": True, "finish_reason": "stop"},
    ]
    given = {"id": "cmpl-1", "created": 5, "fingerprint": "fp_1", "texts": texts}
    record = StreamRecord({"prompt": "a", "n": 2, "seed": 1, "spectr": {"resume": given}}, None, event_ids=True)
    assert record.body()["spectr"]["resume"] == given
    record.add(chunk(0, "x", [4]), "3:c,1:b.")
    resumed = record.body()["spectr"]["resume"]["texts"]
    assert [(text["tokens"], text["finish_reason"]) for text in resumed] == [([1, 2, 4], None), ([3], "stop")]


def test_a_prompt_that_is_repeated_has_no_tokens_of_the_text() -> None:
    """An echoed prompt does not count as tokens of the text."""
    for tells in (False, True):
        record = StreamRecord(
            {"prompt": "a", "echo": True, "seed": 1, "spectr": {"tokens": tells}}, None, event_ids=True
        )
        echo = chunk(0, "a", [])
        del echo["spectr"]
        assert "spectr" not in record.add(echo, "0:a").data
        assert record.body()["spectr"]["resume"]["texts"] == [{"tokens": [], "begun": True, "finish_reason": None}]
        sent = record.add(chunk(0, "x", [4]), "1:b").data
        assert sent.get("spectr") == ({"tokens": [4]} if tells else None)
        assert record.body()["spectr"]["resume"]["texts"][0]["tokens"] == [4]


def test_a_ledger_is_small_however_many_texts_a_body_claims() -> None:
    record = StreamRecord({"prompt": "a", "n": 10**12, "seed": 1}, None, event_ids=True)
    assert "resume" not in record.body()["spectr"]


def test_a_seed_is_fixed_at_admission() -> None:
    """A request without a seed gets a random one when it is admitted; bodies that a replica will refuse get none."""
    first, second = admitted(b'{"prompt": "a"}'), admitted(b'{"prompt": "a", "seed": null}')
    assert first is not None
    assert second is not None
    assert first["seed"] != second["seed"]
    assert admitted(b'{"prompt": "a", "seed": 0}') == {"prompt": "a", "seed": 0}
    for wrong in (b"{", b"[]", b'{"spectr": 7}', b'{"stream_options": [1]}', b"\xff"):
        assert admitted(wrong) is None


@pytest.mark.parametrize("urls", [[], ["a", "b"], ["http://a", "http://a"], ["http://a/v1"], ["ftp://a"]])
def test_addresses_of_replicas_are_checked(urls: list[str]) -> None:
    with pytest.raises(ArgumentError, match="replica"):
        HttpReplicas(urls)


def test_a_plan_is_read_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "app.yaml"
    path.write_text("model: m\nreplicas: {least: 1, most: 4, queue: 8}\nnodes: 16\nenvironment: {A: b}\n")
    plan = read_plan(path)
    assert plan == FleetPlan("m", nodes=16, replicas=Scaling(1, 4, 8), environment={"A": "b"})
    assert plan.loading["nodes"] == 16
    path.write_text("model: m\nreplicas: 3\n")
    assert read_plan(path).replicas == Scaling(3, 3)
    assert read_plan(path).digest != plan.digest


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("modle: m", "must say which model"),
        ("model: m\nreplica: 2", "no field replica; .*replicas"),
        ("model: m\nreplicas: {most: 0}", "1 <= least <= most"),
        ("model: m\nreplicas: {maximum: 2}", r"no field replicas.maximum"),
        ("model: m\nreplicas: many", "must be a number"),
        ("model: m\nport: '80'", "port in .* must be int"),
        ("model: m\ninsecure: 1", "insecure in .* must be bool"),
        ("model: m\ncpus: true", "cpus in .* must be float"),
        ("model: m\nenvironment: {OMP_NUM_THREADS: 1}", "in quotes"),
        ("- a", "must say which model"),
        ("a: [", "must be a file in YAML"),
    ],
)
def test_a_plan_that_is_wrong(tmp_path: Path, text: str, said: str) -> None:
    """An invalid plan is refused with an error that names the entry."""
    path = tmp_path / "app.yaml"
    path.write_text(text)
    with pytest.raises(ArgumentError, match=said):
        read_plan(path)
