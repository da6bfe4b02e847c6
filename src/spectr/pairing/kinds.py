"""Makes each kind of drafter: named drafters, models, trained heads and published heads."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectr.checks import whole
from spectr.draft import DRAFTERS
from spectr.draft import drafter as named_drafter
from spectr.draft.options import AUTO, PLANNED
from spectr.draft.traits import is_drafter
from spectr.errors import ArgumentError, MismatchError, UnknownNameError
from spectr.pairing.fit import Pairing, default_tree, plan_within
from spectr.registry import nearest
from spectr.types import Drafter

if TYPE_CHECKING:
    from spectr.models.hf import OpenedModel
    from spectr.models.published.checkpoint import Checkpoint

__all__ = ["make_drafter", "options_taken"]


def _none(_: Pairing) -> Drafter:
    return named_drafter("none")


def _lookup(pairing: Pairing) -> Drafter:
    options = pairing.options
    sizes = options.some("drafts", "length", "nodes")
    if options.nodes is not None and options.drafts is None:
        sizes["drafts"] = max(1, (options.nodes - 1) // (options.length or 4))
    return named_drafter("lookup", **sizes)


def _random(pairing: Pairing) -> Drafter:
    return named_drafter("random", plan=pairing.plan())


def _ngram(pairing: Pairing) -> Drafter:
    if pairing.options.text and pairing.target.tokenizer is None:
        raise ArgumentError(
            "text for ngram needs a tokenizer, and this model was loaded without one; use load(…, tokenizer=…)"
        )
    text = pairing.target.tokenizer(pairing.options.text)["input_ids"] if pairing.options.text else ()
    return named_drafter("ngram", plan=pairing.plan(), text=text, **pairing.options.some("order"))


def _early_exit(pairing: Pairing) -> Drafter:
    from spectr.models.cpu import target_of
    from spectr.models.early import truncated

    target = pairing.target.target
    layers, net = pairing.options.layers, target.model
    if layers is None:
        layers = max(1, net.config.get_text_config(decoder=True).num_hidden_layers // 4)
    model = target.first_layers(layers) or target_of(truncated(net, layers))
    return named_drafter("early_exit", model=model, plan=pairing.plan())


def _model(pairing: Pairing, opened: "OpenedModel") -> Drafter:
    if pairing.options.hidden_states is not None:
        raise ArgumentError("hidden_states is an option of published heads, and this drafter is none; leave it out")
    _check_tokens(pairing.target.tokenizer, opened.tokenizer)
    if (opened.start is None) != (pairing.target.start is None):
        raise MismatchError("target and drafter must both have an encoder, or neither; choose another drafter")
    return named_drafter("model", model=opened.target, plan=pairing.plan())


def _trained(pairing: Pairing, folder: Path) -> Drafter:
    from spectr.models.blockwise import BlockwiseHead
    from spectr.models.cpu import target_of
    from spectr.models.trained import load_drafter

    target = pairing.target.target
    if pairing.options.vocabulary is not None:
        whole("vocabulary", pairing.options.vocabulary, 1)
    head = load_drafter(folder, target.model_for_drafters, pairing.options.vocabulary)
    if isinstance(head, BlockwiseHead):
        return named_drafter("blockwise", heads=head, target=target, plan=pairing.plan(length=head.shape.depths))
    plan, layers = pairing.plan(**default_tree(pairing)), head.shape.feature_layers
    return named_drafter("feature", head=target_of(head), target=target, plan=plan, feature_layers=layers)


def _published(pairing: Pairing, checkpoint: "Checkpoint") -> Drafter:
    """Make a drafter of a published head, which drafts one depth per call, or a whole block."""
    from spectr.draft.block import Block
    from spectr.models.published.block import BlockHead
    from spectr.models.published.loading import load_head
    from spectr.models.target import Target

    target = pairing.target.target
    if pairing.target.start is not None:
        raise MismatchError("published heads read the hidden states of decoder-only targets; choose another drafter")
    head = load_head(checkpoint, target.model, target.vocabulary, pairing.options.hidden_states)
    common: dict[str, Any] = {"head": Target(head), "target": target, "feature_layers": head.shape.feature_layers}
    if not isinstance(head, BlockHead) and head.shape.depths is not None:
        deepest, mask = head.shape.depths, head.shape.mask_token
        return named_drafter("masked", plan=plan_within(pairing, deepest), mask_token=mask, deepest=deepest, **common)
    if not isinstance(head, BlockHead):
        return named_drafter("feature", plan=pairing.plan(**default_tree(pairing)), busy_reads=None, **common)
    form = head.shape
    block = Block(form.size, form.mask_token, 0 if form.from_root else 1)
    return named_drafter("block", plan=plan_within(pairing, block.depths), correction=head, block=block, **common)


def _check_tokens(target: Any, drafter: Any) -> None:
    """Raise MismatchError unless token ids mean the same to both; one may have more of them, as padding."""
    if target is None or drafter is None:
        return
    known = {number: token for token, number in target.get_vocab().items()}
    for token, number in drafter.get_vocab().items():
        if known.get(number, token) != token:
            raise MismatchError(
                f"target and drafter must share their tokens; {number} is {known[number]!r} to the target and "
                f"{token!r} to the drafter. Choose a drafter of the target's family, or lookup, ngram or early_exit"
            )


@dataclass(frozen=True, slots=True)
class _Kind:
    """The options that a registered drafter takes, and how it is made by its name."""

    options: tuple[str, ...]
    make: Callable[[Pairing], Drafter] | None  # None: the name alone does not say of which model or parts


_KINDS = {
    "none": _Kind((), _none),
    "lookup": _Kind(("drafts", "length", "nodes"), _lookup),
    "random": _Kind(PLANNED, _random),
    "ngram": _Kind((*PLANNED, "order", "text"), _ngram),
    "early_exit": _Kind((*PLANNED, "layers"), _early_exit),
    **dict.fromkeys(("model", "feature", "blockwise", "block", "masked", "mixed"), _Kind(PLANNED, None)),
}
"""Registered drafters that are not made of the options of a plan alone."""


def options_taken(drafter: Any) -> tuple[str, ...]:
    """Return the names of the options that a drafter takes."""
    if is_drafter(drafter):
        return ()
    if isinstance(drafter, str) and drafter in _KINDS:
        return _KINDS[drafter].options
    if isinstance(drafter, str) and drafter in DRAFTERS:
        return PLANNED
    return (*PLANNED, "vocabulary" if _is_trained(drafter) else "hidden_states")


def _is_trained(drafter: Any) -> bool:
    """Whether this is the folder of a trained drafter."""
    from spectr.models.trained import is_drafter

    return isinstance(drafter, str) and is_drafter(Path(drafter))


def make_drafter(drafter: Any, pairing: Pairing) -> Drafter:
    """Make a drafter from its name, from a model's name or folder, or from a loaded model; return a drafter
    unchanged."""
    from spectr.models.catalog import FetchError
    from spectr.models.hf import open_loaded, open_model
    from spectr.models.published.checkpoint import open_checkpoint

    if is_drafter(drafter):
        made: Drafter = drafter
        return made
    if not isinstance(drafter, str):
        return _model(pairing, open_loaded(drafter))
    if (kind := _KINDS.get(drafter)) is not None:
        if kind.make is not None:
            return kind.make(pairing)
        raise ArgumentError(
            f"drafter must be the name or folder of a model or of a trained drafter, such as 'smollm2-135m', or "
            f"several names joined by +, such as 'lookup+ngram', got {drafter!r}"
        )
    if drafter in DRAFTERS:
        return named_drafter(drafter, **pairing.options.some(*PLANNED))
    if _is_trained(drafter):
        return _trained(pairing, Path(drafter))
    if (checkpoint := open_checkpoint(drafter)) is not None:
        return _published(pairing, checkpoint)
    try:
        opened = open_model(drafter, **pairing.loading)
    except FetchError as error:
        if "/" in drafter or Path(drafter).exists():
            raise
        known = nearest(drafter, [AUTO, *(name for name, kind in _KINDS.items() if kind.make is not None)])
        raise UnknownNameError(
            f"no drafter is called {drafter!r}; {known}, the folder of a trained drafter, or a model's name"
        ) from error
    return _model(pairing, opened)
