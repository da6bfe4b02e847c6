"""Prefill: target and drafter read the prompts of a cohort, a chunk at a time."""

import torch
from torch import Tensor

from spectr.engine.placement import Placement
from spectr.engine.request import TokenLogprobs
from spectr.engine.state import RequestState
from spectr.rows import cached_arange, copy_to_device

__all__ = ["prefill"]

_SCORED_CHUNK = 64  # the most prompt tokens per call where their log-probabilities are asked for


def prefill(placement: Placement, budget: int) -> int:
    """Prefill at most about `budget` tokens of the cohort's prompts and return how many. A cohort whose
    prompts are prefilled becomes active."""
    cohort = placement.prefilling
    if cohort[0].request.prompt_logprobs is not None:
        count = _score_prompt(placement, cohort[0])
    else:
        count = _read_prompts(placement, max(1, budget // len(cohort)))
    if all(state.to_prefill <= 0 for state in cohort):
        placement.activate()
    return count


def _read_prompts(placement: Placement, width: int) -> int:
    """Read the next tokens of every prompt of the cohort, at most `width` of each."""
    cohort, target, (_, _, drafting) = placement.prefilling, placement.parts.target, placement.memory.opened()
    starts = [state.prefilled for state in cohort]
    texts = [state.text[state.prefilled : min(len(state.text) - 1, state.prefilled + width)] for state in cohort]
    if any(texts):
        target.read(placement.prefill_window(), texts, starts)
    drafting.read(len(placement.active), texts, starts)
    for state, text in zip(cohort, texts, strict=True):
        state.prefilled += len(text)
    return sum(map(len, texts))


def _score_prompt(placement: Placement, state: RequestState) -> int:
    """Read the next tokens of a prompt and record the log-probabilities of the tokens that follow them."""
    target, (_, session, drafting) = placement.parts.target, placement.memory.opened()
    row, start = len(placement.active), state.prefilled
    tokens = state.text[start : min(len(state.text) - 1, start + _SCORED_CHUNK)]
    logprobs = state.delivery.prompt_logprobs or [None]
    if tokens:
        window = target.window(session, row, row + 1, start)
        ids = copy_to_device([tokens], target.device)
        places = cached_arange(len(tokens), target.device)
        logits = target.score(window, ids, (places[:, None] >= places)[None], places[None])
        target.keep(window, places[None])
        following = state.text[start + 1 : start + 1 + len(tokens)]
        logprobs = [*logprobs, *_prompt_logprobs(logits[0], following, state.request.prompt_logprobs or 0)]
    drafting.read(row, [tokens], [start])
    state.prefilled += len(tokens)
    state.delivery.prompt_logprobs = logprobs[: len(state.request.prompt)]
    return len(tokens)


def _prompt_logprobs(logits: Tensor, following: list[int], top: int) -> list[TokenLogprobs]:
    """The log-probabilities of the tokens `following` (T,) under logits (T, V), and of the `top` likeliest tokens."""
    logprobs = logits.float().log_softmax(-1)
    own = logprobs.gather(-1, torch.tensor(following, device=logprobs.device)[:, None])[:, 0].tolist()
    best = logprobs.topk(min(top, logprobs.shape[-1]), -1)
    likeliest = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [TokenLogprobs(v, tuple(zip(*b, strict=True))) for v, b in zip(own, likeliest, strict=True)]
