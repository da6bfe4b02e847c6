"""Drafts from a prediction: a text that the row's answer will probably repeat, with some edits.

The tokens that continue the prediction are drafted as a branch in addition to the tree of another drafter, and share
nodes with it. The tables are on the device and are changed in place, because captured steps refer to their addresses.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spectr.draft.adaptive import SwitchingDrafter
from spectr.draft.delegating import DelegatingDrafting
from spectr.draft.mixed import merge
from spectr.draft.none import NoDrafter
from spectr.draft.traits import DrafterTraits
from spectr.rows import cached_arange, copy_to_device
from spectr.types import ORIGINS, Draft, Drafter, Drafting, Layers, Opening, Scene, Siblings, TextState
from spectr.verify import Card

__all__ = ["LENGTH", "PredictionDrafter", "PredictionDrafting", "Predictions", "fits"]

LENGTH = 16
"""The most tokens of the branch."""

_FIRST_LENGTH = 8  # tokens of a branch until a whole branch was right
_ALL_ROWS = 128  # the most tokens of the branches of all rows, where their length may depend on the number of rows
_MATCH = 4  # tokens of a match that are compared; a match far from the expected place must have all of them
_NEAR = 12  # tokens around the expected place where a shorter match is enough


@dataclass(frozen=True, slots=True)
class PredictionDrafter:
    """Drafts with another drafter, and adds a branch from the row's prediction. For rules that need no draft
    distributions."""

    drafter: Drafter
    races: bool = False  # under the race, whose text does not depend on drafts, drafts may depend on the other rows

    @property
    def name(self) -> str:
        """The name of the other drafter, which is the one the user chose."""
        return self.drafter.name

    @property
    def origin(self) -> str:
        """The origin of the other drafter's drafts; those of the branch have their own."""
        return DrafterTraits(self.drafter).origin

    @property
    def drafters(self) -> Sequence[Drafter]:
        """The drafters that the other drafter chooses between, if it does."""
        return DrafterTraits(self.drafter).drafters

    @property
    def siblings(self) -> Siblings:
        """How children are drawn: a branch is a fixed set."""
        return "fixed" if self.drafter.siblings == "fixed" else "race"

    @property
    def nodes(self) -> int:
        """The nodes of the other drafter's tree and of the branch."""
        return self.drafter.nodes + LENGTH

    @property
    def scratch_slots(self) -> int:
        """The slots that the other drafter needs, and the branch."""
        return DrafterTraits(self.drafter).scratch_slots + LENGTH

    @property
    def gives_laws(self) -> bool:
        """False: the branch has no distribution."""
        return False

    @property
    def capturable(self) -> bool:
        """Whether the other drafter is; the branch needs nothing from the host."""
        return DrafterTraits(self.drafter).capturable

    @property
    def feature_layers(self) -> Layers | None:
        """The layers whose features the other drafter reads."""
        return DrafterTraits(self.drafter).feature_layers

    def open(self, opening: Opening) -> "PredictionDrafting":
        """Open the other drafter and tables for predictions."""
        return PredictionDrafting(self, self.drafter.open(opening), opening)


def fits(drafter: Drafter, card: Card) -> bool:
    """Whether a rule takes a branch without a draft distribution in addition to a drafter's tree: race and match do."""
    return card.tree and not card.needs_laws and PredictionDrafter(drafter).siblings in card.siblings


class PredictionDrafting(DelegatingDrafting):
    """The drafting of the other drafter, and the predictions of the rows.

    A row begins without a prediction. `set_prediction` sets one until the row ends, and `set_next_tokens` sets tokens
    that are drafted instead in the next step only.
    """

    def __init__(self, drafter: PredictionDrafter, inner: Drafting, opening: Opening) -> None:
        super().__init__(inner)
        self.drafter, self.predictions = drafter, Predictions(opening.rows, torch.device(opening.device))
        self._selects = isinstance(drafter.drafter, SwitchingDrafter) and drafter.drafter.observe is not None
        self._has_branch = False  # in the last step some row had a branch
        self._is_alone = False  # in the last step the other drafter was left out
        self._drafter_index = 0  # what `choose` returned for the next step
        # (B, N): the node that each node was in the other drafter's tree; None: the same
        self._origin: Tensor | None = None

    @property
    def version(self) -> int:
        """A number that changes when a table is replaced: captured steps know tables by their addresses."""
        return self.predictions.version

    def set_prediction(self, row: int, tokens: Sequence[int], after: int) -> None:
        """Set the row's prediction, which is drafted until the row ends. It continues the first `after` tokens of the
        row's text; tokens of the text behind those were generated before, and are searched for in it."""
        self.predictions.put(row, tokens, after)

    def set_next_tokens(self, row: int, tokens: Sequence[int]) -> None:
        """Set the tokens to draft in the next step only, at most `LENGTH`, after the row's present text. Call it
        between steps, in lanes that read steps at once, so that the present text is known. A second call replaces the
        tokens, and an empty sequence withdraws them."""
        self.predictions.put_next(row, tokens)

    def choose(self, rows: int) -> int:
        """Let the other drafter choose, and remember its choice."""
        self._drafter_index = self.inner.choose(rows)
        return self._drafter_index

    def propose(self, scene: Scene) -> Draft:
        """Draft the other drafter's tree with the branch; the draft also has the predicted tokens. An adaptive
        drafter, which may select plain decoding, is left out of steps in which all rows have a branch."""
        branch = self.predictions.follow(scene.texts, scene.active, self._longest(len(scene.root)))
        chain = _chain(scene.root, branch.tokens, branch.count)
        self._has_branch = chain.tokens.shape[1] > 1
        may_skip = self._selects and self._has_branch and scene.root.device.type == "cpu"
        self._is_alone = may_skip and bool(((branch.count > 0) | ~scene.active).all())
        draft = NoDrafter().propose(scene) if self._is_alone else self.inner.propose(scene)
        if self.drafter.races and not self._has_branch:
            merged, self._origin = draft, None
        else:  # under other rules coins depend on node numbers, which must not depend on what other rows draft
            merged, self._origin = _with_branch(draft, chain, self.drafter.siblings)
        origin = self._origin_of(draft, branch) if scene.wants_laws else None
        return replace(merged, predicted=branch.predicted, origin=origin)

    def _origin_of(self, draft: Draft, branch: "_Branch") -> Tensor | None:
        """(B, N): the origin of each node of the last tree; None if all are the other drafter's."""
        if self._origin is None:
            return draft.origin
        default = ORIGINS.index(DrafterTraits(self.drafter).origin_of(self._drafter_index))
        own = torch.full_like(draft.tokens, default) if draft.origin is None else draft.origin
        code = torch.where(branch.is_next, ORIGINS.index("grammar"), ORIGINS.index("prediction"))
        return torch.where(self._origin >= 0, own.gather(1, self._origin.clamp_min(0)), code)

    def keep(self, path: Tensor) -> None:
        """Let the other drafter keep as much of the path as it drafted itself."""
        if self._is_alone:  # the other drafter reads what it missed when it drafts again
            return
        if self._origin is not None:
            path = torch.where(path >= 0, self._origin.gather(1, path.clamp_min(0)), -1)
        self.inner.keep(path)

    def observe(self, rows: int, drafter_index: int, tokens: float, seconds: float) -> None:
        """Pass measurements of steps without a branch to the other drafter; only those measure its own drafts."""
        if not self._has_branch:
            self.inner.observe(rows, drafter_index, tokens, seconds)

    def begin(self, row: int, text: Sequence[int], limit: int, source: Sequence[int] | None) -> None:
        """Begin a row without a prediction."""
        self.predictions.put(row, (), len(text))
        self.inner.begin(row, text, limit, source)

    def copy_rows(self, sources: list[int], targets: list[int], most: int) -> None:
        """Copy the predictions of rows, and the rows of the other drafter."""
        self.predictions.copy_rows(sources, targets)
        self.inner.copy_rows(sources, targets, most)

    def make_room(self, rows: int, slots: int) -> None:
        """Allocate room for more rows; predictions do not depend on `slots`."""
        self.predictions.make_room(rows)
        self.inner.make_room(rows, slots)

    def _longest(self, rows: int) -> int:
        return max(1, min(LENGTH, _ALL_ROWS // rows)) if self.drafter.races else LENGTH


@dataclass(frozen=True, slots=True)
class _Branch:
    """The tokens that follow the texts if they continue like their predictions."""

    tokens: Tensor  # (B, L)
    count: Tensor  # (B,) int64: how many of them to draft
    predicted: Tensor  # (B, L + 1): the next tokens of the prediction, drafted or not, padded with -1
    is_next: Tensor  # (B, 1) bool: whether the tokens were set for this step only


_TABLES = {"tokens": -1, "size": 0, "start": 0, "since": 0, "place": 0, "reach": 0, "next_tokens": -1}


class Predictions:
    """The predictions of R rows, and the position of each row's text in its prediction.

    `place` is the index of the predicted token that should follow the first `since` tokens of the row's text. After n
    more tokens, `place` advances by n if they were all as predicted. Otherwise it becomes the place behind the longest
    match of the last tokens of the text, the nearest one among equals. An edited copy mostly continues close by, so a
    match of one token is enough there.

    `reach` is how many tokens to draft: a few at first, `LENGTH` after a step whose tokens were all predicted, and none
    after a step whose first token was not. Predicted tokens are compared with the text whether they were drafted or
    not, so a prediction that is right again is drafted again, and a wrong one costs almost nothing.
    """

    def __init__(self, rows: int, device: torch.device) -> None:
        self.device, self.version = device, 0
        with torch.inference_mode(False):
            self.tokens = torch.full((rows, 64), -1, device=device)  # (R, M), padded with -1
            self.size = torch.zeros(rows, dtype=torch.int64, device=device)
            self.start, self.since = self.size.clone(), self.size.clone()  # tokens of text before the prediction begins
            self.place, self.reach = self.size.clone(), self.size.clone()
            self.next_tokens = torch.full((rows, LENGTH), -1, device=device)  # for the next step only
        self._sizes = [0] * rows  # the same on the host

    @torch.inference_mode(False)
    def put(self, row: int, tokens: Sequence[int], after: int) -> None:
        """Set the prediction of a row, which begins after the first `after` tokens of its text."""
        size, room = len(tokens), self.tokens.shape[1]
        if size > room:
            wide = 1 << (size - 1).bit_length()
            self.tokens = torch.nn.functional.pad(self.tokens, (0, wide - room), value=-1)
            self.version += 1
        self.tokens[row] = -1
        if size:
            self.tokens[row, :size] = copy_to_device(list(tokens), self.device)
        for table, value in (
            ("size", size),
            ("start", after),
            ("since", after),
            ("place", 0),
            ("reach", _FIRST_LENGTH),
        ):
            getattr(self, table)[row] = value
        self._sizes[row] = size
        self.put_next(row, ())

    def put_next(self, row: int, tokens: Sequence[int]) -> None:
        """Set the tokens that a row drafts in the next step only."""
        used = list(tokens[:LENGTH])
        self.next_tokens[row] = copy_to_device([*used, *[-1] * (LENGTH - len(used))], self.device)

    def copy_rows(self, sources: list[int], targets: list[int]) -> None:
        """Copy rows `sources` to rows `targets`."""
        source, target = copy_to_device(sources, self.device), copy_to_device(targets, self.device)
        for name in _TABLES:
            table: Tensor = getattr(self, name)
            table[target] = table[source]
        for row, size in zip(targets, [self._sizes[row] for row in sources], strict=True):
            self._sizes[row] = size

    @torch.inference_mode(False)
    def make_room(self, rows: int) -> None:
        """Allocate room for at least `rows` rows."""
        extra = rows - len(self.size)
        if extra <= 0:
            return
        for name, value in _TABLES.items():
            table: Tensor = getattr(self, name)
            setattr(self, name, torch.cat([table, table.new_full((extra, *table.shape[1:]), value)]))
        self._sizes += [0] * extra
        self.version += 1

    def follow(self, texts: TextState, active: Tensor, longest: int) -> _Branch:
        """Advance the places to the ends of the texts, and return the branch there, of at most `longest` tokens."""
        rows = len(active)
        if self.device.type == "cpu" and not any(self._sizes[:rows]):
            predicted = torch.full((rows, LENGTH + 1), -1)
        else:
            self._move(texts, active)
            predicted = self._read(self.place[:rows], LENGTH + 1)
        next_tokens = self.next_tokens[:rows]
        is_next = next_tokens[:, :1] >= 0
        tokens = torch.where(is_next, next_tokens, predicted[:, :-1])
        most = torch.where(is_next[:, 0], LENGTH, self.reach[:rows]).clamp_max(longest)
        count = torch.minimum((tokens >= 0).sum(-1), most)
        next_tokens.masked_fill_(active[:, None], -1)
        return _Branch(tokens, count, predicted, is_next)

    def _read(self, place: Tensor, count: int) -> Tensor:
        """(B, count): the tokens of each prediction from a place (B,) on, padded with -1."""
        at = place[:, None] + cached_arange(count, self.device)
        found = self.tokens[: len(place)].gather(1, at.clamp_max(self.tokens.shape[1] - 1))
        return torch.where(at < self.size[: len(place), None], found, -1)

    def _move(self, texts: TextState, active: Tensor) -> None:
        """Compare new tokens with the predictions, and move each place to where its text continues."""
        rows, length = len(active), texts.length
        place, since, reach = self.place[:rows], self.since[:rows], self.reach[:rows]
        new = length - since
        places = cached_arange(LENGTH + 1, self.device)
        at = (since[:, None] + places).clamp_max(texts.tokens.shape[1] - 1)
        same = (texts.tokens.gather(1, at) == self._read(place, LENGTH + 1)) & (places < new[:, None])
        right = same.long().cumprod(-1).sum(-1)
        is_right, expected = right == new, torch.minimum(place + new, self.size[:rows])
        if self.device.type == "cpu" and bool((is_right | ~active).all()):
            following = expected
        else:
            following = torch.where(is_right, expected, self._search(texts, expected))
        longer = torch.where(is_right & (reach > 0), LENGTH, reach.clamp_min(_FIRST_LENGTH))
        longer = torch.where(new == 0, reach, torch.where(right > 0, longer, 0))
        for table, value in ((place, following), (reach, longer), (since, length)):
            table.copy_(torch.where(active, value, table))

    def _search(self, texts: TextState, expected: Tensor) -> Tensor:
        """(B,): the place behind the best match of each text's last tokens; the expected place (B,) if there is
        none."""
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
        order = 2 * ahead.abs() - (ahead > 0).long()  # nearest first, and of two equally near the one ahead
        return (matched * (2 * widest + 2) - order).argmax(-1)


def _chain(root: Tensor, tokens: Tensor, count: Tensor) -> Draft:
    """A draft with the first `count` (B,) tokens of a branch (B, L) below each root. On a CPU it is cut to the longest
    branch; elsewhere the host would have to wait for the counts."""
    if root.device.type == "cpu":
        tokens = tokens[:, : int(count.max())]
    length = tokens.shape[1]
    alive = torch.nn.functional.pad(cached_arange(length, root.device) < count[:, None], (1, 0), value=True)
    words = torch.where(alive, torch.cat([root[:, None], tokens], 1), 0)
    parents = (cached_arange(length + 1, root.device) - 1).clamp_min(0) * alive
    fixed = alive & (cached_arange(length + 1, root.device) > 0)
    return Draft(words, parents, alive, fixed, None, "fixed", max(length, 1), 1)


def _with_branch(draft: Draft, branch: Draft, siblings: Siblings) -> tuple[Draft, Tensor]:
    """Add a branch to a draft, all of whose nodes stay; return the tree and the node of the draft that each node
    was."""
    if draft.tokens.shape[1] == 1:
        return replace(branch, siblings=siblings), torch.full_like(branch.tokens, -1)
    merged = merge([draft, branch], siblings)
    return merged.draft, merged.origins[0]
