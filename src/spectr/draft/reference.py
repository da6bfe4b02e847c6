"""Drafts from a reference text: a text that the row's answer will probably repeat, with some edits.

The branch that continues the reference is drafted beside the tree of another drafter, and shares nodes with it. The
tables are on the device, in fixed places, and changed in place, so that a captured step finds them again.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spectr.draft.adaptive import SwitchingDrafter
from spectr.draft.delegating import DelegatingDrafting
from spectr.draft.mixed import merge
from spectr.draft.none import NoDrafter
from spectr.rows import cached_arange, copy_to_device
from spectr.types import ORIGINS, Draft, Drafter, Drafting, Layers, Opening, Scene, Siblings, TextState
from spectr.verify import Card

__all__ = ["LENGTH", "Referring", "ReferringDrafting", "fits"]

LENGTH = 16
"""Most tokens of the branch."""

_FEW = 8  # tokens of a branch until a whole one was right
_TOGETHER = 128  # tokens of the branches of all rows, where their length may depend on the number of rows
_MATCH = 4  # tokens of a match that are compared, and that one needs far from where it is expected
_NEAR = 12  # tokens around that place where a shorter match is enough


@dataclass(frozen=True, slots=True)
class Referring:
    """Another drafter, and beside its tree a branch from the row's reference. For rules that read no draft laws."""

    drafter: Drafter
    races: bool = False  # under the race, whose text does not depend on drafts, they may depend on the other rows

    @property
    def name(self) -> str:
        """That of the other drafter, which is what the user chose."""
        return self.drafter.name

    @property
    def siblings(self) -> Siblings:
        """A branch is a fixed set."""
        return "fixed" if self.drafter.siblings == "fixed" else "race"

    @property
    def nodes(self) -> int:
        """Of both."""
        return self.drafter.nodes + LENGTH

    @property
    def gives_laws(self) -> bool:
        """The branch has none."""
        return False

    @property
    def capturable(self) -> bool:
        """As the other drafter; the branch needs nothing from the host."""
        return bool(getattr(self.drafter, "capturable", False))

    @property
    def wants_features(self) -> Layers | None:
        """As the other drafter."""
        wanted: Layers | None = getattr(self.drafter, "wants_features", None)
        return wanted

    def open(self, opening: Opening) -> "ReferringDrafting":
        """Open the other drafter, and room for references."""
        return ReferringDrafting(self, self.drafter.open(opening), opening)


def fits(drafter: Drafter, card: Card) -> bool:
    """Whether a rule takes a branch without a draft law beside the trees of a drafter: the race and match do."""
    return card.tree and not card.needs_laws and Referring(drafter).siblings in card.siblings


class ReferringDrafting(DelegatingDrafting):
    """The other drafter at work, and the references of the rows.

    A row that begins has no reference. `predict` gives it one that lasts; `refer` gives it tokens for the next step
    alone, which are drafted in place of what its reference says.
    """

    def __init__(self, drafter: Referring, inner: Drafting, opening: Opening) -> None:
        super().__init__(inner)
        self.drafter, self.references = drafter, _References(opening.rows, torch.device(opening.device))
        self._selects = isinstance(drafter.drafter, SwitchingDrafter) and drafter.drafter.observe is not None
        self._has_branch = self._is_alone = False  # in the last step: some row had a branch; the other was left out
        self._origin: Tensor | None = None  # the node of the other's tree that each node was; None: the same one

    @property
    def version(self) -> int:
        """Another number once some table was replaced by another: a captured step knows tables by where they lie."""
        return self.references.version

    def predict(self, row: int, tokens: Sequence[int], after: int) -> None:
        """Draft from a reference until the row ends. It is taken to begin behind the first `after` tokens of the row's
        text: what stands there already was generated before, and is searched for in it."""
        self.references.put(row, tokens, after)

    def refer(self, row: int, tokens: Sequence[int]) -> None:
        """In the next step alone, propose these tokens to follow the row's present text; at most `LENGTH` of them are
        used. Call it between steps, where steps are read at once, so that the present text is known; calling it again
        replaces the tokens, and none withdraws them."""
        self.references.give(row, tokens)

    def propose(self, scene: Scene) -> Draft:
        """The other drafter's tree, and the branch; also what the references predict, drafted or not. A drafter that
        selects what pays, plain decoding among it, is left out of steps where all rows have a branch."""
        branch = self.references.follow(scene.texts, scene.active, self._longest(len(scene.root)))
        chain = _chain(scene.root, branch.tokens, branch.count)
        self._has_branch = chain.tokens.shape[1] > 1
        asks = self._selects and self._has_branch and scene.root.device.type == "cpu"
        self._is_alone = asks and bool(((branch.count > 0) | ~scene.active).all())
        draft = NoDrafter().propose(scene) if self._is_alone else self.inner.propose(scene)
        if self.drafter.races and not self._has_branch:
            merged, self._origin = draft, None
        else:  # other rules flip coins by the numbers of nodes, which have to be the same whatever other rows draft
            merged, self._origin = _beside(draft, chain, self.drafter.siblings)
        origin = self._origin_of(draft, branch) if scene.wants_laws else None
        return replace(merged, predicted=branch.predicted, origin=origin)

    def _origin_of(self, draft: Draft, branch: "_Branch") -> Tensor | None:
        """(B, N): where each node of the last tree came from; None if all are the other drafter's."""
        if self._origin is None:
            return draft.origin
        own = torch.zeros_like(draft.tokens) if draft.origin is None else draft.origin
        code = torch.where(branch.is_given, ORIGINS.index("grammar"), ORIGINS.index("prediction"))
        return torch.where(self._origin >= 0, own.gather(1, self._origin.clamp_min(0)), code)

    def keep(self, path: Tensor) -> None:
        """The other drafter keeps as much of the path as it drafted itself."""
        if self._is_alone:  # it reads what it missed when it drafts again
            return
        if self._origin is not None:
            path = torch.where(path >= 0, self._origin.gather(1, path.clamp_min(0)), -1)
        self.inner.keep(path)

    def observe(self, rows: int, choice: int, tokens: float, seconds: float) -> None:
        """The other drafter learns from steps without a branch, which alone say what its own drafts are worth."""
        if not self._has_branch:
            self.inner.observe(rows, choice, tokens, seconds)

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> bool:
        """Without a reference, for now."""
        self.references.put(row, (), len(text))
        return self.inner.begin(row, text, limit, source)

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """References go with their rows."""
        self.references.copy_rows(sources, targets)
        self.inner.copy_rows(sources, targets, most)

    def make_room(self, rows: int, slots: int) -> None:
        """For the references of more rows; they need no more room for longer texts."""
        self.references.make_room(rows)
        self.inner.make_room(rows, slots)

    def _longest(self, rows: int) -> int:
        return max(1, min(LENGTH, _TOGETHER // rows)) if self.drafter.races else LENGTH


@dataclass(frozen=True, slots=True)
class _Branch:
    """What follows the texts if they go on like their references."""

    tokens: Tensor  # (B, L)
    count: Tensor  # (B,) int64: how many of them to draft
    predicted: Tensor  # (B, L + 1): what the reference says of the next tokens, drafted or not; -1 where nothing
    is_given: Tensor  # (B, 1) bool: the tokens were given for this step alone


_TABLES = {"tokens": -1, "size": 0, "start": 0, "since": 0, "place": 0, "reach": 0, "given": -1}


class _References:
    """The references of R rows, and where each row's text stands in its own.

    `place` is the token of the reference that should follow the first `since` tokens of the row's text. When n tokens
    have come, the next place is n tokens further on: for certain if they were all as predicted, else the place behind
    the longest match of the last tokens of the text is searched, the nearest of equals. An edited copy mostly goes on
    close by, so that one token is enough of a match there.

    `reach` is how many tokens to draft: a few at first, `LENGTH` after a step whose tokens were all predicted, and none
    after a step whose first token was not. What is predicted is compared with what comes whether it was drafted or not,
    so that a reference which is right again is drafted again, and one that is wrong costs next to nothing.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self.device, self.version = device, 0
        with torch.inference_mode(False):
            self.tokens = torch.full((rows, 64), -1, device=device)  # (R, M), padded with -1
            self.size = torch.zeros(rows, dtype=torch.int64, device=device)
            self.start, self.since = self.size.clone(), self.size.clone()  # text before the reference begins to count
            self.place, self.reach = self.size.clone(), self.size.clone()
            self.given = torch.full((rows, LENGTH), -1, device=device)  # for the next step alone
        self._sizes = [0] * rows  # the same on the host

    @torch.inference_mode(False)
    def put(self, row: int, tokens: Sequence[int], after: int) -> None:
        """The reference of a row, which counts behind the first `after` tokens of its text."""
        size, room = len(tokens), self.tokens.shape[1]
        if size > room:
            wide = 1 << (size - 1).bit_length()
            self.tokens = torch.nn.functional.pad(self.tokens, (0, wide - room), value=-1)
            self.version += 1
        self.tokens[row] = -1
        if size:
            self.tokens[row, :size] = copy_to_device(list(tokens), self.device)
        for table, value in (("size", size), ("start", after), ("since", after), ("place", 0), ("reach", _FEW)):
            getattr(self, table)[row] = value
        self._sizes[row] = size
        self.give(row, ())

    def give(self, row: int, tokens: Sequence[int]) -> None:
        """Tokens of a row for the next step alone."""
        used = list(tokens[:LENGTH])
        self.given[row] = copy_to_device([*used, *[-1] * (LENGTH - len(used))], self.device)

    def copy_rows(self, sources: list[int], targets: list[int]) -> None:
        """Some rows take the places of others."""
        source, target = copy_to_device(sources, self.device), copy_to_device(targets, self.device)
        for name in _TABLES:
            table: Tensor = getattr(self, name)
            table[target] = table[source]
        for row, size in zip(targets, [self._sizes[row] for row in sources], strict=True):
            self._sizes[row] = size

    @torch.inference_mode(False)
    def make_room(self, rows: int) -> None:
        """For so many rows at least."""
        extra = rows - len(self.size)
        if extra <= 0:
            return
        for name, value in _TABLES.items():
            table: Tensor = getattr(self, name)
            setattr(self, name, torch.cat([table, table.new_full((extra, *table.shape[1:]), value)]))
        self._sizes += [0] * extra
        self.version += 1

    def follow(self, texts: TextState, active: Tensor, longest: int) -> _Branch:
        """Move on to where the texts are now; what follows there, of which at most `longest` tokens are drafted."""
        rows = len(active)
        if self.device.type == "cpu" and not any(self._sizes[:rows]):
            predicted = torch.full((rows, LENGTH + 1), -1)
        else:
            self._move(texts, active)
            predicted = self._read(self.place[:rows], LENGTH + 1)
        given = self.given[:rows]
        is_given = given[:, :1] >= 0
        tokens = torch.where(is_given, given, predicted[:, :-1])
        most = torch.where(is_given[:, 0], LENGTH, self.reach[:rows]).clamp_max(longest)
        count = torch.minimum((tokens >= 0).sum(-1), most)
        given.masked_fill_(active[:, None], -1)
        return _Branch(tokens, count, predicted, is_given)

    def _read(self, place: Tensor, count: int) -> Tensor:
        """(B, count): the tokens of each reference from a place (B,) on, padded with -1."""
        at = place[:, None] + cached_arange(count, self.device)
        found = self.tokens[: len(place)].gather(1, at.clamp_max(self.tokens.shape[1] - 1))
        return torch.where(at < self.size[: len(place), None], found, -1)

    def _move(self, texts: TextState, active: Tensor) -> None:
        """Compare what has come with what was predicted, and go to the place where the text goes on."""
        rows, length = len(active), texts.length
        place, since, reach = self.place[:rows], self.since[:rows], self.reach[:rows]
        fresh = length - since
        places = cached_arange(LENGTH + 1, self.device)
        at = (since[:, None] + places).clamp_max(texts.tokens.shape[1] - 1)
        same = (texts.tokens.gather(1, at) == self._read(place, LENGTH + 1)) & (places < fresh[:, None])
        right = same.long().cumprod(-1).sum(-1)
        is_right, expected = right == fresh, torch.minimum(place + fresh, self.size[:rows])
        if self.device.type == "cpu" and bool((is_right | ~active).all()):
            found = expected
        else:
            found = torch.where(is_right, expected, self._search(texts, expected))
        longer = torch.where(is_right & (reach > 0), LENGTH, reach.clamp_min(_FEW))
        longer = torch.where(fresh == 0, reach, torch.where(right > 0, longer, 0))
        for table, value in ((place, found), (reach, longer), (since, length)):
            table.copy_(torch.where(active, value, table))

    def _search(self, texts: TextState, expected: Tensor) -> Tensor:
        """(B,): the place behind the best match of each text's last tokens, and the expected one (B,) if none is."""
        rows = len(expected)
        widest = max(self._sizes[:rows]) if self.device.type == "cpu" else self.tokens.shape[1]
        tokens, places = self.tokens[:rows, :widest], cached_arange(widest + 1, self.device)
        matched = torch.zeros(rows, widest + 1, dtype=torch.int64, device=self.device)
        run = torch.ones_like(matched, dtype=torch.bool)
        for back in range(1, _MATCH + 1):
            at = texts.length[:, None] - back
            last = texts.tokens.gather(1, at.clamp_min(0))
            before = torch.nn.functional.pad(tokens, (back, 0), value=-1)[:, : widest + 1]
            run = run & (before == last) & (at >= self.start[:rows, None])
            matched = matched + run
        ahead = places - expected[:, None]
        matched = torch.where((ahead.abs() <= _NEAR) | (matched == _MATCH), matched, 0)
        order = 2 * ahead.abs() - (ahead > 0).long()  # the nearest first, and of two the one ahead
        return (matched * (2 * widest + 2) - order).argmax(-1)


def _chain(root: Tensor, tokens: Tensor, count: Tensor) -> Draft:
    """A branch (B, L) below each root, of which `count` (B,) tokens are drafted; no longer than needed where the host
    need not wait for the answer."""
    if root.device.type == "cpu":
        tokens = tokens[:, : int(count.max())]
    length = tokens.shape[1]
    alive = torch.nn.functional.pad(cached_arange(length, root.device) < count[:, None], (1, 0), value=True)
    words = torch.where(alive, torch.cat([root[:, None], tokens], 1), 0)
    parents = (cached_arange(length + 1, root.device) - 1).clamp_min(0) * alive
    fixed = alive & (cached_arange(length + 1, root.device) > 0)
    return Draft(words, parents, alive, fixed, None, "fixed", max(length, 1), 1)


def _beside(draft: Draft, branch: Draft, siblings: Siblings) -> tuple[Draft, Tensor]:
    """A draft with a branch beside its tree, of which no node goes, and the node of the draft that each node was."""
    if draft.tokens.shape[1] == 1:
        return replace(branch, siblings=siblings), torch.full_like(branch.tokens, -1)
    merged = merge([draft, branch], siblings)
    return merged.draft, merged.origins[0]
