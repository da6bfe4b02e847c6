"""Schemas, regexes and grammars that are expensive to compile are refused with a reason, and other requests are served
meanwhile."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from spectr.grammar.trial import Trial
from spectr.serve import Limits
from spectr.serve.grammars import GrammarCache

SLOW = "(?:[^x]|yy)?" * 400  # takes more than ten seconds on any machine
DOUBLED = {
    "$ref": "#/$defs/a0",
    "$defs": {
        "a25": {"type": "null"},
        **{f"a{at}": {"allOf": [{"$ref": f"#/$defs/a{at + 1}"}] * 2} for at in range(25)},
    },
}
ASKED = {"prompt": "one", "max_tokens": 4, "seed": 1}


def structured(client: Any, **wanted: Any) -> Any:
    return client.post("/v1/completions", json={**ASKED, "structured_outputs": wanted})


def test_a_grammar_that_takes_too_long(other: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar that exceeds `compile_time` is refused; requests without a grammar and with a cached one are served
    meanwhile."""
    client, service = other(Limits(compile_time=1.0))
    assert structured(client, choice=["one", "two"]).status_code == 200
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(structured(client, regex=SLOW)))
    thread.start()
    while not service.grammars._workers._running:
        time.sleep(0.01)
    served = 0
    while not found:
        assert client.post("/v1/completions", json=ASKED).status_code == 200
        assert structured(client, choice=["one", "two"]).status_code == 200
        served += not found
        time.sleep(0.1)  # leave the processor to the compilation
    thread.join()
    assert served >= 1
    error = found[0].json()["error"]
    assert (found[0].status_code, error["param"], error["code"]) == (400, "structured_outputs", "invalid_grammar")
    assert "must compile within 1 seconds" in error["message"]
    monkeypatch.setattr(Trial, "attempt", None)
    assert structured(client, regex=SLOW).status_code == 400  # it is not tried again


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        (DOUBLED, "must expand to at most"),
        (
            {"anyOf": [{"type": "integer", "minimum": -(10**300) + at, "maximum": 10**300} for at in range(60)]},
            "digits",
        ),
        ({"type": "array", "items": {"$ref": "#/x"}}, "nothing at"),
        ({"allOf": [{"anyOf": [{"required": [f"a{at}{by}"]} for by in range(4)]} for at in range(9)]}, "256 options"),
    ],
)
def test_schemas_that_explode(client: Any, schema: dict[str, Any], words: str) -> None:
    """Schemas that expand to too much are refused with a reason, and the server goes on."""
    found = structured(client, json=schema)
    assert (found.status_code, found.json()["error"]["code"]) == (400, "invalid_grammar")
    assert words in found.json()["error"]["message"]
    assert client.post("/v1/completions", json=ASKED).status_code == 200


def test_large_enums_are_intersected_soon(client: Any) -> None:
    start = time.process_time()
    found = structured(client, json={"allOf": [{"enum": list(range(5000))}, {"enum": list(range(4999, 9900))}]})
    assert found.json()["choices"][0]["text"].strip("4") in ("", "9", "99", "999")
    assert time.process_time() - start < 30  # comparing all pairs would take 24 million comparisons


def test_a_known_grammar_is_not_converted_again(other: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    client, service = other()
    texts = [structured(client, regex="[ab]{3}").json()["choices"][0]["text"]]
    monkeypatch.setattr(GrammarCache, "prepare", None)
    texts.append(structured(client, regex="[ab]{3}").json()["choices"][0]["text"])
    assert texts[0] == texts[1]
    assert len(service.grammars._known) == 1


@pytest.mark.parametrize(
    "wanted",
    [
        {"grammar": 'root ::= "a" root'},
        {"grammar": 'root ::= "x" | loop\nloop ::= "ab" loop'},
        {"grammar": "root ::= r0\n" + "".join(f"r{at} ::= r{at + 1} r{at + 1}\n" for at in range(60)) + 'r60 ::= "a"'},
        {"grammar": 'root ::= ("a"{1000}){1000}'},
        {"regex": "(a{900}){900}"},
        {"json": {"type": "array", "items": {"const": 1}, "minItems": 1_000_000}},
    ],
)
def test_grammars_that_force_an_endless_text(client: Any, wanted: dict[str, Any]) -> None:
    """A grammar that forces an endless text is served up to `max_tokens`, and the server goes on."""
    found = client.post("/v1/completions", json={**ASKED, "max_tokens": 40, "structured_outputs": wanted}, timeout=60)
    assert found.status_code == 200
    (choice,) = found.json()["choices"]
    assert choice["finish_reason"] == "length" or choice["text"] == "x"
    assert client.post("/v1/completions", json=ASKED).status_code == 200
