"""Describes a published head, measures its acceptance on a short text, and finds the hidden states it was trained on.

Configs number the hidden states that a head reads in one of two ways, without saying which. A head that reads the wrong
states still drafts, but worse; so both are tried and compared.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectr.draft import Plan
from spectr.draft.adaptive import replanned
from spectr.draft.options import DraftOptions
from spectr.errors import ArgumentError, MismatchError
from spectr.lm import LM
from spectr.models.published.checkpoint import Checkpoint, open_checkpoint
from spectr.models.published.formats import BlockForm, Form, Source, form_of
from spectr.pairing import pair
from spectr.policy import History
from spectr.rows import cached_arange
from spectr.types import Opening, Scene

__all__ = ["HeadCheck", "Tried", "check_head"]

TOKENS = 64  # tokens of the text along which laws are compared
_DEPTHS = 4
_BETTER = 0.02  # difference of acceptance at the first depth; a smaller one may be chance on so short a text
_NAMES = {"eagle3": "EAGLE-3", "peagle": "P-EAGLE", "dflash": "DFlash", "dspark": "DSpark"}


@dataclass(frozen=True, slots=True)
class Tried:
    """The acceptance Σ min(target, draft) by depth, at temperature 1, of a head that reads these hidden states."""

    states: tuple[int, ...]
    acceptance: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class HeadCheck:
    """The description of a head, its acceptance, and the cost of a step."""

    form: dict[str, Any]
    tried: tuple[Tried, ...]  # first our reading of the config, then the other one
    step: dict[str, float]  # milliseconds of drafting and of a target call, and tokens per call

    @property
    def advice(self) -> str | None:
        """Advice if the other hidden states fit better, else None."""
        first, *others = self.tried
        for other in others:
            if other.acceptance[0] > first.acceptance[0] + _BETTER:
                return (
                    f"hidden states {other.states} fit better than {first.states}, {other.acceptance[0]:.3f} against "
                    f"{first.acceptance[0]:.3f} at the first depth: load with hidden_states={other.states}"
                )
        return None

    def as_data(self) -> dict[str, Any]:
        """Return the check as data for tables and JSON."""
        tried = {" ".join(map(str, one.states)): [round(a, 4) for a in one.acceptance] for one in self.tried}
        return {**self.form, f"acceptance by depth on {TOKENS} tokens, hidden states": tried, "step": self.step}


def check_head(lm: LM, name: str, prompt: str) -> HeadCheck:
    """Examine the head called `name`, a folder or a hub id, for the target of a loaded model."""
    checkpoint = open_checkpoint(name)
    if checkpoint is None:
        raise ArgumentError(
            f"doctor examines published heads (EAGLE-3, P-EAGLE, DFlash, DSpark), and {name!r} is not one; for "
            "other drafters use spectr bench acceptance"
        )
    target = lm.opened.target
    form = form_of(checkpoint, Source.of(target.model, target.vocabulary))
    start = lm.encode(prompt)
    written = lm.generate(start, TOKENS, seed=0).tokens
    other = form.states.other
    tried = [Tried(form.states.chosen, _acceptance(lm, name, form.states.chosen, start, written))]
    if other is not None and _fits(checkpoint, form, other):
        tried.append(Tried(other, _acceptance(lm, name, other, start, written)))
    return HeadCheck(_described(form), tuple(tried), _step(lm, name, start))


def _fits(checkpoint: Checkpoint, form: Form, states: tuple[int, ...]) -> bool:
    try:
        form_of(checkpoint, form.source, states)
    except MismatchError:
        return False
    return True


def _described(form: Form) -> dict[str, Any]:
    """Return the sizes and settings of a head as sentences."""
    config, own = form.config, form.vocabulary
    found: dict[str, Any] = {
        "format": _NAMES[form.family],
        "sizes": f"{config.num_hidden_layers} layers, {config.hidden_size} wide, {config.num_attention_heads} heads",
        "reads": f"hidden states {', '.join(map(str, form.states.chosen))}: {form.states.why}",
        "tokens": f"drafts {own.own_output or form.source.vocabulary:,} of {form.source.vocabulary:,}",
        "embedding": "the target's" if own.own_embedding is None else "its own",
        "output layer": "the target's" if own.own_output is None else "its own",
    }
    if isinstance(form, BlockForm):
        found["block"] = f"{form.size} places, {form.depths} tokens drafted in one call"
        return found
    if form.depths is not None:
        found["block"] = f"{form.depths} tokens drafted in one call"
    flags = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
    return {**found, "flags": ", ".join(flag for flag in flags if getattr(form, flag)) or "none"}


class _ForcedText:
    """Coins that draw the tokens of a given text."""

    def __init__(self, tokens: Sequence[int], at: int) -> None:
        self.tokens, self.at = tokens, at

    def top_racers(self, logits: Tensor, depth: Tensor, count: int) -> Tensor:
        """Return the text's token at this depth, regardless of the logits."""
        return torch.full((1, 1, 1), self.tokens[self.at + int(depth[0, 0])], device=logits.device)


def _drafter(lm: LM, name: str, **options: Any) -> Any:
    return pair(name, lm.opened, lm.engine.rule.card, DraftOptions(**options))


def _acceptance(
    lm: LM, name: str, states: tuple[int, ...], prompt: Sequence[int], written: Sequence[int]
) -> tuple[float, ...]:
    """Return Σ min(target, draft) by depth along a text, with the head's own states below every root."""
    text, device = [*prompt, *written], lm.opened.target.device
    depths = min(_DEPTHS, len(written))
    made = replanned(_drafter(lm, name, hidden_states=states, length=1), Plan("race", tree=(1,) * depths))
    target, one = lm.opened.target, torch.ones(1, dtype=torch.float64, device=device)
    session = target.open(1, len(text) + 64, feature_layers=made.feature_layers)  # type: ignore[attr-defined]
    laws = _laws(target, session, list(prompt), list(written))
    drafting = made.open(Opening(1, len(text) + 64, target.vocabulary, session, device))
    drafting.begin(0, text, len(text), None)
    drafting.read(0, [list(prompt[:-1])], [0])
    sums = [0.0] * depths
    roots = range(len(prompt), len(text) - depths + 1)  # tokens up to and with the root
    for count in roots:
        seen: list[Tensor] = []

        def kept(logits: Tensor, _: Tensor, seen: list[Tensor] = seen) -> Tensor:
            seen.append(logits[0, 0].float().softmax(-1))
            return logits

        history = History.of([text[:count]], target.vocabulary, device)
        root, coins = torch.tensor([text[count - 1]], device=device), _ForcedText(text, count)
        drafting.propose(Scene(history, root, one > 0, coins, kept, kept, one, count))  # type: ignore[arg-type]
        drafting.keep(torch.full((1, depths), -1, device=device))
        for depth, law in enumerate(seen):
            sums[depth] += float(torch.minimum(law, laws[count - len(prompt) + depth]).sum())
    return tuple(total / len(roots) for total in sums)


def _laws(target: Any, session: Any, prompt: list[int], written: list[int]) -> Tensor:
    """Return the target's laws (T, V) after the prompt and after each token of `written`; all of it is committed."""
    target.read(session, [prompt[:-1]])
    window = target.window(session, 0, 1, len(prompt))
    tokens = torch.tensor([[prompt[-1], *written]], device=target.device)
    at = cached_arange(tokens.shape[1], target.device)
    logits = target.score(window, tokens, (at[:, None] >= at)[None], at[None])
    target.keep(window, at[None])
    laws: Tensor = logits[0].float().softmax(-1)
    return laws


def _step(lm: LM, name: str, prompt: Sequence[int]) -> dict[str, float]:
    """Return the milliseconds of a step with the default tree, and its tokens per call."""
    engine = lm.engine.with_parts(drafter=_drafter(lm, name))
    run = LM(engine, lm.opened)
    run.generate(list(prompt), 16, seed=1)  # warms up
    began = time.perf_counter()
    stats = run.generate(list(prompt), TOKENS, seed=1).stats
    whole = time.perf_counter() - began
    parts = {f"{part} ms": round(1e3 * seconds / stats.steps, 3) for part, seconds in stats.seconds.items() if seconds}
    return {
        "tokens per call": round(stats.emitted / stats.steps, 2),
        "ms": round(1e3 * whole / stats.steps, 3),
        **parts,
    }
