"""A small tree on two rows of different length, and the comparison of a policy with a loop over its nodes."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from spectr.policy import History, Past, Policy

__all__ = ["LOGITS", "NODES", "PATHS", "PROMPTS", "STOPS", "TEXTS", "Plain", "V", "check", "one_by_one", "past"]

V = 12
STOPS = frozenset({10, 11})
PROMPTS = [[1, 2, 3, 2], [5]]
ANSWERS: list[list[int]] = [[4, 2, 4], []]
PADDING = [[], [0, 0, 0]]
LIMITS = [5, 2]  # most tokens that may be generated: some paths go beyond
PATHS = [
    [[-1, -1, -1], [4, -1, -1], [2, -1, -1], [4, 2, -1], [4, 4, -1], [4, 2, 6], [2, 3, 2]],
    [[-1, -1, -1], [5, -1, -1], [0, -1, -1], [0, 0, -1], [5, 0, -1], [0, 0, 0], [7, 8, 9]],
]
TEXTS = [
    [prompt + answer + [token for token in path if token >= 0] for path in paths]
    for prompt, answer, paths in zip(PROMPTS, ANSWERS, PATHS, strict=True)
]
LOGITS = 3 * torch.randn(2, len(PATHS[0]), V, generator=torch.Generator().manual_seed(3))
NODES = [(row, node) for row in range(2) for node in range(len(PATHS[0]))]

Plain = Callable[[int, list[int], Tensor], Tensor]
"""From a row, the text of a node and its logits (V,) to other logits."""


def past() -> Past:
    history = History.of(PROMPTS, V, stops=STOPS, padding=PADDING, limits=LIMITS)
    history.commit(ANSWERS)
    return Past(history, torch.tensor(PATHS))


def one_by_one(plain: Plain, logits: Tensor = LOGITS) -> Tensor:
    return torch.stack([plain(row, TEXTS[row][node], logits[row, node]) for row, node in NODES]).view(logits.shape)


def check(policy: Policy, plain: Plain) -> None:
    """The tree in one call, and each of its levels alone, equal what `plain` computes for each node."""
    shaped = policy(LOGITS, past())
    torch.testing.assert_close(shaped, one_by_one(plain), rtol=1e-5, atol=1e-5)
    for node in range(LOGITS.shape[1]):
        alone = replace(past(), paths=past().paths[:, node : node + 1])
        assert torch.equal(policy(LOGITS[:, node : node + 1], alone), shaped[:, node : node + 1])
