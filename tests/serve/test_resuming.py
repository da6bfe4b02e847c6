"""A stream that breaks off after any event can be continued, with the tokens sent before or with the last event id."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest

from spectr.serve.resuming import Progress, TextPosition, read_positions

CHAT = {"messages": [{"role": "user", "content": "tides rise"}]}
BY = {"type": "object", "properties": {"by": {"type": "integer", "maximum": 99, "minimum": 0}}, "required": ["by"]}
TOOL = {"type": "function", "function": {"name": "rise", "parameters": BY}}
TEXT = {"prompt": "naïve café ☕"}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", TEXT),
    "chat": ("/v1/chat/completions", CHAT),
    "several": ("/v1/completions", {"prompt": ["one two", "the lazy dog"], "n": 2, "max_tokens": 16}),
    "echo": ("/v1/completions", {**TEXT, "echo": True, "logprobs": 2, "n": 2, "max_tokens": 16}),
    "logprobs": ("/v1/chat/completions", {**CHAT, "logprobs": True, "top_logprobs": 2}),
    "stop": ("/v1/completions", {**TEXT, "stop": ["e", "zz"], "min_tokens": 20, "max_tokens": 48}),
    "penalties": ("/v1/completions", {**TEXT, "frequency_penalty": 1.5, "repetition_penalty": 1.3, "top_p": 0.9}),
    "grammar": ("/v1/completions", {**TEXT, "structured_outputs": {"regex": "[a-f]{30}[0-9]{5}"}, "max_tokens": 48}),
    "tools": (
        "/v1/chat/completions",
        {**CHAT, "tools": [TOOL], "tool_choice": "required", "n": 2, "max_tokens": 100},
    ),
    "one token": ("/v1/completions", {**TEXT, "max_tokens": 1}),
    "echo and one token": ("/v1/completions", {**TEXT, "echo": True, "logprobs": 0, "n": 2, "max_tokens": 1}),
}  # fmt: skip


@dataclass(frozen=True)
class Received:
    """An event: its id and its data."""

    id: str
    data: dict[str, Any]


def stream(client: httpx2.Client, path: str, body: dict[str, Any], **headers: str) -> list[Received]:
    """Return the events of a stream, which must end with [DONE]."""
    with client.stream("POST", path, json=body, headers=headers) as found:
        text = found.read().decode()
        assert found.status_code == 200, text
    *blocks, last, rest = text.split("\n\n")
    assert (last, rest) == ("data: [DONE]", "")
    received = []
    for block in blocks:
        name, data = block.split("\n")
        received.append(Received(name.removeprefix("id: "), json.loads(data.removeprefix("data: "))))
    return received


def asked(body: dict[str, Any], **spectr: Any) -> dict[str, Any]:
    options = {"include_usage": True, "event_ids": True}
    usual = {"max_tokens": 24, "seed": 11, "temperature": 1.0, "stream": True, "stream_options": options}
    return {**usual, **body, "spectr": {"tokens": True, **spectr}}


def as_texts(events: list[Received]) -> dict[int, dict[str, Any]]:
    """Return what a client has of each text after these events."""
    found: dict[int, dict[str, Any]] = {}
    for event in events:
        for choice in event.data["choices"]:
            own = found.setdefault(choice["index"], {"text": "", "tokens": [], "end": None, "roles": 0, "logprobs": [],
                                                      "offsets": []})  # fmt: skip
            delta = choice.get("delta", {})
            own["text"] += choice.get("text", delta.get("content") or "")
            for part in delta.get("tool_calls", []):
                name = part["function"].get("name", "")
                own["text"] += f"[{part['index']} {name} {part.get('id')}]" * bool(name) + part["function"]["arguments"]
            own["roles"] += "role" in delta
            own["tokens"] += event.data.get("spectr", {}).get("tokens", [])
            own["end"] = choice["finish_reason"] or own["end"]
            if choice["logprobs"] is not None:
                got = choice["logprobs"]
                own["logprobs"] += got["content"] if "content" in got else got["token_logprobs"]
                own["offsets"] += got.get("text_offset", [])
    return found


def resume_of(events: list[Received], texts: int) -> dict[str, Any]:
    """Return the `resume` field that a router sends to the next server after these events."""
    head, have = events[0].data, as_texts(events)
    empty: dict[str, Any] = {"tokens": [], "end": None}
    entries = [
        {"tokens": have.get(at, empty)["tokens"], "begun": at in have, "finish_reason": have.get(at, empty)["end"]}
        for at in range(texts)
    ]
    return {"id": head["id"], "created": head["created"], "fingerprint": head["system_fingerprint"], "texts": entries}


def rounded(texts: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Round log-probabilities: calls of different widths agree only up to rounding errors."""
    return {at: {**own, "logprobs": json.loads(json.dumps(own["logprobs"]), parse_float=lambda x: round(float(x), 6))}
            for at, own in texts.items()}  # fmt: skip


_QUICK = ("completion", "echo and one token")
SOME = [pytest.param(name, marks=() if name in _QUICK else pytest.mark.slow) for name in BODIES]


@pytest.mark.parametrize("name", SOME)
def test_a_stream_goes_on_with_the_tokens_sent_before(client: httpx2.Client, name: str) -> None:
    """Cut after any event and continued with `resume`, a stream has the same texts, ids, usage and receipt."""
    path, given = BODIES[name]
    if "structured_outputs" in given or "tools" in given:
        pytest.importorskip("xgrammar", reason="needs xgrammar: pip install 'spectr-lm[grammar]'")
    body = asked(given)
    whole = stream(client, path, body)
    texts = as_texts(whole)
    assert len(whole) > 2 or name.endswith("one token")
    for cut in range(1, len(whole)):
        before = whole[:cut]
        after = stream(client, path, asked(given, resume=resume_of(before, len(texts))))
        assert rounded(as_texts(before + after)) == rounded(texts), f"cut after {cut} events"
        assert {event.data["id"] for event in before + after} == {whole[0].data["id"]}
        assert after[-1].id == whole[-1].id
        for count in ("prompt_tokens", "completion_tokens"):
            assert after[-1].data["usage"][count] == whole[-1].data["usage"][count]
        usage = after[-1].data["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"]
        assert after[-1].data["spectr"]["receipt"]["texts"] == whole[-1].data["spectr"]["receipt"]["texts"]


@pytest.mark.parametrize("name", SOME)
def test_a_client_reconnects(client: httpx2.Client, name: str) -> None:
    """A client that reconnects with Last-Event-ID after any event gets exactly the rest of the stream."""
    path, given = BODIES[name]
    if "structured_outputs" in given or "tools" in given:
        pytest.importorskip("xgrammar", reason="needs xgrammar: pip install 'spectr-lm[grammar]'")
    body = asked(given)
    whole = stream(client, path, body)
    texts = as_texts(whole)
    for cut in range(1, len(whole), 2 if len(whole) > 8 else 1):
        before = whole[:cut]
        after = stream(client, path, body, **{"Last-Event-ID": before[-1].id})
        joined, have = as_texts(before + after), as_texts(before)
        for at, own in joined.items():  # each connection reports tokens from the beginning
            known = have.get(at, {"tokens": [], "end": None})
            own["tokens"] = own["tokens"][0 if known["end"] else len(known["tokens"]) :]
        assert rounded(joined) == rounded(texts), f"cut after {cut} events"
        assert after[-1].id == whole[-1].id


def test_what_cannot_go_on_says_why(client: httpx2.Client) -> None:
    """A stream that cannot be continued (other model, other text, unsuitable rule, bad id) is refused with a code."""
    path, given = BODIES["completion"]
    whole = stream(client, path, asked(given))
    resume = resume_of(whole[:3], 1)

    def refused(body: dict[str, Any], **headers: str) -> tuple[int, str]:
        found = client.post(path, json=body, headers=headers)
        return found.status_code, found.json()["error"]["code"]

    assert refused(asked(given, resume={**resume, "fingerprint": "fp_0"})) == (409, "other_model")
    assert refused(asked(given, resume=resume, rule="kseq", drafter="ngram")) == (409, "not_resumable")
    assert refused(asked({**given, "seed": 12}), **{"Last-Event-ID": whole[2].id}) == (409, "other_text")
    assert refused(asked(given), **{"Last-Event-ID": "7"}) == (400, "invalid_event_id")
    assert refused(asked(given), **{"Last-Event-ID": "-,-"}) == (400, "invalid_event_id")
    assert refused(asked({**given, "max_tokens": 2}), **{"Last-Event-ID": whole[-1].id}) == (409, "other_text")
    for wrong in ({"seed": None}, {"stream": False, "stream_options": None}):
        assert refused(asked({**given, **wrong}, resume=resume))[0] == 400
    assert refused(asked({**given, "n": 2}, resume=resume))[0] == 400


def test_streams_have_ids_where_they_are_wanted(client: httpx2.Client, other: Callable[..., Any]) -> None:
    """Events have ids only if the server or the request asks for them, since some clients treat every line as data."""
    body = {**TEXT, "max_tokens": 4, "stream": True}
    with_ids, _ = other(event_ids=True)
    for caller, options, expected in (
        (client, None, False), (client, {"event_ids": True}, True), (with_ids, None, True),
        (with_ids, {"event_ids": False}, False),
    ):  # fmt: skip
        found = caller.post("/v1/completions", json={**body, "stream_options": options}).text
        assert ("id: " in found) == expected


def test_ids_count_tokens() -> None:
    """An event id has the number and a digest of the tokens of each text, and can be read back."""
    progress = Progress([None, None])
    assert progress.id == "-,-"
    for index, tokens, ends, expected in (
        (1, [5, 6], False, f"-,{TextPosition.after([5, 6])}"),
        (1, [7], False, f"-,{TextPosition.after([5, 6, 7])}"),
        (0, [], False, f"0:e3b0c442,{TextPosition.after([5, 6, 7])}"),
        (0, [], True, f"0:e3b0c442.,{TextPosition.after([5, 6, 7])}"),
    ):
        progress.move(index, tokens, ends=ends)
        assert progress.id == expected
    seen = read_positions(progress.id, 2)
    assert [one.count for one in seen if one is not None] == [0, 3]
    assert Progress(seen).id == progress.id
