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

This page lists every endpoint of `spectr serve` and every field of its request bodies. [Serving](serving.md) shows how
to use them. A running server gives the same description as OpenAPI at `/openapi.json`.

A body is a JSON object in UTF-8. Fields that are not listed here are refused with status 400. Where the tables give no
meaning, [Serving](serving.md#fields) explains the field. If the server has keys, a request carries one of them in the
header `Authorization: Bearer KEY`.

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


def endpoints(paths: dict[str, Any]) -> Iterator[str]:
    """Yield a section for each endpoint."""
    for path, operations in paths.items():
        for method, operation in operations.items():
            yield f"\n### {method.upper()} {path}\n\n{operation['summary']}\n"
            if "requestBody" in operation:
                body = operation["requestBody"]["content"]["application/json"]["schema"]
                yield f"The body is a {kind(body)}."
            media = " or ".join(f"`{name}`" for name in operation["responses"]["200"]["content"])
            yield f"The answer is {media}; statuses: {', '.join(sorted(operation['responses']))}."


def bodies(schemas: dict[str, Any]) -> Iterator[str]:
    """Yield a section for each object, with a table of its fields."""
    for name, schema in sorted(schemas.items()):
        needed = schema.get("required", ())
        about = " ".join(schema.get("description", "").split())
        yield f"\n### {name}\n" + (f"\n{about}\n" if about else "") + "\n| field | type | meaning |\n|---|---|---|"
        for field, value in sorted(schema["properties"].items(), key=lambda one: one[0] not in needed):
            mark = " (required)" if field in needed else ""
            yield f"| `{field}`{mark} | {kind(value)} | {value.get('description', '')} |"


def render(found: dict[str, Any]) -> str:
    """Return the page for a description."""
    parts = [HEAD, *statuses(found["paths"]), "\n## Endpoints", *endpoints(found["paths"]), "\n## Objects"]
    return "\n".join([*parts, *bodies(found["components"]["schemas"])]) + "\n"


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
