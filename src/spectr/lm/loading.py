"""`spectr.load` loads a target with its tokenizer, a drafter and a rule."""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from spectr.draft.options import DraftOptions
from spectr.engine import Engine
from spectr.engine.scheduler import end_threads
from spectr.errors import ArgumentError
from spectr.garbage import without_collection
from spectr.lm.model import LM
from spectr.notices import notice
from spectr.pairing import pair, planned_rule
from spectr.registry import nearest
from spectr.types import Drafter
from spectr.verify import Rule

if TYPE_CHECKING:
    from spectr.models.hf import OpenedModel

__all__ = ["load"]


def load(model: Any, drafter: Any = "auto", rule: str | Rule = "race", **options: Any) -> LM:
    """Load a model, and pair it with a drafter and a rule.

    `model` is a catalog name, a hub id, a folder, a GGUF file, or a model that is loaded already. `drafter` is one of
    auto (the drafter that comes with spectr for this model, else none), none, lookup, ngram, early_exit, random, the
    folder of a trained drafter, the name or folder of a published head or of a model, several of these joined by +, or
    a drafter object. `rule` is a name of `spectr rules`, or a rule object.

    Options of drafting:

    - `drafts`, `length`, `nodes`, `tree`: the size and shape of the token tree.
    - `plan`, in place of these four: a profile that `spectr tune` wrote, or "auto", which chooses at every step and may
      start from a profile.
    - `layers`, `order`, `text`, `vocabulary`, `hidden_states`: options of single drafters.

    Options of loading:

    - `dtype`: the type of the arithmetic. `weights`: how weights are stored on a CPU: "file", "float32" or "int8".
    - `device`, `device_map`, `quantization_config`, `attn_implementation`, `trust_remote_code`: as in transformers.
    - `tokenizer`: in place of the model's own. `progress`: a function that is called with sentences about the progress.
    - `rows`: the largest number of texts that run at once.
    - `capture=False`: on a GPU, run steps one by one instead of as captured graphs. `compile=True`: also compile the
      layers, which takes seconds at the beginning.
    - `tensor_parallel=N`: spread the layers over N processes that torchrun started. All of them call `load`; it returns
      on rank 0 alone, and the other ranks run what rank 0 sends until it ends.
    """
    with without_collection():
        from spectr.models.generation_config import unsupported_settings
        from spectr.models.hf import open_loaded, open_model
        from spectr.models.loading import Loading

    drafting, loading = ([f.name for f in fields(kind)] for kind in (DraftOptions, Loading))
    known = [*drafting, *loading, "capture", "compile", "progress", "rows", "tokenizer"]
    for name in options:
        if name not in known:
            raise ArgumentError(f"load has no option {name!r}; {nearest(name, known)}")
    progress = options.get("progress") or (lambda _: None)
    chosen = DraftOptions(**{name: options[name] for name in options if name in drafting})
    chosen_rule = planned_rule(rule, chosen)
    load_options = {name: options[name] for name in options if name in loading}
    tokenizer = options.get("tokenizer")
    if isinstance(model, str | os.PathLike):
        opened = open_model(os.fspath(model), progress, tokenizer, **load_options)
        _serve_other_ranks(opened)
        drafter_loading = {
            **load_options,
            "dtype": opened.target.model.dtype,
            "progress": progress,
            "tensor_parallel": 1,
        }
        partner = pair(drafter, opened, chosen_rule.card, chosen, drafter_loading)
    elif load_options:
        raise ArgumentError(
            f"this model is loaded already, so {', '.join(load_options)} would change nothing; use model.to(…)"
        )
    else:
        opened = open_loaded(model, tokenizer)
        partner = pair(drafter, opened, chosen_rule.card, chosen)
    if warning := unsupported_settings(opened.target.model, opened.target.vocabulary):
        (options.get("progress") or notice)(warning)
    return LM(_engine(opened, partner, chosen_rule, options, progress), opened)


def _serve_other_ranks(opened: "OpenedModel") -> None:
    """Split the ranks of a tensor-parallel model: rank 0 returns, and on the other ranks this function serves rank 0
    until it ends, and does not return."""
    target: Any = opened.target
    if not target.is_sharded:
        return
    if target.group.leads:
        target.group.on_stop = end_threads
        return
    from spectr.models.parallel.follower import follow

    follow(target)


def _engine(
    opened: "OpenedModel", drafter: Drafter, rule: Rule, options: Mapping[str, Any], progress: Callable[[str], None]
) -> Engine:
    """Make the engine, and compile its layers if `compile` is set."""
    device, captures = opened.target.device.type, options.get("capture")
    if captures and device != "cuda":
        raise ArgumentError(
            f"capture needs a model on cuda, where steps are replayed as CUDA graphs, got one on {device}; leave it out"
        )
    if captures and opened.target.is_sharded:
        raise ArgumentError("steps of a tensor-parallel model are not captured; leave out capture or tensor_parallel")
    engine = Engine(
        opened.target,
        drafter,
        rule,
        opened.stops,
        rows=64 if options.get("rows") is None else options["rows"],
        captures=captures,
    )
    if options.get("compile"):
        progress("compiling layers; those that were compiled before are loaded from the cache")
        engine.compile()
    return engine
