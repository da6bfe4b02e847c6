"""Writes the HTTP interface to the page docs/http.md; a test checks that the page is up to date.

The script starts the server with a tiny random model and reads its description from `/openapi.json`. Endpoints, fields,
types, bounds and statuses come from there; none of them is named here.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import spectr
from spectr.serve import ServerSettings
from spectr.serve.run import background

PAGE = Path(__file__).resolve().parents[1] / "docs" / "http.md"
HEAD = """# The HTTP interface

This page lists every endpoint of `spectr serve` and every field of its requests and responses. [Serving](serving.md)
shows how to use them, and [Generation](generation.md) explains the settings. A running server gives the same
description as OpenAPI at `/openapi.json`.

A body is a JSON object in UTF-8. Fields that are not listed here are refused with status 400. If the server has keys, a
request carries one of them in the header `Authorization: Bearer KEY`.

This page is the output of `python tools/http_page.py`.
"""
_BOUNDS = (
    ("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"),
    ("minLength", "characters ≥"), ("maxLength", "characters ≤"), ("minItems", "items ≥"), ("maxItems", "items ≤"),
)  # fmt: skip
_POWERS = {sign * (1 << bits): f"{'−' if sign < 0 else ''}2^{bits}" for bits in (31, 53, 63) for sign in (1, -1)}


def description() -> dict[str, Any]:
    """Return the OpenAPI description of a running server."""
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    with torch.random.fork_rng():
        model = LlamaForCausalLM(LlamaConfig(vocab_size=16, max_position_embeddings=64, **shape))
    with (
        background(spectr.load(model, "none"), ServerSettings(port=0, name="model")) as (url, _),
        urlopen(f"{url}/openapi.json") as answer,
    ):
        return json.load(answer)  # type: ignore[no-any-return]


def kind(schema: dict[str, Any]) -> str:
    """Describe a type in words, with its bounds."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in schema:
        return " or ".join(kind(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "const" in schema or "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema.get("enum", [schema.get("const")]))
    bounds = ", ".join(f"{sign} {_POWERS.get(schema[key], schema[key])}" for key, sign in _BOUNDS if key in schema)
    return _plain_kind(schema) + (f" ({bounds})" if bounds else "")


def _plain_kind(schema: dict[str, Any]) -> str:
    if schema.get("type") == "array":
        return f"list of {kind(schema.get('items', {}))}"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {kind(schema['additionalProperties'])}"
    if "properties" in schema:
        return f"object with {', '.join(f'`{name}`' for name in schema['properties'])}"
    names = schema.get("type", "any value")
    return names if isinstance(names, str) else " or ".join(names)


def statuses(paths: dict[str, Any]) -> Iterator[str]:
    """Yield a table of all statuses with their meanings."""
    found = {
        status: answer["description"]
        for path in paths.values()
        for operation in path.values()
        for status, answer in operation["responses"].items()
    }
    yield "## Statuses\n\n| status | meaning |\n|---|---|"
    yield from (f"| {status} | {found[status]} |" for status in sorted(found))


def headers(paths: dict[str, Any], described: dict[str, Any]) -> Iterator[str]:
    """Yield a table of all headers of requests, and one of those of responses, with the statuses that have them."""
    operations = [operation for path in paths.values() for operation in path.values()]
    asked = {one["name"]: one for each in operations for one in each.get("parameters", ()) if one["in"] == "header"}
    yield "\n## Headers\n\n| header of a request | meaning |\n|---|---|"
    yield from (f"| `{name}` | {one['description']} |" for name, one in asked.items())
    yield "\n| header of a response | statuses | meaning |\n|---|---|---|"
    answers = [answer for each in operations for answer in each["responses"].items()]
    every = {status for status, _ in answers}
    for name, header in described.items():
        with_it = {status for status, answer in answers if name in answer.get("headers", ())}
        yield f"| `{name}` | {'all' if with_it == every else ', '.join(sorted(with_it))} | {header['description']} |"


def endpoints(paths: dict[str, Any]) -> Iterator[str]:
    """Yield a section for each endpoint."""
    for path, operations in paths.items():
        for method, operation in operations.items():
            yield f"\n### {method.upper()} {path}\n\n{operation['summary']}\n"
            if "requestBody" in operation:
                body = operation["requestBody"]["content"]["application/json"]["schema"]
                yield f"The body is {kind(body)}."
            for one in operation.get("parameters", ()):
                if one["in"] != "header":
                    yield f"The parameter `{one['name']}` of the {one['in']}: {one['description']}"
            media = " or ".join(_media(name, one) for name, one in operation["responses"]["200"]["content"].items())
            yield f"The answer is {media}; statuses: {', '.join(sorted(operation['responses']))}."


def _media(name: str, described: dict[str, Any]) -> str:
    """Return a kind of answer in words, with its object."""
    if "x-events" in described:
        return f"`{name}` (the data of each event: {kind(described['x-events'])})"
    is_object = "$ref" in described.get("schema", {})
    return f"`{name}`" + (f" ({kind(described['schema'])})" if is_object else "")


def _named(part: Any) -> Iterator[str]:
    """Yield the names of all objects that a part of the description refers to."""
    if isinstance(part, dict):
        if isinstance(part.get("$ref"), str):
            yield part["$ref"].rpartition("/")[2]
        part = list(part.values())
    for one in part if isinstance(part, list) else ():
        yield from _named(one)


def asked(found: dict[str, Any]) -> set[str]:
    """Return the names of the objects of requests."""
    operations = [operation for path in found["paths"].values() for operation in path.values()]
    new = set(_named([operation.get("requestBody") for operation in operations]))
    names = set[str]()
    while new:
        names |= new
        new = set(_named([found["components"]["schemas"][name] for name in new])) - names
    return names


def objects(schemas: dict[str, Any], *, are_asked: bool) -> Iterator[str]:
    """Yield a section for each object, with a table of its fields. A request may leave fields out; a response seldom
    does."""
    for name, schema in sorted(schemas.items()):
        needed = schema.get("required", ())
        about = " ".join(schema.get("description", "").split())
        yield f"\n### {name}\n" + (f"\n{about}\n" if about else "") + "\n| field | type | meaning |\n|---|---|---|"
        for field, value in sorted(schema["properties"].items(), key=lambda one: one[0] not in needed):
            mark = {(True, True): " (required)", (False, False): " (optional)"}.get((are_asked, field in needed), "")
            yield f"| `{field}`{mark} | {kind(value)} | {' '.join(value.get('description', '').split())} |"


def render(found: dict[str, Any]) -> str:
    """Return the page for a description."""
    paths, components, of_requests = found["paths"], found["components"], asked(found)
    given = {name: schema for name, schema in components["schemas"].items() if name in of_requests}
    sent = {name: schema for name, schema in components["schemas"].items() if name not in of_requests}
    parts = [HEAD, *statuses(paths), *headers(paths, components["headers"]), "\n## Endpoints", *endpoints(paths)]
    parts += ["\n## Objects of requests", *objects(given, are_asked=True)]
    return "\n".join([*parts, "\n## Objects of responses", *objects(sent, are_asked=False)]) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="Write the HTTP interface to docs/http.md.")
    parser.add_argument("--out", type=Path, default=PAGE, help="the page (default: docs/http.md)")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the page is not up to date")
    options = parser.parse_args()
    if not options.check:
        options.out.write_text(render(description()), encoding="utf-8")
    elif not options.out.is_file() or options.out.read_text(encoding="utf-8") != render(description()):
        sys.exit(f"{options.out} is not up to date: run python tools/http_page.py")


if __name__ == "__main__":
    main()
