"""Lookup and its trees equal those of a search in plain Python, on many texts."""

import itertools
import random
from collections import Counter

import numpy as np
import pytest
import torch

from spectr.draft import drafter
from spectr.draft.lookup import Lookup
from spectr.draft.trie import draft_of_paths
from spectr.errors import ArgumentError, UnknownNameError
from spectr.policy import History
from spectr.types import Draft, Drafting, Opening, Scene

Path = tuple[int, ...]
SIZE = 50


def searched(lookup: Lookup, text: list[int]) -> list[Path]:
    """Implement the docstring of `Lookup` directly: return the continuations of earlier occurrences of the last tokens,
    the longest match first and the latest among equals; four places are considered for each draft."""
    places = []
    for at in range(1, len(text)):
        matched = 0
        while matched < min(at, lookup.longest) and text[at - 1 - matched] == text[-1 - matched]:
            matched += 1
        if matched >= lookup.shortest:
            places.append((matched, at))
    found = list[Path]()
    for matched, at in sorted(places, reverse=True)[: 4 * lookup.drafts]:
        fresh = tuple(text[at : at + matched - lookup.shortest + 1])
        if all(better[: len(fresh)] != fresh for better in found):
            found.append(fresh)
    return found[: lookup.drafts]


def nodes_of(paths: list[Path], nodes: int) -> list[Path]:
    """Return the distinct prefixes of paths in order, at most `nodes` including the root."""
    beginnings = [path[: length + 1] for path in paths for length in range(len(path))]
    return [(), *dict.fromkeys(beginnings)][:nodes]


def drawn(draft: Draft) -> list[list[Path]]:
    """Return the path to each alive node."""
    found = []
    for tokens, parents, alive in zip(draft.tokens.tolist(), draft.parents.tolist(), draft.alive.tolist(), strict=True):
        paths: list[Path] = [()]
        for node in range(1, len(tokens)):
            assert parents[node] < node
            paths.append((*paths[parents[node]], tokens[node]))
        found.append([path for path, lives in zip(paths, alive, strict=True) if lives])
    return found


def continuations(lookup: Lookup, text: list[int]) -> list[Path]:
    """Search on the device and on the host, which must find the same."""
    found, count = lookup.continuations(torch.tensor([[*text, -1, -1]]), torch.tensor([len(text)]))
    paths = [tuple(path[:n]) for path, n in zip(found[0].tolist(), count[0].tolist(), strict=True) if n]
    assert lookup.paths(np.array(text)) == paths
    return paths


def opened(lookup: Lookup, rows: int) -> Drafting:
    return lookup.open(Opening(rows, 99, SIZE, None))


def proposed(drafting: Drafting, texts: list[list[int]]) -> Draft:
    history = History.of(texts, SIZE)
    root = torch.tensor([text[-1] for text in texts])
    return drafting.propose(Scene(history, root, root >= 0, None, None, None, None, 99))  # type: ignore[arg-type]


def begun(lookup: Lookup, texts: list[list[int]], sources: list[list[int]] | None = None) -> Drafting:
    drafting = opened(lookup, len(texts))
    for row, text in enumerate(texts):
        drafting.begin(row, text, 99, None if sources is None else sources[row])
    return drafting


SETTINGS = [
    Lookup(), Lookup(drafts=1), Lookup(drafts=3, length=2, shortest=1), Lookup(drafts=4, length=5, nodes=5, shortest=1),
    Lookup(drafts=2, length=1, shortest=3), Lookup(drafts=8, length=3, nodes=20, shortest=2),
    Lookup(drafts=2, length=6, nodes=1, shortest=1),
]  # fmt: skip


def random_text(draws: random.Random, size: int) -> list[int]:
    return [draws.randrange(size) for _ in range(draws.choice((1, 2, 3, 7, 15, 40)))]


@pytest.mark.parametrize("with_sources", [False, True], ids=["texts", "sources"])
@pytest.mark.parametrize(
    "lookup", SETTINGS, ids=lambda made: f"{made.drafts}-{made.length}-{made.nodes}-{made.shortest}"
)
def test_drafts_equal_a_direct_search(lookup: Lookup, with_sources: bool) -> None:
    """Random batches of rows with different lengths, some with a source, have the drafts of a direct search; the
    vocabularies are small, so that there are many matches."""
    draws, hits = random.Random(3), 0
    for _ in range(100):
        size, rows = draws.choice((1, 2, 3, 5)), draws.randrange(1, 6)
        texts = [random_text(draws, size) for _ in range(rows)]
        sources = [random_text(draws, size) if with_sources and draws.random() < 0.7 else [] for _ in range(rows)]
        draft = proposed(begun(lookup, texts, sources), texts)
        meant = [searched(lookup, source + text) for source, text in zip(sources, texts, strict=True)]
        kept = [nodes_of(paths, lookup.nodes) for paths in meant]
        assert drawn(draft) == kept
        assert draft.tokens.shape[1] <= lookup.nodes
        assert draft.depth >= max(map(len, itertools.chain(*kept)))
        assert draft.width >= max(Counter(map(len, row)).most_common(1)[0][1] for row in kept)
        assert not draft.fixed[:, 0].any()
        assert torch.equal(draft.fixed[:, 1:], draft.alive[:, 1:])
        assert [continuations(lookup, text) for text in texts] == [searched(lookup, text) for text in texts]
        hits += sum(map(len, meant))
    assert hits > 50


def test_longest_match_first_and_latest_first() -> None:
    text = [1, 2, 7, 7, 9, 2, 8, 8, 1, 2]
    assert continuations(Lookup(drafts=3, length=2, shortest=1), text) == [(7, 7), (8,)]
    assert continuations(Lookup(drafts=3, length=1, shortest=1), text) == [(8,), (7,)]
    assert continuations(Lookup(drafts=1, length=3), text) == [(7,)]


def test_a_longer_match_makes_a_longer_draft() -> None:
    text = [5, 6, 1, 2, 3, 4, 7, 8, 9, 0, 1, 2, 3, 4]
    assert continuations(Lookup(drafts=1), text) == [(7, 8, 9)]
    assert continuations(Lookup(drafts=1, length=2), text) == [(7, 8)]
    assert continuations(Lookup(drafts=1), text[:-1]) == [(4, 7)]
    assert continuations(Lookup(drafts=1), text[:-3]) == []


def test_a_continuation_that_repeats_a_better_one_is_dropped() -> None:
    """After (1, 2) came 7, 8; after 2 alone came 7 again, which is not a second draft, and 9, which is."""
    text = [2, 9, 0, 2, 7, 0, 1, 2, 7, 8, 0, 1, 2]
    assert continuations(Lookup(drafts=2, length=2, shortest=1), text) == [(7, 8), (9,)]


def test_a_text_without_repetition_drafts_nothing() -> None:
    assert continuations(Lookup(), [1, 2, 3]) == []
    assert continuations(Lookup(), [1]) == []
    draft = proposed(opened(Lookup(), 1), [[1, 2, 3]])
    assert draft.tokens.tolist() == [[3]]
    assert draft.alive.tolist() == [[True]]


def test_ragged_rows_share_one_draft() -> None:
    draft = proposed(opened(Lookup(drafts=2, length=1, shortest=1), 2), [[5, 6, 7, 5], [1, 2]])
    assert draft.tokens.tolist() == [[5, 6], [2, 0]]
    assert draft.alive.tolist() == [[True, True], [True, False]]


def test_sources_are_searched_too() -> None:
    lookup, texts = Lookup(drafts=1, length=1, shortest=1), [[0, 8], [0, 3]]
    draft = proposed(begun(lookup, texts, [[7, 8, 9, 1], [4]]), texts)
    assert draft.tokens.tolist() == [[8, 9], [3, 0]]


def test_sources_come_and_go_with_their_rows() -> None:
    """A row that moves keeps its source; a row that begins has its own source or none."""
    lookup, texts = Lookup(drafts=1, length=1, shortest=1), [[0, 8]] * 3
    drafting = begun(lookup, texts, [[8, 1], [5, 5, 8, 2], []])
    assert drawn(proposed(drafting, texts)) == [[(), (1,)], [(), (2,)], [()]]
    drafting.copy_rows([1, 0], [0, 2], 99)
    assert drawn(proposed(drafting, texts)) == [[(), (2,)], [(), (2,)], [(), (1,)]]
    drafting.make_room(5, 99)
    drafting.begin(1, texts[0], 99, None)
    drafting.begin(4, texts[0], 99, [8, 3, 8, 4])
    five = [[0, 8]] * 5
    assert drawn(proposed(drafting, five)) == [[(), (2,)], [()], [(), (1,)], [()], [(), (4,)]]


def test_shared_beginnings_are_shared_nodes() -> None:
    draft = draft_of_paths(torch.tensor([9]), [[(1, 2, 3), (1, 2, 4), (5,)]], nodes=16)
    assert draft.tokens.tolist() == [[9, 1, 2, 3, 4, 5]]
    assert draft.parents.tolist() == [[0, 0, 1, 2, 2, 0]]
    assert (draft.depth, draft.width) == (3, 2)
    assert draft_of_paths(torch.tensor([9]), [[(1, 2, 3), (4,)]], nodes=3).tokens.tolist() == [[9, 1, 2]]


def test_bad_settings() -> None:
    """Bad options and unknown drafters are refused."""
    with pytest.raises(ArgumentError, match="drafts of lookup"):
        Lookup(drafts=0)
    with pytest.raises(UnknownNameError, match="did you mean lookup"):
        drafter("lokup")
