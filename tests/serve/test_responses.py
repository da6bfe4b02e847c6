"""The responses of a server have the fields that it describes, and no others; every field has a description."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest
from pydantic import BaseModel

from spectr.serve import responses, text_responses

BODIES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": ["the quick brown fox", "one two"], "n": 2, "echo": True, "logprobs": 2},
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "tides rise"}], "logprobs": True, "top_logprobs": 2,
        "prediction": {"type": "content", "content": "tides rise and fall"},
    },
}  # fmt: skip
MORE: dict[str, Any] = {"max_tokens": 12, "seed": 3, "spectr": {"trace": True, "statistics": True, "tokens": True}}
WHOLE = {
    "/v1/completions": text_responses.CompletionResponse, "/v1/chat/completions": text_responses.ChatResponse
}  # fmt: skip
CHUNKS = {"/v1/completions": text_responses.CompletionChunk, "/v1/chat/completions": text_responses.ChatChunk}


def check(found: dict[str, Any], kind: type[BaseModel]) -> None:
    """Fail if a field is missing, of another type, or not described: reading leaves those out."""
    assert kind.model_validate(found, strict=True).model_dump(exclude_unset=True) == found


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("more", [MORE, {"max_tokens": 5, "spectr": {"receipt": False}}], ids=["all", "least"])
def test_texts(client: httpx2.Client, path: str, more: dict[str, Any]) -> None:
    check(client.post(path, json={**BODIES[path], **more}).json(), WHOLE[path])


@pytest.mark.parametrize("path", BODIES)
def test_streams(client: httpx2.Client, path: str) -> None:
    body = {**BODIES[path], **MORE, "stream": True, "stream_options": {"include_usage": True}}
    lines = [line for line in client.post(path, json=body).text.splitlines() if line.startswith("data: {")]
    assert len(lines) > 2
    for line in lines:
        check(json.loads(line.removeprefix("data: ")), CHUNKS[path])


def test_other_endpoints(client: httpx2.Client, other: Callable[..., Any]) -> None:
    check(client.get("/v1/models").json(), responses.ModelList)
    check(client.get("/v1/models/tiny").json(), responses.ModelCard)
    check(client.post("/tokenize", json={"prompt": "one two"}).json(), responses.TokenizeResponse)
    check(
        client.post("/tokenize", json={"prompt": "one", "return_token_strs": True}).json(), responses.TokenizeResponse
    )
    check(client.post("/detokenize", json={"tokens": [5, 6]}).json(), responses.DetokenizeResponse)
    check(client.get("/health").json(), responses.Alive)
    check(client.get("/version").json(), responses.Versions)
    check(client.get("/ready").json(), responses.Ready)
    check(client.get("/v1/models/huge").json(), responses.Error)
    audited = other(audit_share=1.0)[0].get("/ready").json()
    check(audited, responses.Ready)
    assert set(audited) == set(responses.Ready.model_fields)


def properties(schemas: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """All fields of all objects, with their names."""
    for name, schema in schemas.items():
        for field, value in schema["properties"].items():
            yield f"{name}.{field}", value


def test_everything_has_a_description(client: httpx2.Client) -> None:
    described = client.get("/openapi.json").json()
    components = described["components"]
    named = [*properties(components["schemas"]), *components["schemas"].items(), *components["headers"].items()]
    for path, operations in described["paths"].items():
        for operation in operations.values():
            named += [(f"{path}: {one['name']}", one) for one in operation["parameters"]]
    assert len(named) > 200
    assert [name for name, one in named if not one.get("description")] == []


def test_an_answer_has_the_object_that_is_described(client: httpx2.Client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    for path, kind in WHOLE.items():
        content = paths[path]["post"]["responses"]["200"]["content"]
        assert content["application/json"]["schema"] == {"$ref": f"#/components/schemas/{kind.__name__}"}
        assert content["text/event-stream"]["x-events"] == {"$ref": f"#/components/schemas/{CHUNKS[path].__name__}"}
    assert list(paths["/metrics"]["get"]["responses"]["200"]["content"]) == ["text/plain"]
