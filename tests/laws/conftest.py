"""Generates text with a rule on toy models, as a minimal engine for these tests."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from spectr import Growth, Rule, SeededCoins, grow
from spectr.audit.step_law import LanguageModel

Generate = Callable[..., list[tuple[int, ...]]]


def one_step(
    rule: Rule, models: tuple[LanguageModel, LanguageModel], growth: Growth, texts: list[tuple[int, ...]], seeds: Tensor
) -> list[tuple[int, ...]]:
    """Append to each text the tokens of one step."""
    target, draft = models
    parents = growth.shape.parents

    def prefixes(tokens: Tensor) -> list[list[tuple[int, ...]]]:
        rows = []
        for text, row in zip(texts, tokens.tolist(), strict=True):
            found = [text]
            for node in range(1, len(parents)):
                found.append((*found[parents[node]], row[node]))
            rows.append(found)
        return rows

    def law_at(tokens: Tensor, nodes: list[int]) -> Tensor:
        return torch.stack([torch.stack([draft(row[n]) for n in nodes]) for row in prefixes(tokens)])

    coins = SeededCoins(seeds, torch.tensor([len(text) for text in texts]))
    tree = grow(torch.zeros(len(texts), dtype=torch.int64), law_at, growth, coins)
    logits = torch.stack([torch.stack([target(prefix) for prefix in row]) for row in prefixes(tree.tokens)]).log()
    verdict = rule(logits, tree, coins)
    kept = [[int(tree.tokens[b, n]) for n in path if n >= 0] for b, path in enumerate(verdict.path.tolist())]
    return [(*t, *k, int(x)) for t, k, x in zip(texts, kept, verdict.bonus, strict=True)]


@pytest.fixture
def generate() -> Generate:
    def run(
        rule: Rule, models: tuple[LanguageModel, LanguageModel], growth: Growth, length: int, seeds: list[int]
    ) -> list[tuple[int, ...]]:
        texts: list[tuple[int, ...]] = [() for _ in seeds]
        while min(map(len, texts)) < length:
            texts = one_step(rule, models, growth, texts, torch.tensor(seeds))
        return [text[:length] for text in texts]

    return run
