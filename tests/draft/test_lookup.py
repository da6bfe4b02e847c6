"""Lookup and the prefix trees it makes."""

import pytest

from spectr.draft import drafter
from spectr.draft.lookup import Lookup
from spectr.draft.trie import draft_of_paths
from spectr.errors import ArgumentError, UnknownNameError


def test_longest_match_first_and_latest_first() -> None:
    text = [1, 2, 7, 7, 9, 2, 8, 8, 1, 2]
    assert Lookup(drafts=3, length=2).continuations(text) == [(7, 7), (8, 8)]
    assert Lookup(drafts=3, length=2, longest=1).continuations(text) == [(8, 8), (7, 7)]
    assert Lookup(drafts=1, length=3).continuations(text) == [(7, 7, 9)]


def test_nothing_to_look_up() -> None:
    assert Lookup().continuations([1, 2, 3]) == []
    assert Lookup().continuations([1]) == []
    draft = Lookup().propose([[1, 2, 3]])
    assert draft.tokens.tolist() == [[3]]
    assert draft.alive.tolist() == [[True]]


def test_ragged_rows_share_one_draft() -> None:
    draft = Lookup(drafts=2, length=2).propose([[5, 6, 7, 5], [1, 2]])
    assert draft.tokens.tolist() == [[5, 6, 7], [2, 0, 0]]
    assert draft.alive.tolist() == [[True, True, True], [True, False, False]]


def test_shared_beginnings_are_shared_nodes() -> None:
    draft = draft_of_paths([9], [[(1, 2, 3), (1, 2, 4), (5,)]], nodes=16)
    assert draft.tokens.tolist() == [[9, 1, 2, 3, 4, 5]]
    assert draft.parents.tolist() == [[0, 0, 1, 2, 2, 0]]
    assert (draft.depth, draft.width) == (3, 2)
    assert draft_of_paths([9], [[(1, 2, 3), (4,)]], nodes=3).tokens.tolist() == [[9, 1, 2]]


def test_bad_settings() -> None:
    with pytest.raises(ArgumentError, match="drafts of lookup"):
        Lookup(drafts=0)
    with pytest.raises(UnknownNameError, match="did you mean lookup"):
        drafter("lokup")
