"""A step as tensors, and what the host reads of it."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spectr.metrics import Counted, child_ranks
from spectr.rows import pick_rows
from spectr.standing import emitted
from spectr.trees import Topology
from spectr.types import Draft, LogitsAt, Verdict

__all__ = ["Scored", "Told", "numbers_of", "read_numbers", "told_of"]


@dataclass(frozen=True, slots=True)
class Scored:
    """One step as tensors."""

    draft: Draft
    tree: Topology
    logits: Tensor  # (B, N, V) raw
    law: LogitsAt  # policy logits
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Told:
    """One step on the host, row by row."""

    tokens: list[list[int]]
    counted: list[Counted]
    logprobs: list[list[float]] | None


def numbers_of(scored: Scored) -> Tensor:
    """(B, 4 + 2 D) int64: of each row the accepted nodes, whether it was corrected, the nodes drafted; the tokens
    emitted, and the rank of each accepted one."""
    draft, verdict = scored.draft, scored.verdict
    ranks = child_ranks(scored.tree, verdict) if draft.tokens.shape[1] > 1 else torch.zeros_like(verdict.path)
    counts = torch.stack([verdict.length, verdict.corrected.long(), draft.alive.sum(-1) - 1], -1)
    return torch.cat([counts, emitted(draft, verdict), ranks], 1)


def read_numbers(rows: list[list[int]]) -> list[tuple[list[int], Counted]]:
    """The tokens of each row and what is counted, from the numbers of a step."""
    found = []
    for length, corrected, drafted, *rest in rows:
        ranks = rest[len(rest) // 2 + 1 :][:length]
        found.append((rest[: length + 1], Counted(drafted, length + 1, bool(corrected), ranks, None)))
    return found


def told_of(scored: Scored, best: Tensor | None, *, logprobs: bool) -> Told:
    """Read the verdict, once."""
    pairs = read_numbers(numbers_of(scored).tolist())
    tokens, counted = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    if best is not None:
        counted = [replace(one, best=gap) for one, gap in zip(counted, best.tolist(), strict=True)]
    return Told(tokens, counted, _logprobs(scored, tokens) if logprobs else None)


def _logprobs(scored: Scored, tokens: list[list[int]]) -> list[list[float]]:
    """Of the emitted tokens, under the model's own law."""
    nodes = torch.nn.functional.pad(scored.verdict.path, (1, 0)).clamp_min(0)
    laws = pick_rows(scored.logits, nodes).float().log_softmax(-1)
    padded = torch.tensor([row + [0] * (nodes.shape[1] - len(row)) for row in tokens], device=laws.device)
    found = laws.gather(-1, padded[..., None]).squeeze(-1).tolist()
    return [values[: len(row)] for values, row in zip(found, tokens, strict=True)]
