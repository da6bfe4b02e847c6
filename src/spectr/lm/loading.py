"""`spectr.load`: a target by name, hub id or folder, with its tokenizer, a drafter and a rule, ready to generate."""

import os
from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from spectr.draft.options import DraftOptions
from spectr.engine import Engine
from spectr.engine.scheduler import end_threads
from spectr.errors import ArgumentError
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
    """A model by catalog name, hub id, local folder or GGUF file, or one that is loaded already.

    `drafter`: auto (the one trained for this model, where one comes with spectr, else none), none, lookup, ngram,
    early_exit, random, a trained drafter's folder, the name or folder of a published head or of a model, several joined
    by +, or a drafter.
    `options`: of drafting (drafts, length, nodes, tree, layers, order, text, vocabulary, hidden_states, or in place of
    the first four plan: a profile that `spectr tune` wrote, or "auto", which chooses at every step and may begin with a
    profile) and of loading (dtype, that of the arithmetic; weights, how they are stored on a CPU: "file", "float32" or
    "int8"; device, device_map, quantization_config, attn_implementation, trust_remote_code, tokenizer, and progress, a
    function of one sentence). `rows` is how many texts run at once, at most. On a GPU steps are captured
    once and replayed as graphs, unless `capture=False`; `compile=True` also compiles layers, which takes seconds at the
    beginning. `tensor_parallel=N` spreads the layers over N processes that torchrun started: all of them call `load`;
    it returns on rank 0 alone, and the others follow until rank 0 ends, and end then.
    """
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
    made = planned_rule(rule, chosen)
    how = {name: options[name] for name in options if name in loading}
    tokenizer = options.get("tokenizer")
    if isinstance(model, str | os.PathLike):
        opened = open_model(os.fspath(model), progress, tokenizer, **how)
        _divide_work(opened)
        drafter_loading = {**how, "dtype": opened.target.model.dtype, "progress": progress, "tensor_parallel": 1}
        partner = pair(drafter, opened, made.card, chosen, drafter_loading)
    elif how:
        raise ArgumentError(f"this model is loaded already, so {', '.join(how)} would change nothing; use model.to(…)")
    else:
        opened = open_loaded(model, tokenizer)
        partner = pair(drafter, opened, made.card, chosen)
    if said := unsupported_settings(opened.target.model, opened.target.vocabulary):
        (options.get("progress") or notice)(said)
    return LM(_engine(opened, partner, made, options, progress), opened)


def _divide_work(opened: "OpenedModel") -> None:
    """Where a model spans several processes, rank 0 goes on, and the others follow it until it ends: for them this does
    not return."""
    target: Any = opened.target
    if not target.is_sharded:
        return
    if target.group.leads:
        target.group.before_the_end = end_threads
        return
    from spectr.models.parallel.follower import follow

    follow(target)


def _engine(
    opened: "OpenedModel", drafter: Drafter, rule: Rule, options: Mapping[str, Any], progress: Callable[[str], None]
) -> Engine:
    """Steps as graphs, where there are any, and layers compiled, if they shall be."""
    device, captures = opened.target.device.type, options.get("capture")
    if captures and device != "cuda":
        raise ArgumentError(f"capture replays steps as CUDA graphs, and this model is on {device}; leave it out")
    if captures and opened.target.is_sharded:
        raise ArgumentError(
            "steps of a model over several processes are not captured; leave capture or tensor_parallel"
        )
    made = Engine(opened.target, drafter, rule, opened.stops, rows=options.get("rows") or 64, captures=captures)
    if options.get("compile"):
        progress("compiling one layer for all; what was compiled before is taken from the cache")
        made.compile()
    return made
