"""docs/http.md is the output of tools/http_page.py for the server's own OpenAPI description."""

from collections.abc import Callable
from types import ModuleType

import httpx2
import pytest


@pytest.fixture(scope="module")
def tool(generator: Callable[[str], ModuleType]) -> ModuleType:
    return generator("http_page")


def test_the_page_is_up_to_date(tool: ModuleType, client: httpx2.Client) -> None:
    page = tool.PAGE.read_text(encoding="utf-8")
    assert page == tool.render(client.get("/openapi.json").json()), "run python tools/http_page.py"


def test_every_endpoint_and_field_is_on_the_page(tool: ModuleType, client: httpx2.Client) -> None:
    described = client.get("/openapi.json").json()
    page = tool.PAGE.read_text(encoding="utf-8")
    for path, operations in described["paths"].items():
        for method in operations:
            assert f"### {method.upper()} {path}\n" in page
    for name, schema in described["components"]["schemas"].items():
        section = page.split(f"\n### {name}\n")[1].split("\n### ")[0]
        assert [field for field in schema["properties"] if f"| `{field}`" not in section] == []


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "integer", "minimum": 1, "exclusiveMaximum": 1 << 31}, "integer (≥ 1, < 2^31)"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "string"),
        ({"type": "array", "items": {"$ref": "#/components/schemas/Message"}, "maxItems": 2},
         "list of [Message](#message) (items ≤ 2)"),
        ({"enum": ["stop", "length"]}, '`"stop"` or `"length"`'),
        ({"const": False}, "`false`"),
        ({"type": ["string", "null"]}, "string or null"),
        ({"type": "object", "additionalProperties": {"type": "number"}}, "object of number"),
    ],
)  # fmt: skip
def test_types_in_words(tool: ModuleType, schema: dict[str, object], words: str) -> None:
    assert tool.kind(schema) == words
