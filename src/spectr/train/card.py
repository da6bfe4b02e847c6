"""The model card of a trained drafter."""

from pathlib import Path

from spectr.models.trained import Trained

__all__ = ["write_card"]


def _rows(curve: list[dict[str, object]]) -> str:
    """Return a table of some points of the training curve, including the last."""
    step = max(1, len(curve) // 8)
    chosen = [*curve[:-1:step], *curve[-1:]]
    depths = range(1, 1 + min(6, len(curve[-1]["acceptance"])))  # type: ignore[arg-type]
    lines = ["| seconds | step | " + " | ".join(f"depth {d}" for d in depths) + " |", "|---" * (2 + len(depths)) + "|"]
    for point in chosen:
        by_depth = point["acceptance"]
        assert isinstance(by_depth, list)
        values = " | ".join(f"{value:.3f}" for value in by_depth[:6])
        lines.append(f"| {point['seconds']:.0f} | {point['step']} | {values} |")
    return "\n".join(lines)


def _vocabulary_note(about: Trained) -> str:
    """Return a note on which tokens it drafts, if not all."""
    if about.drafted_tokens is None:
        return ""
    everywhere = about.kind == "eagle3" or about.learnt_tokens is not None
    return f" ({'' if everywhere else 'on a CPU '}the {about.drafted_tokens:,} most frequent tokens of it)"


def _light_note(about: Trained) -> str:
    """Return a note on the layer below the root, if there is one."""
    return ", with one more below the root" if about.shape.get("light") else ""


def _amount(curve: list[dict[str, object]]) -> str:
    """Return for how long it was trained, all runs together."""
    if not curve:
        return "Not trained"
    return f"Trained for {curve[-1]['seconds']:.0f} seconds ({curve[-1]['step']:,} steps)"


def _bits(about: Trained) -> str:
    return {5: "five", 6: "six"}[about.training["bits"]]


def write_card(path: Path, about: Trained) -> None:
    """Write a description of the drafter, its training data and its acceptance."""
    course, curve = about.training["course"], about.training["curve"]
    what = (
        f"{about.shape['depths']} parallel heads"
        if about.kind == "blockwise"
        else "An EAGLE-3 head in speculators' format, which vLLM and SGLang load as well"
        if about.kind == "eagle3"
        else f"A head of {about.shape['layers']} decoder layers{_light_note(about)}"
    )
    refused = "" if about.kind == "eagle3" else " and is refused for any other"
    stored = "" if about.kind == "eagle3" else f"\nIts matrices are stored with {_bits(about)} bits for each weight."
    path.write_text(
        f"""# A drafter for {about.target}

{what}, {about.shape["width"]} wide, over the target's features, with the target's own
embedding and output layer{_vocabulary_note(about)}.
It changes the speed of generation, never the distribution of the text.{stored}

```py
lm = spectr.load("{about.target}", drafter="this folder")
```

{_amount(curve)} on {about.training["tokens"]:,} tokens that the target wrote, in answer to
{about.training["texts"]:,} prompts ({about.training["data"]}), at temperatures {about.training["temperatures"]};
{course["depths"]} depths deep, objective `{course["objective"]}`.

Acceptance of one draft on held-out texts, Σ min(target, draft) at temperature 1, by depth:

{_rows(curve) if curve else "(not trained)"}

It belongs to the model with fingerprint `{about.fingerprint[:16]}…`{refused}.
""",
        encoding="utf-8",
    )
