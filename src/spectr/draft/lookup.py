"""Prompt lookup: drafts what followed the last few tokens where they occurred earlier in the text. The continuations of
several places form one tree.

The search consists of tensor operations on the texts on the device, so that a step needs nothing from the host. There
are more than a hundred of them, and each takes some microseconds. So on a GPU one kernel does all of it, and on a CPU a
text is searched with a few operations of NumPy: there most steps find nothing, and should cost nothing.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spectr.checks import whole
from spectr.draft.plan import check_size
from spectr.draft.stateless import SingleChoice
from spectr.draft.trie import draft_of_paths
from spectr.kernels import usable
from spectr.notices import notice
from spectr.rows import cached_arange
from spectr.types import Draft, Drafting, Opening, Scene, Siblings, TextState

__all__ = ["Lookup"]

_PLACES = 4  # places considered for each draft: several of them may have the same continuation


class Lookup:
    """Drafts `drafts` continuations of up to `length` tokens after the longest suffixes of the text that occurred
    before, of at least `shortest` tokens. A match of `shortest` tokens drafts one token, and every further token of the
    match drafts one more."""

    name: ClassVar[str] = "lookup"
    gives_laws: ClassVar[bool] = False
    siblings: ClassVar[Siblings] = "fixed"
    capturable: ClassVar[bool] = True
    origin: ClassVar[str] = "lookup"

    def __init__(self, drafts: int = 2, length: int = 4, nodes: int = 8, shortest: int = 2) -> None:
        for name, value in (("drafts", drafts), ("length", length), ("nodes", nodes), ("shortest", shortest)):
            whole(f"{name} of lookup", value, 1)
        check_size(nodes)
        self.drafts, self.length, self.nodes, self.shortest = drafts, length, nodes, shortest

    @property
    def longest(self) -> int:
        """The longest match that is searched for: a longer one would not make a longer draft."""
        return self.shortest + self.length - 1

    def open(self, opening: Opening) -> Drafting:
        """Open tables for the sources of encoder-decoder models, which are searched too, as if they preceded the
        text."""
        return _LookupDrafting(self, opening)

    def continuations(self, tokens: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """Return the tokens (B, K, L) that followed earlier occurrences of the last tokens of the texts (B, M), padded
        with -1, which end before `end` (B,); and how many tokens of each continuation to draft (B, K). The longest
        match comes first, and among equals the latest. A continuation that repeats the beginning of another has 0.

        >>> text = torch.tensor([[1, 2, 3, 4, 9, 1, 2, 3]])
        >>> found, count = Lookup(drafts=2, length=2).continuations(text, torch.tensor([8]))
        >>> found[0, 0].tolist(), count.tolist()
        ([4, 9], [[2, 0]])
        """
        matched, places = self._matched(tokens, end)
        behind = places[..., None] + cached_arange(self.length, tokens.device)  # (B, P, L)
        following = tokens.gather(1, behind.clamp_max(tokens.shape[1] - 1).flatten(1)).view(behind.shape)
        inside = (behind < end[:, None, None]) & (following >= 0)
        count = (matched - self.shortest + 1).clamp(0, self.length)
        count = torch.minimum(count, inside.long().cumprod(-1).sum(-1))
        fresh = self._is_new(following, count)
        return _first(self.drafts, following, torch.where(fresh, count, 0))

    def paths(self, text: NDArray[np.int64]) -> list[tuple[int, ...]]:
        """Return what `continuations` returns for one text (M,), on the host and without padding.

        >>> Lookup(drafts=2, length=2).paths(np.array([1, 2, 3, 4, 9, 1, 2, 3]))
        [(4, 9)]
        """
        end, found = len(text), list[tuple[int, ...]]()
        if end <= self.shortest:
            return found
        places = np.arange(self.shortest, end)
        for back in range(1, self.shortest + 1):
            places = places[(text[places - back] == text[end - back]) & (text[places - back] >= 0)]
        matched = np.full(len(places), self.shortest)
        going = np.ones(len(places), dtype=bool)
        for back in range(self.shortest + 1, min(self.longest, end) + 1):
            before = text[np.maximum(places - back, 0)]
            going &= (places >= back) & (before == text[end - back]) & (before >= 0)
            matched += going
        best = np.lexsort((-places, -matched))[: _PLACES * self.drafts]
        for place, count in zip(places[best].tolist(), (matched[best] - self.shortest + 1).tolist(), strict=True):
            fresh = tuple(text[place : place + count].tolist())
            fresh = fresh[: fresh.index(-1)] if -1 in fresh else fresh
            if fresh and all(better[: len(fresh)] != fresh for better in found):
                found.append(fresh)
        return found[: self.drafts]

    def _matched(self, tokens: Tensor, end: Tensor) -> tuple[Tensor, Tensor]:
        """Return how many tokens (B, P) before each of the best places equal those before the end, and the places (B,
        P)."""
        size = tokens.shape[1]
        at = cached_arange(size, tokens.device)
        run = torch.ones_like(tokens, dtype=torch.bool)
        matched = torch.zeros_like(tokens)
        for back in range(1, self.longest + 1):
            last = tokens.gather(1, (end[:, None] - back).clamp_min(0))
            before = torch.nn.functional.pad(tokens, (back, 0), value=-1)[:, :size]  # `back` tokens before each place
            run = run & (before == last) & (before >= 0) & (end[:, None] >= back)
            matched = matched + run
        matched = torch.where((at < end[:, None]) & (matched >= self.shortest), matched, 0)
        best = (matched * size + at).topk(min(_PLACES * self.drafts, size), -1).values
        return best // size, best % size

    def _is_new(self, following: Tensor, count: Tensor) -> Tensor:
        """(B, P) bool: whether no better place has the same continuation."""
        same = (following[:, :, None] == following[:, None]).long().cumprod(-1).sum(-1)  # (B, P, P) tokens in common
        covered = (same >= count[:, :, None]) & (count[:, None] >= count[:, :, None])
        places = cached_arange(following.shape[1], following.device)
        return ~(covered & (places[None, :] < places[:, None])).any(-1) & (count > 0)


def _first(drafts: int, following: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """The first `drafts` continuations of at least one token, in order."""
    order = (count == 0).to(torch.int8).sort(dim=-1, stable=True).indices[:, :drafts]
    return following.gather(1, order[..., None].expand(-1, -1, following.shape[-1])), count.gather(1, order)


def _chains(root: Tensor, following: Tensor, count: Tensor) -> Draft:
    """A draft of chains: the first `count` (B, K) tokens of continuations (B, K, L) below the roots."""
    _, drafts, length = following.shape
    places = cached_arange(length, root.device)
    alive = places < count[..., None]
    tokens = torch.where(alive, following, 0).flatten(1)
    ids = cached_arange(drafts * length, root.device).view(drafts, length)
    parents = torch.where(alive & (places > 0), ids, 0).flatten(1)  # the parent is the node before
    tokens = torch.cat([root[:, None], tokens], 1)
    parents = torch.nn.functional.pad(parents, (1, 0))
    alive = torch.nn.functional.pad(alive.flatten(1), (1, 0), value=True)
    fixed = alive & (cached_arange(tokens.shape[1], root.device) > 0)
    return Draft(tokens, parents, alive, fixed, None, "fixed", length, drafts)


def _drafted_by_kernel(lookup: Lookup, root: Tensor, tokens: Tensor, end: Tensor) -> Draft | None:
    """Draft with one kernel; return None if it cannot. The draft is that of `_chains`, cut."""
    if not usable(tokens):
        return None
    from spectr.kernels.lookup import Search, can_look_up, draft_by_lookup

    search = Search(lookup.drafts, lookup.length, lookup.nodes, lookup.shortest, _PLACES * lookup.drafts)
    if not can_look_up(search, tokens.shape[1]):
        notice(
            f"{lookup.drafts} drafts after matches of up to {lookup.longest} tokens are too many for the kernel of "
            "lookup; texts are searched without it, which is slower"
        )
        return None
    chains = draft_by_lookup(root, tokens, end, search)
    return Draft(*chains, None, "fixed", lookup.length, min(lookup.drafts, tokens.shape[1]))


class _LookupDrafting(SingleChoice):
    """The sources of the rows of an encoder-decoder model."""

    def __init__(self, lookup: Lookup, opening: Opening) -> None:
        self.lookup, self._rows = lookup, opening.rows
        self._sources: Tensor | None = None  # (R, S), padded with -1 at the front

    def propose(self, scene: Scene) -> Draft:
        """Draft the continuations of each row's text."""
        tokens, end = self._searched(scene.texts)
        if (draft := _drafted_by_kernel(self.lookup, scene.root, tokens, end)) is not None:
            return draft
        if tokens.device.type == "cpu":
            texts = [row[:length] for row, length in zip(tokens.numpy(), end.tolist(), strict=True)]
            return draft_of_paths(scene.root, [self.lookup.paths(text) for text in texts], self.lookup.nodes)
        return _cut(_chains(scene.root, *self.lookup.continuations(tokens, end)), self.lookup.nodes)

    def keep(self, path: Tensor) -> None:
        """Do nothing: the texts have the accepted tokens."""

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> None:
        """Store the source of a row."""
        tokens = list(source or ())
        if self._sources is None and not tokens:
            return
        table = torch.full((self._rows, 0), -1) if self._sources is None else self._sources
        self._sources = torch.nn.functional.pad(table, (max(0, len(tokens) - table.shape[1]), 0), value=-1)
        self._sources[row] = -1
        if tokens:
            self._sources[row, -len(tokens) :] = torch.tensor(tokens)

    def read(self, first: int, texts: Sequence[list[int]], starts: Sequence[int]) -> None:
        """Do nothing: the texts have the prompts."""

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """Copy the sources of rows."""
        if self._sources is not None:
            self._sources[targets] = self._sources[sources]

    def make_room(self, rows: int, slots: int) -> None:
        """Allocate room for the sources of more rows."""
        extra = max(0, rows - self._rows)
        self._rows += extra
        if self._sources is not None:
            self._sources = torch.nn.functional.pad(self._sources, (0, 0, 0, extra), value=-1)

    def _searched(self, texts: TextState) -> tuple[Tensor, Tensor]:
        """The tokens to search, sources first, and where they end."""
        if self._sources is None:
            return texts.tokens, texts.length
        sources = self._sources[: len(texts.length)].to(texts.length.device)
        return torch.cat([sources, texts.tokens], 1), texts.length + sources.shape[1]


def _cut(draft: Draft, nodes: int) -> Draft:
    """The draft with its first `nodes` nodes only, which is a tree because parents precede their children."""
    tokens, parents, alive, fixed = (t[:, :nodes] for t in (draft.tokens, draft.parents, draft.alive, draft.fixed))
    return replace(draft, tokens=tokens, parents=parents, alive=alive, fixed=fixed)
