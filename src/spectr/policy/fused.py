"""The common stages of policies by kernels for CUDA, with few passes over the logits and few launches.

They compute what the plain code in `spectr.policy.penalties` and `spectr.policy.filters` computes.
"""

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from spectr.kernels import usable
from spectr.policy.history import Past
from spectr.policy.tables import PolicyTables

if TYPE_CHECKING:
    from spectr.kernels.penalties import Stops

__all__ = ["FUSED_EDITS", "FUSED_SHAPING", "edited", "fusible", "shaped"]

FUSED_EDITS = frozenset({"bias", "repetition_penalty", "count_penalties", "minimum_lengths"})
FUSED_SHAPING = frozenset({"temperature", "low_temperature", "top_k", "top_p", "min_p", "greedy"})


def fusible(logits: Tensor) -> bool:
    """Return whether the kernels can take these logits: (B, M, V) on a CUDA device, and not float64."""
    return logits.dim() == 3 and logits.numel() > 0 and logits.is_floating_point() and usable(logits)


def edited(rows: PolicyTables, logits: Tensor, past: Past | None, stages: frozenset[str]) -> Tensor:
    """Return logits (B, M, V) in float32 after `FUSED_EDITS`, as far as they are in `stages`; a new tensor."""
    from spectr.kernels.penalties import Bias, Counts, Repetition, penalised, strike_stops

    bias = repetition = counts = None
    if "bias" in stages and rows.bias is not None:
        bias = Bias(rows.users("bias"), rows.bias)
    if past is not None and "repetition_penalty" in stages:
        penalty = rows.number("repetition_penalty")
        repetition = Repetition(rows.users("repetition_penalty"), past.history.seen, penalty)
    if past is not None and "count_penalties" in stages:
        presence, frequency = rows.number("presence_penalty"), rows.number("frequency_penalty")
        counts = Counts(rows.users("count_penalties"), past.history.counts, presence, frequency)
    paths = logits.new_empty(*logits.shape[:2], 0, dtype=torch.int64) if past is None else past.paths
    found = penalised(logits, paths, bias, repetition, counts)
    if past is not None and "minimum_lengths" in stages:
        strike_stops(found, paths, _stops(rows, past))
    return found


def _stops(rows: PolicyTables, past: Past) -> "Stops":
    from spectr.kernels.penalties import Stops

    history = past.history
    least = rows.number("min_new_tokens"), rows.number("min_length")
    return Stops(rows.users("minimum_lengths"), history.stop_ids, history.length, history.prompt_length, *least)


def shaped(rows: PolicyTables, logits: Tensor, stages: frozenset[str], *, roughly: bool) -> Tensor:
    """Return logits (B, M, V) in float32 after `FUSED_SHAPING`, as far as they are in `stages`; a new tensor."""
    from spectr.kernels import shaping

    def number(name: str) -> Tensor | None:
        return rows.number(name) if name in stages else None

    settings = shaping.Shaping(
        rows.users("greedy"),
        "greedy" in stages,
        rows.users("low_temperature") if "low_temperature" in stages else None,
        (rows.number("temperature"), rows.users("temperature")) if "temperature" in stages else None,
        number("top_k"), number("top_p"), number("min_p"),
    )  # fmt: skip
    return shaping.shaped(logits, settings, roughly=roughly)
