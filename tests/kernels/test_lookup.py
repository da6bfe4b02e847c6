"""The kernel of lookup drafts what the plain code drafts, to the last bit."""

import random

import pytest
import torch
from tests.gpu import no_host_sync
from torch import Tensor

from spectr.draft import lookup as plain
from spectr.draft.lookup import Lookup
from spectr.policy import History
from spectr.types import Draft, Opening, Scene

pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else []  # `-m gpu` runs the kernel as it is
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SETTINGS = [
    Lookup(), Lookup(drafts=1, length=8, nodes=9), Lookup(drafts=3, length=2, shortest=1),
    Lookup(drafts=4, length=5, nodes=30, shortest=1), Lookup(drafts=2, length=1, shortest=3),
    Lookup(drafts=8, length=3, nodes=20), Lookup(drafts=2, length=6, nodes=1, shortest=1),
    Lookup(drafts=5, length=7, nodes=99, shortest=4), Lookup(drafts=16, length=2, nodes=40, shortest=1),
]  # fmt: skip


def name_of(lookup: Lookup) -> str:
    return f"{lookup.drafts}-{lookup.length}-{lookup.nodes}-{lookup.shortest}"


def by_plain_code(lookup: Lookup, root: Tensor, tokens: Tensor, end: Tensor) -> Draft:
    return plain._cut(plain._chains(root, *lookup.continuations(tokens, end)), lookup.nodes)


def by_kernel(lookup: Lookup, root: Tensor, tokens: Tensor, end: Tensor) -> Draft:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plain, "usable", lambda _: True)
        draft = plain._drafted_by_kernel(lookup, root, tokens, end)
    assert draft is not None
    return draft


def check_equal(draft: Draft, meant: Draft) -> None:
    for name in ("tokens", "parents", "alive", "fixed"):
        found, expected = getattr(draft, name), getattr(meant, name)
        assert found.dtype == expected.dtype
        assert torch.equal(found, expected), name
    assert (draft.laws, draft.siblings, draft.depth, draft.width) == (None, "fixed", meant.depth, meant.width)


def texts_of(lengths: list[int], slots: int, alphabet: int, seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return roots, random texts in buffers whose rows are not adjacent, and their ends. What is behind an end is
    padding, or text that must not be read."""
    generator = torch.Generator().manual_seed(seed)
    buffer = torch.randint(0, alphabet, (len(lengths), slots + 1), generator=generator)
    end = torch.tensor(lengths)
    buffer[::2] = torch.where(torch.arange(slots + 1) < end[::2, None], buffer[::2], -1)
    return torch.arange(len(lengths)).to(DEVICE) + 3, buffer.to(DEVICE)[:, :-1], end.to(DEVICE)


@pytest.mark.parametrize("lookup", SETTINGS, ids=name_of)
def test_drafts_equal_those_of_the_plain_code(lookup: Lookup) -> None:
    """Small alphabets have many matches, of all lengths, and many equal continuations."""
    draws, alive = random.Random(5), 0
    for seed, (slots, alphabet) in enumerate([(1, 2), (5, 1), (5, 2), (17, 4), (150, 2), (150, 4)]):
        given = texts_of([slots, draws.randrange(slots + 1)], slots, alphabet, seed)
        meant = by_plain_code(lookup, *given)
        check_equal(by_kernel(lookup, *given), meant)
        alive += int(meant.alive[:, 1:].sum())
    assert alive > 5 or lookup.nodes == 1


@pytest.mark.parametrize("chunk", [64, 2048])
@pytest.mark.parametrize("alphabet", [1, 2, 6, 40])
def test_texts_of_many_chunks(chunk: int, alphabet: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Matches cross the borders of chunks, and the best are in any chunk."""
    monkeypatch.setattr("spectr.kernels.lookup._CHUNK", chunk)
    sizes = (4_500, [4_500, 4_096, 2_049, 2_048]) if chunk == 2048 else (333, [333, 320, 64, 65])
    for seed, lookup in enumerate((Lookup(), Lookup(drafts=3, length=5, nodes=16, shortest=1))):
        given = texts_of(sizes[1], sizes[0], alphabet, seed)
        check_equal(by_kernel(lookup, *given), by_plain_code(lookup, *given))


def test_the_longest_match_is_found_far_behind_many_short_ones() -> None:
    """The first place kept may be the first of the text; the later matches are shorter, and more than are kept."""
    tokens = torch.cat([torch.arange(10, 20), torch.tensor([15, 16, 0]).repeat(1_500), torch.arange(10, 17)])[None]
    given = torch.tensor([16]).to(DEVICE), tokens.to(DEVICE), torch.tensor([tokens.shape[1]]).to(DEVICE)
    draft = by_kernel(Lookup(), *given)
    assert draft.tokens.tolist() == [[16, 17, 18, 19, 15, 0, 0, 0]]
    assert draft.alive.tolist() == [[True] * 6 + [False] * 2]
    check_equal(draft, by_plain_code(Lookup(), *given))


@pytest.mark.parametrize("same", [10, 11, 12, 13])
def test_as_many_places_are_considered(same: int) -> None:
    """A continuation behind `same` places with another one is drafted if it is among the twelve places considered."""
    tokens = torch.tensor([[5, 6, 1, *[5, 6, 2] * same, 5, 6]]).to(DEVICE)
    given = torch.tensor([6]).to(DEVICE), tokens, torch.tensor([tokens.shape[1]]).to(DEVICE)
    lookup = Lookup(drafts=3, length=1)
    draft = by_kernel(lookup, *given)
    assert draft.tokens.tolist() == [[6, 2, 1 if same < 12 else 0, 0]]
    check_equal(draft, by_plain_code(lookup, *given))


def test_gaps_never_match() -> None:
    """Padding inside a text equals no token and is not drafted."""
    for seed in range(8):
        root, tokens, end = texts_of([60, 35], 60, 2, seed)
        holes = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(seed)) < 0.2
        tokens[holes.to(DEVICE)] = -1
        for lookup in (Lookup(), Lookup(drafts=3, length=3, nodes=10, shortest=1)):
            check_equal(by_kernel(lookup, root, tokens, end), by_plain_code(lookup, root, tokens, end))


def proposed(lookup: Lookup, texts: list[list[int]], sources: list[list[int]]) -> Draft:
    drafting = lookup.open(Opening(len(texts), 99, 50, None))
    for row, (text, source) in enumerate(zip(texts, sources, strict=True)):
        drafting.begin(row, text, 99, source)
    root = torch.tensor([text[-1] for text in texts], device=DEVICE)
    history = History.of(texts, 50, device=DEVICE)
    return drafting.propose(Scene(history, root, root >= 0, None, None, None, None, 99))  # type: ignore[arg-type]


@pytest.mark.parametrize("lookup", SETTINGS[:4], ids=name_of)
def test_drafting_with_sources(lookup: Lookup, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drafting uses the kernel, and searches the sources of rows with it, too."""
    monkeypatch.setattr(plain, "draft_of_paths", lambda *_: pytest.fail("the plain code was used"))
    monkeypatch.setattr(plain, "usable", lambda _: True)
    draws = random.Random(8)
    for _ in range(3):
        texts, sources = ([[draws.randrange(3) for _ in range(draws.choice(most))] for _ in range(3)]
                          for most in ((1, 4, 30), (0, 3, 12)))  # fmt: skip
        widest = max(map(len, sources))
        rows = [[-1] * (widest - len(source)) + source + text for source, text in zip(sources, texts, strict=True)]
        longest = max(map(len, rows))
        tokens = torch.tensor([[*row, *[-1] * (longest - len(row))] for row in rows]).to(DEVICE)
        end = torch.tensor([len(row) for row in rows]).to(DEVICE)
        root = torch.tensor([text[-1] for text in texts]).to(DEVICE)
        check_equal(proposed(lookup, texts, sources), by_plain_code(lookup, root, tokens, end))


def test_settings_outside_the_limits_use_the_plain_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "usable", lambda _: True)
    given = texts_of([40, 7], 40, 2, 1)
    for lookup in (Lookup(drafts=17), Lookup(drafts=10, length=20), Lookup(length=40), Lookup(shortest=40)):
        assert plain._drafted_by_kernel(lookup, *given) is None
    assert plain._drafted_by_kernel(Lookup(), *given) is not None


@pytest.mark.gpu
@pytest.mark.parametrize("lookup", SETTINGS, ids=name_of)
@pytest.mark.parametrize("rows", [1, 9])
def test_long_texts_on_the_device(lookup: Lookup, rows: int) -> None:
    """Long texts have the drafts of the plain code on the same device, without a synchronisation, and again when
    replayed from a CUDA graph with texts of other lengths."""
    for alphabet in (2, 30, 50_000):
        root, tokens, end = texts_of([40_000 - 4_111 * row for row in range(rows)], 40_000, alphabet, rows)
        tokens[:, 25_000:25_040] = tokens[:, 100:140]
        ends = [end.clone(), end // 2, torch.full_like(end, 25_020), torch.full_like(end, 3)]
        by_kernel(lookup, root, tokens, end)  # compile first
        with no_host_sync():
            draft = by_kernel(lookup, root, tokens, end)
        check_equal(draft, by_plain_code(lookup, root, tokens, end))
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = by_kernel(lookup, root, tokens, end)
        for other in ends:
            end.copy_(other)
            graph.replay()
            check_equal(captured, by_plain_code(lookup, root, tokens, end))
