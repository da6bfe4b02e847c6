"""How far each row has come, kept on the device: what a step begins with, and how it goes on from a verdict."""

from collections.abc import Sequence
from dataclasses import fields, replace

import torch
from torch import Tensor

from spectr.coins import seed_word
from spectr.requests import Request
from spectr.types import Draft, Standing, Verdict

__all__ = ["advance", "begin", "begin_again", "emitted", "for_those_going", "take_rows"]


def begin(requests: Sequence[Request], device: torch.device) -> Standing:
    """Rows whose prompts are committed, the last tokens as roots."""

    def tensor(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    root = tensor([request.prompt[-1] for request in requests])
    committed = tensor([len(request.prompt) for request in requests])
    seed = tensor([seed_word(request.seed) for request in requests])
    going = torch.ones_like(root, dtype=torch.bool)
    return Standing(seed, root, committed, root[:, None].clone(), torch.ones_like(root), going)


def begin_again(standing: Standing, requests: Sequence[Request], going: Sequence[bool]) -> None:
    """Other requests in the same places; in place, as a captured step needs."""
    fresh = begin(requests, standing.root.device)
    for name in ("seed", "root", "committed", "fresh"):
        getattr(standing, name).copy_(getattr(fresh, name))
    standing.recent.zero_()
    standing.recent[:, 0] = fresh.root
    standing.going.copy_(torch.tensor(going))


def take_rows(standing: Standing, rows: Tensor) -> Standing:
    """The rows become these, in this order."""
    return Standing(*(getattr(standing, field.name)[rows] for field in fields(standing)))


def for_those_going(verdict: Verdict, standing: Standing) -> Verdict:
    """Rows that have ended accept nothing."""
    going = standing.going
    path = torch.where(going[:, None], verdict.path, -1)
    return replace(verdict, path=path, length=torch.where(going, verdict.length, 0))


def emitted(draft: Draft, verdict: Verdict) -> Tensor:
    """(B, D + 1): the accepted tokens, then the bonus, then anything."""
    accepted = draft.tokens.gather(1, verdict.path.clamp_min(0))
    return torch.nn.functional.pad(accepted, (0, 1)).scatter(1, verdict.length[:, None], verdict.bonus[:, None])


def advance(standing: Standing, draft: Draft, verdict: Verdict) -> None:
    """The accepted tokens and the bonus are committed; in place, so that a captured step finds it there again."""
    tokens = emitted(draft, verdict)
    if standing.recent.shape != tokens.shape:
        standing.recent = torch.empty_like(tokens)
    standing.recent.copy_(tokens)
    count = torch.where(standing.going, verdict.length + 1, 0)
    standing.fresh.copy_(count)
    standing.committed += count
    standing.root.copy_(torch.where(standing.going, verdict.bonus, standing.root))
