"""Lookup and the prefix trees it makes."""

import pytest
import torch

from spectr.draft import drafter
from spectr.draft.lookup import Lookup
from spectr.draft.trie import draft_of_paths
from spectr.errors import ArgumentError, UnknownNameError
from spectr.types import Draft, Opening, Scene


def proposed(lookup: Lookup, texts: list[list[int]], sources: list[list[int]] | None = None) -> Draft:
    scene = Scene(texts, torch.tensor([text[-1] for text in texts]), None, None, None, 1.0)  # type: ignore[arg-type]
    return lookup.open(Opening(texts, sources, 99, 50, None)).propose(scene)


def test_longest_match_first_and_latest_first() -> None:
    text = [1, 2, 7, 7, 9, 2, 8, 8, 1, 2]
    assert Lookup(drafts=3, length=2, shortest=1).continuations(text) == [(7, 7), (8,)]
    assert Lookup(drafts=3, length=1, shortest=1).continuations(text) == [(8,), (7,)]
    assert Lookup(drafts=1, length=3).continuations(text) == [(7,)]


def test_a_longer_match_makes_a_longer_draft() -> None:
    text = [5, 6, 1, 2, 3, 4, 7, 8, 9, 0, 1, 2, 3, 4]
    assert Lookup(drafts=1).continuations(text) == [(7, 8, 9)]
    assert Lookup(drafts=1, length=2).continuations(text) == [(7, 8)]
    assert Lookup(drafts=1).continuations(text[:-1]) == [(4, 7)]
    assert Lookup(drafts=1).continuations(text[:-3]) == []


def test_nothing_to_look_up() -> None:
    assert Lookup().continuations([1, 2, 3]) == []
    assert Lookup().continuations([1]) == []
    draft = proposed(Lookup(), [[1, 2, 3]])
    assert draft.tokens.tolist() == [[3]]
    assert draft.alive.tolist() == [[True]]


def test_ragged_rows_share_one_draft() -> None:
    draft = proposed(Lookup(drafts=2, length=1, shortest=1), [[5, 6, 7, 5], [1, 2]])
    assert draft.tokens.tolist() == [[5, 6], [2, 0]]
    assert draft.alive.tolist() == [[True, True], [True, False]]


def test_sources_are_searched_too() -> None:
    draft = proposed(Lookup(drafts=1, length=1, shortest=1), [[0, 8], [0, 3]], sources=[[7, 8, 9, 1], [4]])
    assert draft.tokens.tolist() == [[8, 9], [3, 0]]


def test_shared_beginnings_are_shared_nodes() -> None:
    draft = draft_of_paths(torch.tensor([9]), [[(1, 2, 3), (1, 2, 4), (5,)]], nodes=16)
    assert draft.tokens.tolist() == [[9, 1, 2, 3, 4, 5]]
    assert draft.parents.tolist() == [[0, 0, 1, 2, 2, 0]]
    assert (draft.depth, draft.width) == (3, 2)
    assert draft_of_paths(torch.tensor([9]), [[(1, 2, 3), (4,)]], nodes=3).tokens.tolist() == [[9, 1, 2]]


def test_bad_settings() -> None:
    with pytest.raises(ArgumentError, match="drafts of lookup"):
        Lookup(drafts=0)
    with pytest.raises(UnknownNameError, match="did you mean lookup"):
        drafter("lokup")
