"""Drafts from a reference text: where a row stands in it, how much of it is drafted, and beside what."""

import torch

from spectr.draft import drafter
from spectr.draft.lookup import Lookup
from spectr.draft.reference import LENGTH, Referring, ReferringDrafting
from spectr.policy import History
from spectr.types import Draft, Opening, Scene

SIZE = 100


def opened(rows: int = 1, **options: object) -> ReferringDrafting:
    return Referring(drafter("none"), **options).open(Opening(rows, 999, SIZE, None))  # type: ignore[arg-type]


def proposed(drafting: ReferringDrafting, texts: list[list[int]], active: list[bool] | None = None) -> Draft:
    history, root = History.of(texts, SIZE), torch.tensor([text[-1] for text in texts])
    runs = torch.tensor(active or [True] * len(texts))
    return drafting.propose(Scene(history, root, runs, None, None, None, None, 999))  # type: ignore[arg-type]


def paths(draft: Draft) -> list[list[tuple[int, ...]]]:
    """The path to each leaf of each row."""
    found = []
    for tokens, parents, alive in zip(draft.tokens.tolist(), draft.parents.tolist(), draft.alive.tolist(), strict=True):
        way: list[tuple[int, ...]] = [()]
        for node in range(1, len(tokens)):
            way.append((*way[parents[node]], tokens[node]))
        inner = {parents[node] for node in range(1, len(tokens)) if alive[node]}
        found.append([way[node] for node in range(1, len(tokens)) if alive[node] and node not in inner])
    return found


def test_tokens_that_are_given_follow_at_once_and_once() -> None:
    drafting = opened(3)
    for row in range(3):
        drafting.begin(row, [1, 2], 99, None)
    drafting.refer(0, [5, 6, 7])
    drafting.refer(2, range(30))  # type: ignore[arg-type]
    texts = [[1, 2], [1, 2], [1, 2]]
    assert paths(proposed(drafting, texts)) == [[(5, 6, 7)], [], [tuple(range(LENGTH))]]
    assert paths(proposed(drafting, texts)) == [[], [], []]
    drafting.refer(0, [5, 6, 7])
    drafting.refer(0, [8])
    drafting.refer(1, [9])
    drafting.refer(1, [])
    drafting.copy_rows([0], [2], 99)
    assert paths(proposed(drafting, texts)) == [[(8,)], [], [(8,)]]


def test_given_tokens_stand_before_a_prediction_and_leave_it() -> None:
    drafting = opened()
    drafting.begin(0, [1, 2], 99, None)
    drafting.predict(0, list(range(10, 40)), 2)
    drafting.refer(0, [5, 6])
    assert paths(proposed(drafting, [[1, 2]])) == [[(5, 6)]]
    assert paths(proposed(drafting, [[1, 2, 10]])) == [[tuple(range(11, 27))]]


def test_what_both_draft_is_one_node() -> None:
    drafting = Referring(Lookup(drafts=1, length=2)).open(Opening(1, 99, SIZE, None))
    text = [1, 2, 3, 4, 1, 2, 3]
    drafting.begin(0, text, 99, None)
    assert paths(proposed(drafting, [text])) == [[(4, 1)]]
    drafting.refer(0, [4, 5, 6])
    draft = proposed(drafting, [text])
    assert sorted(paths(draft)[0]) == [(4, 1), (4, 5, 6)]
    assert draft.tokens.tolist() == [[3, 4, 1, 5, 6]]
