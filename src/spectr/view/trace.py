"""Turns a step into data for pages and HTTP: its tokens with their origins, and the tree that was drafted."""

from typing import Any

from spectr.engine import Step, StepTree
from spectr.view.tokens import TokenTexts

__all__ = ["traced"]


def traced(step: Step, texts: TokenTexts) -> dict[str, Any]:
    """Return one step as data. `bytes` has the bytes of each token, since a character may take several tokens."""
    data: dict[str, Any] = {
        "tokens": step.tokens,
        "bytes": [list(texts.raw(token)) for token in step.tokens],
        "origins": step.origins,
        "accepted": step.accepted,
        "drafted": step.drafted,
        "corrected": step.corrected,
        "text": step.text,
    }
    if step.tree is not None and step.tokens:
        data["tree"] = _tree(step, step.tree, texts)
    return data


def _tree(step: Step, tree: StepTree, texts: TokenTexts) -> dict[str, Any]:
    nodes = [
        {
            "token": node.token, "text": texts.text(node.token), "parent": node.parent, "draft": node.draft,
            "target": node.target, "accepted": node.accepted, "origin": node.origin,
        }
        for node in tree.nodes
    ]  # fmt: skip
    added = step.tokens[-1] if len(step.tokens) > step.accepted else None
    bonus = {
        "parent": tree.last, "token": added, "text": "" if added is None else texts.text(added),
        "target": tree.added, "corrected": step.corrected,
    }  # fmt: skip
    return {"nodes": nodes, "bonus": bonus}
