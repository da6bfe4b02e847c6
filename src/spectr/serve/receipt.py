"""A receipt has everything that a text depends on, so that anybody with the same model can generate it again with
`spectr replay`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from spectr.coins import derived_seed
from spectr.draft.lookup import Lookup
from spectr.draft.options import AUTO, PLANNED
from spectr.draft.traits import DrafterTraits
from spectr.engine import Result
from spectr.errors import ArgumentError
from spectr.grammar import Grammar
from spectr.lm import LM, Output
from spectr.serve.parsing import ParsedRequest
from spectr.serve.service import Service
from spectr.trees import Shape
from spectr.types import Drafter
from spectr.verify import rule as named_rule

__all__ = ["Replayed", "drafting_of", "make_receipt", "read_receipt", "replay"]

_FORMAT = 1
_BY_NAME = ("none", "lookup", "ngram", "early_exit", "random")  # drafters that need nothing but the target
_FIELDS = ("model", "prompts", "n", "seed", "max_new_tokens", "settings", "speculation", "texts")


def _digest(tokens: Sequence[int]) -> str:
    return sha256(json.dumps(list(tokens)).encode()).hexdigest()


def make_receipt(parsed: ParsedRequest, service: Service, results: Sequence[Result]) -> dict[str, Any]:
    """Return everything that the texts of one request depend on, and digests of the texts."""
    engine = parsed.lm.engine
    return {
        "format": _FORMAT,
        "model": {"name": service.name, "digest": service.fingerprint},
        "versions": service.versions,
        "arithmetic": service.arithmetic,
        "speculation": {
            "rule": engine.rule.card.name, "drafter": engine.drafter.name, "nodes": engine.drafter.nodes,
            "lossless": engine.rule.card.lossless, "plan": _plan(engine.drafter),
        },
        "seed": parsed.seed,
        "n": parsed.n,
        "prompts": parsed.prompts,
        "max_new_tokens": parsed.limits,
        "settings": _as_json(parsed.settings),
        "texts": [{"tokens": len(result.tokens), "sha256": _digest(result.tokens)} for result in results],
    }  # fmt: skip


def _plan(drafter: Drafter) -> dict[str, Any] | None:
    """Return the options with which the drafter makes its trees, None if it has no plan."""
    if isinstance(drafter, Lookup):
        return {"drafts": drafter.drafts, "length": drafter.length, "nodes": drafter.nodes}
    plan = DrafterTraits(drafter).plan
    if plan is None or isinstance(plan.tree, Shape):
        return None
    return {name: value for name in ("siblings", *PLANNED) if (value := getattr(plan, name)) is not None}


def _as_json(settings: dict[str, Any]) -> dict[str, Any]:
    found = {name: value for name, value in settings.items() if name not in ("raw", "trace")}
    if "grammar" in found:
        grammar = found["grammar"].grammar
        found["grammar"] = {"kind": grammar.kind, "text": grammar.text, "root": grammar.root}
    return found


def _is_complete(receipt: dict[str, Any]) -> bool:
    """Return whether a receipt has what is needed to generate its texts again."""
    if any(name not in receipt for name in _FIELDS):
        return False
    speculation, model = receipt["speculation"], receipt["model"]
    return (
        isinstance(speculation, dict)
        and isinstance(model, dict)
        and all(isinstance(speculation.get(name), str) for name in ("rule", "drafter"))
        and all(isinstance(model.get(name), str) for name in ("name", "digest"))
        and isinstance(speculation.get("nodes"), int)
        and isinstance(speculation.get("plan"), dict | None)
    )


def read_receipt(path: Path) -> dict[str, Any]:
    """Read a receipt from a file, which has the receipt itself or the response that it came in."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArgumentError(f"a receipt must be a file of JSON, and {path} is not: {error}") from error
    if isinstance(found, dict) and isinstance(found.get("spectr"), dict):
        found = found["spectr"].get("receipt")
    if not isinstance(found, dict) or found.get("format") != _FORMAT or not _is_complete(found):
        raise ArgumentError(
            f"a receipt must be what a response has under spectr.receipt, in format {_FORMAT}, and {path} is not"
        )
    return found


@dataclass(frozen=True, slots=True)
class Replayed:
    """A text that was generated again."""

    output: Output
    is_same: bool


def drafting_of(receipt: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the drafter of a receipt and its options, for loading the model. They matter under rules whose text
    depends on drafts; under the others it is `auto`. Heads and draft models have no name here: they are `auto`, too,
    and must be named if the model does not come with them."""
    speculation = receipt["speculation"]
    name = speculation["drafter"]
    if not named_rule(speculation["rule"]).card.text_depends_on_drafts:
        return AUTO, {}
    if name == "none":
        return name, {}
    plan = speculation.get("plan") or {"nodes": speculation["nodes"]}  # older receipts have no plan
    return (name if name in _BY_NAME else AUTO), {option: plan[option] for option in PLANNED if option in plan}


def _differences(lm: LM, speculation: dict[str, Any]) -> list[str]:
    """Return a sentence for each difference in the speculation that the text can depend on."""
    rule, drafter = lm.engine.rule.card, lm.engine.drafter
    found = list[str]()
    if rule.name != speculation["rule"]:
        found.append(f"the receipt was made under rule {speculation['rule']!r}, this is {rule.name!r}")
    own: dict[str, Any] = {"drafter": drafter.name, "nodes": drafter.nodes, "plan": _plan(drafter)}
    own = json.loads(json.dumps(own))
    known = {**speculation, "plan": speculation.get("plan", own["plan"])}  # older receipts have no plan
    if rule.text_depends_on_drafts and (differing := [name for name in own if own[name] != known[name]]):
        found.append(
            f"the receipt was made with another {', '.join(differing)} (drafter {known['drafter']!r}, {known['nodes']} "
            f"nodes, {known['plan']}; this is {own['drafter']!r}, {own['nodes']}, {own['plan']}); under rule "
            f"{rule.name!r} the text depends on them"
        )
    return found


def replay(lm: LM, receipt: dict[str, Any], talk: Callable[[str], None]) -> list[Replayed]:
    """Generate the texts of a receipt again and compare them. `talk` gets a sentence for each thing that differs."""
    digest = lm.opened.target.digest()
    if digest != receipt["model"]["digest"]:
        talk(f"these weights are not those of the receipt ({digest} and {receipt['model']['digest']})")
    for sentence in _differences(lm, receipt["speculation"]):
        talk(sentence)
    settings = dict(receipt["settings"])
    if "logit_bias" in settings:
        settings["logit_bias"] = {int(token): value for token, value in settings["logit_bias"].items()}
    if "grammar" in settings:
        settings["grammar"] = Grammar(**settings["grammar"], is_foreign=True)
    n, prompts, limits = receipt["n"], receipt["prompts"], receipt["max_new_tokens"]
    handles = [
        lm.submit(prompts[index // n], limits[index // n], derived_seed(receipt["seed"], index), raw=True, **settings)
        for index in range(n * len(prompts))
    ]
    outputs = [handle.result() for handle in handles]
    return [
        Replayed(output, _digest(output.tokens) == text["sha256"])
        for output, text in zip(outputs, receipt["texts"], strict=True)
    ]
