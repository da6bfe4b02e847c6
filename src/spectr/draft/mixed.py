"""Several drafters in one tree: their trees are merged under one root, and paths that they share become shared
nodes."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from spectr.draft.stateless import SingleChoice
from spectr.draft.traits import DrafterTraits, drop_text
from spectr.errors import ArgumentError, MismatchError
from spectr.trees import topology
from spectr.types import ORIGINS, Draft, Drafter, Drafting, Layers, Opening, Scene, Siblings

__all__ = ["Mixed", "merge"]


class Mixed:
    """Drafts with all of `parts`. If each of them drafts fixed sets, so does the mix. Otherwise only rules that need no
    draft distributions apply: the race, and match."""

    name: ClassVar[str] = "mixed"
    gives_laws: ClassVar[bool] = False

    @property
    def capturable(self) -> bool:
        """Whether no part needs texts on the host."""
        return all(DrafterTraits(part).capturable for part in self.parts)

    def __init__(self, parts: list[Drafter]) -> None:
        if not parts:
            raise ArgumentError("mixed needs at least one drafter, got none; list the drafters to mix")
        self.parts = parts
        self.siblings: Siblings = "fixed" if all(part.siblings == "fixed" for part in parts) else "race"
        self.nodes = 1 + sum(part.nodes - 1 for part in parts)
        self.scratch_slots = max(self.nodes, *(DrafterTraits(part).scratch_slots for part in parts))
        self.feature_layers = _feature_layers(parts)

    def open(self, opening: Opening) -> Drafting:
        """Open every part."""
        codes = [ORIGINS.index(DrafterTraits(part).origin) for part in self.parts]
        return _MixedDrafting(self.siblings, [part.open(opening) for part in self.parts], codes)


def _feature_layers(parts: list[Drafter]) -> Layers | None:
    """The layers whose features the parts read, which must be the same: a session keeps one set."""
    found = [DrafterTraits(part).feature_layers for part in parts]
    kinds: set[Layers] = {layers for layers in found if layers is not None}
    if len(kinds) > 1:
        raise MismatchError(f"heads that are mixed must read the same layers, got {sorted(kinds)}; mix one of them")
    return kinds.pop() if kinds else None


class _MixedDrafting(SingleChoice):
    """The draftings of the parts, and for each the node that each node of the last merged tree was in its own tree."""

    def __init__(self, siblings: Siblings, parts: list[Drafting], codes: list[int]) -> None:
        self.siblings, self.parts, self.codes = siblings, parts, codes
        self._origins: list[Tensor] = []

    def propose(self, scene: Scene) -> Draft:
        """Draft with every part and merge the trees."""
        drafts = [part.propose(scene) for part in self.parts]
        merged = merge(drafts, self.siblings)
        self._origins = merged.origins
        return replace(merged.draft, origin=self._origin()) if scene.wants_laws else merged.draft

    def _origin(self) -> Tensor:
        """(B, N): the origin of each node; the first part counts where several drafted it."""
        found = torch.zeros_like(self._origins[0])
        for code, nodes in reversed(list(zip(self.codes, self._origins, strict=True))):
            found = torch.where(nodes >= 0, code, found)
        return found

    def keep(self, path: Tensor) -> None:
        """Let every part keep as much of the path as it drafted itself."""
        for part, origin in zip(self.parts, self._origins, strict=True):
            part.keep(torch.where(path >= 0, origin.gather(1, path.clamp_min(0)), -1))

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> None:
        """Begin a row in every part."""
        for part in self.parts:
            part.begin(row, text, limit, source)

    def read(self, first: int, texts: Sequence[list[int]], starts: Sequence[int]) -> None:
        """Read tokens in every part."""
        for part in self.parts:
            part.read(first, texts, starts)

    def drop(self, first: int, starts: Sequence[int]) -> None:
        """Drop texts in every part. So a mix counts as a drafting with a cache, which some of its parts may have."""
        for part in self.parts:
            drop_text(part, first, starts)

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """Copy rows in every part."""
        for part in self.parts:
            part.copy_rows(sources, targets, most)

    def make_room(self, rows: int, slots: int) -> None:
        """Allocate room in every part."""
        for part in self.parts:
            part.make_room(rows, slots)


@dataclass(frozen=True, slots=True)
class Merged:
    """A merged tree, and for each draft the node (B, N) that each merged node was in it, -1 for none."""

    draft: Draft
    origins: list[Tensor]


def _side_by_side(drafts: list[Draft], siblings: Siblings) -> Draft:
    """The nodes of all drafts under one root, with duplicates."""
    first, shift = drafts[0], 0
    tokens, parents, alive = [first.tokens[:, :1]], [first.parents[:, :1]], [first.alive[:, :1]]
    for draft in drafts:
        moved = torch.where(draft.parents > 0, draft.parents + shift, 0)
        for parts, added in ((tokens, draft.tokens), (parents, moved), (alive, draft.alive)):
            parts.append(added[:, 1:])
        shift += draft.tokens.shape[1] - 1
    living = torch.cat(alive, 1)
    fixed = living & (torch.arange(living.shape[1], device=living.device) > 0) & (siblings == "fixed")
    depth, width = max(draft.depth for draft in drafts), sum(draft.width for draft in drafts)
    return Draft(torch.cat(tokens, 1), torch.cat(parents, 1), living, fixed, None, siblings, depth, width)


def merge(drafts: list[Draft], siblings: Siblings) -> Merged:
    """Merge trees with the same roots into one: children move to the first copy of their parent, and other copies are
    dropped."""
    wide = _side_by_side(drafts, siblings)
    canonical_node = topology(wide).canonical_node
    ids = torch.arange(wide.tokens.shape[1], device=canonical_node.device)
    alive = wide.alive & (canonical_node == ids)
    order = (~alive).to(torch.int8).sort(dim=-1, stable=True).indices  # alive nodes first, in order
    count = int(alive.sum(-1).max()) if alive.device.type == "cpu" else alive.shape[1]
    new_id = torch.empty_like(order).scatter_(1, order, ids.expand_as(order))
    home = new_id.gather(1, canonical_node)  # the new index of each old node
    parents = home.gather(1, wide.parents).gather(1, order)[:, :count]
    alive, tokens, fixed = (values.gather(1, order)[:, :count] for values in (alive, wide.tokens, wide.fixed))
    parents = torch.where(alive, parents, 0)
    draft = Draft(tokens, parents, alive, fixed & alive, None, siblings, wide.depth, wide.width)
    return Merged(draft, _origins(drafts, home, count))


def _origins(drafts: list[Draft], home: Tensor, count: int) -> list[Tensor]:
    """For each draft, the node that each of the first `count` merged nodes was in it, -1 for none."""
    found, shift = [], 0
    for draft in drafts:
        nodes = draft.tokens.shape[1]
        ids = torch.arange(nodes, device=home.device)
        places = home[:, torch.where(ids > 0, ids + shift, 0)]
        table = home.new_full((home.shape[0], home.shape[1] + 1), -1)
        at = torch.where(draft.alive, places, home.shape[1])  # dead nodes are written to an extra column
        found.append(table.scatter_(1, at, ids.expand_as(places))[:, :count])
        shift += nodes - 1
    return found
