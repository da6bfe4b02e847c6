"""Prompts that ask for JSON, and the schemas of the answers."""

from typing import Any

__all__ = ["TASKS"]


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


_TEXT = {"type": "string"}
_PERSON = _object(
    name=_TEXT, age={"type": "integer", "minimum": 0, "maximum": 120}, city=_TEXT,
    languages={"type": "array", "items": _TEXT, "maxItems": 4},
)  # fmt: skip
_ASPECT = _object(
    aspect={"enum": ["food", "service", "price", "location"]}, opinion={"type": "string", "maxLength": 30}
)
_REVIEW = _object(
    sentiment={"enum": ["positive", "negative", "neutral"]}, confidence={"type": "number", "minimum": 0, "maximum": 1},
    aspects={"type": "array", "items": _ASPECT, "minItems": 2, "maxItems": 3}, recommended={"type": "boolean"},
)  # fmt: skip
_CALL = _object(
    function={"const": "get_weather"},
    arguments=_object(
        location=_TEXT, unit={"enum": ["celsius", "fahrenheit"]}, days={"type": "integer", "minimum": 1, "maximum": 14}
    ),
)

TASKS: dict[str, tuple[str, dict[str, Any]]] = {
    "person": ("Describe a person as JSON with name, age, city and languages.", _PERSON),
    "review": ("Review as JSON: 'The pasta was wonderful, but we waited an hour and it was expensive.'", _REVIEW),
    "call": ("Call the weather function for Paris for the next three days, as JSON.", _CALL),
}
