"""What drafts would have been accepted, at every position of real texts.

With the race the text does not depend on drafts. So it is generated plainly, drafters are asked at every position, and
what they drafted is compared with what then came. Steps of any plan are then walked through the text: tokens per call
come out as they would have been counted in generation with that plan.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from spectr.draft.mixed import Mixed
from spectr.draft.none import NoDrafter
from spectr.draft.plan import _SPREAD
from spectr.engine import Engine, Job
from spectr.tune.pool import Level, Places, Pool, accepted
from spectr.types import Draft, Drafter, Drafting, Layers, Opening, Scene, Siblings
from spectr.verify import rule as named_rule

__all__ = ["Pruning", "Record", "Text", "Tree", "Yield", "census", "pool_yields", "tree_yield", "walk"]


@dataclass(frozen=True, slots=True)
class Tree:
    """A draft of one row, as it was."""

    nodes: int
    children: dict[tuple[int, int], int]  # (node, token) → the child that carries it

    def accepted(self, text: Sequence[int]) -> int:
        """How far the text goes along it."""
        node, length = 0, 0
        while length < len(text) and (node, text[length]) in self.children:
            node, length = self.children[node, text[length]], length + 1
        return length


Record = Pool | Tree
"""What one drafter drafted at one position: a pool for one that prunes, else the tree itself."""


@dataclass(frozen=True, slots=True)
class Text:
    """What was generated, and what each drafter had drafted before every token of it."""

    tokens: list[int]
    records: list[list[Record]]


@dataclass(slots=True)
class _Spy:
    """Looks on while a pruned tree is drawn: what every frontier was ranked by."""

    scene: Scene
    keep: int  # children of a node
    spreads: tuple[float, ...]
    siblings: Siblings
    found: list[tuple[Tensor, Tensor, Tensor, Tensor]]  # by depth: paths, tokens, scores, norms

    def look(self) -> Scene:
        """The scene as the drafter sees it."""
        return replace(self.scene, ranked=self._ranked)

    def _ranked(self, logits: Tensor, paths: Tensor) -> Tensor:
        ranked, heat = self.scene.ranked(logits, paths), self.scene.heat
        depth = torch.full_like(self.scene.root, paths.shape[-1])[:, None]
        noisy = self.siblings == "race" and heat > 0
        sharp = (heat or 1.0) / _SPREAD if self.siblings == "race" else 1.0
        scores = (self.scene.coins.roughly(ranked, depth) if noisy else ranked).double() * sharp
        norms = torch.stack([(scores / spread).logsumexp(-1) for spread in self.spreads], -1)
        best = scores.topk(min(self.keep, scores.shape[-1]), -1)
        self.found.append((paths.cpu(), best.indices.cpu(), best.values.cpu(), norms.cpu()))
        return ranked

    def pools(self, rows: int) -> list[Record]:
        """One a row."""
        return [Pool([_level(found, row) for found in self.found], self.spreads) for row in range(rows)]


def _level(found: tuple[Tensor, Tensor, Tensor, Tensor], row: int) -> Level:
    paths, tokens, scores, norms = (values[row] for values in found)
    return Level([tuple(path) for path in paths.tolist()], tokens.numpy(), scores.numpy(), norms.numpy())


def _trees(draft: Draft) -> list[Record]:
    found = list[Record]()
    for tokens, parents, alive in zip(draft.tokens.tolist(), draft.parents.tolist(), draft.alive.tolist(), strict=True):
        nodes = [node for node, living in enumerate(alive) if living and node]
        children = {(parents[node], tokens[node]): node for node in reversed(nodes)}  # of copies, the first
        found.append(Tree(1 + len(nodes), children))
    return found


@dataclass(frozen=True, slots=True)
class _Witness:
    """Asks every drafter at every position, keeps what they say, and drafts nothing."""

    drafters: Sequence[Drafter]
    spreads: tuple[float, ...]
    seen: dict[int, list[list[Record]]]  # by row, then position, then drafter
    name: ClassVar[str] = "witness"
    siblings: ClassVar[Siblings] = "fixed"
    gives_laws: ClassVar[bool] = False

    @property
    def nodes(self) -> int:
        """Room for those that draft in the target's cache."""
        return max(drafter.nodes for drafter in self.drafters)

    @property
    def wants_features(self) -> Layers | None:
        """As a mix of them would."""
        return Mixed(list(self.drafters)).wants_features

    def open(self, opening: Opening) -> Drafting:
        """Open all."""
        return _Witnessing(self, opening)


class _Witnessing:
    """Their draftings."""

    def __init__(self, witness: _Witness, opening: Opening) -> None:
        self.witness, self.rows = witness, list(range(len(opening.prompts)))
        self.draftings = [drafter.open(opening) for drafter in witness.drafters]

    def propose(self, scene: Scene) -> Draft:
        """The roots alone."""
        each = zip(self.witness.drafters, self.draftings, strict=True)
        drafted = [self._ask(drafter, drafting, scene) for drafter, drafting in each]
        for place, row in enumerate(self.rows):
            self.witness.seen.setdefault(row, []).append([records[place] for records in drafted])
        return NoDrafter().propose(scene)

    def _ask(self, drafter: Any, drafting: Drafting, scene: Scene) -> list[Record]:
        plan = getattr(drafter, "plan", None)
        if plan is None or not plan.prunes:
            return _trees(drafting.propose(scene))
        spy = _Spy(scene, plan.capacity - 1, self.witness.spreads, plan.siblings, [])
        drafting.propose(spy.look())
        return spy.pools(len(scene.texts))

    def keep(self, path: Tensor) -> None:
        """Nothing was accepted of what nobody saw."""
        for drafting in self.draftings:
            drafting.keep(torch.full_like(path, -1))

    def take_rows(self, rows: Tensor) -> None:
        """Of all."""
        for drafting in self.draftings:
            drafting.take_rows(rows)
        self.rows = [self.rows[row] for row in rows.tolist()]


def census(plain: Engine, drafters: Sequence[Drafter], spreads: tuple[float, ...], job: Job) -> list[Text]:
    """Generate with the race, to the stop tokens of `plain`, and note what each drafter drafts before every token.
    Prompts must be distinct. A drafter that prunes is asked for pools, normalised for `spreads`, others for trees."""
    witness = _Witness(drafters, spreads, {})
    found = Engine(plain.target, witness, named_rule("race"), plain.stops).generate(job)
    return [Text(result.tokens, witness.seen[row]) for row, result in enumerate(found)]


@dataclass(frozen=True, slots=True)
class Pruning:
    """A pruned tree."""

    nodes: int  # the root included
    depth: int
    beam: int
    spread: float


@dataclass(frozen=True, slots=True)
class Yield:
    """What steps gave."""

    tokens: int
    steps: int
    nodes: Counter[int]  # of the trees: how many steps had so many

    @property
    def block_efficiency(self) -> float:
        """Tokens per target call."""
        return self.tokens / self.steps if self.steps else 0.0


Look = Callable[[Text, int], tuple[int, int]]
"""A text and a position in it → draft tokens accepted there, and nodes of the tree."""


def walk(texts: Sequence[Text], look: Look) -> Yield:
    """The steps that would have led through the texts."""
    tokens, steps, nodes = 0, 0, Counter[int]()
    for text in texts:
        at = 0
        while at < len(text.tokens):
            accepted, size = look(text, at)
            at += accepted + 1
            steps += 1
            nodes[size] += 1
        tokens += len(text.tokens)
    return Yield(tokens, steps, nodes)


def tree_yield(texts: Sequence[Text], drafter: int) -> Yield:
    """Of a drafter, by its place in the records, that was asked for its trees."""

    def look(text: Text, at: int) -> tuple[int, int]:
        tree = text.records[at][drafter]
        assert isinstance(tree, Tree)
        return tree.accepted(text.tokens[at:]), tree.nodes

    return walk(texts, look)


def pool_yields(texts: Sequence[Text], drafter: int, budgets: Iterable[Pruning]) -> dict[Pruning, Yield]:
    """Of a drafter that was asked for pools, with each of these trees."""
    found, known = dict[Pruning, Yield](), dict[tuple[int, float], dict[tuple[int, int], Places]]()
    for budget in budgets:
        places = known.setdefault((budget.beam, budget.spread), {})

        def look(text: Text, at: int, budget: Pruning = budget, places: Any = places) -> tuple[int, int]:
            key = (id(text), at)
            if key not in places:
                pool = text.records[at][drafter]
                assert isinstance(pool, Pool)
                places[key] = pool.places(text.tokens[at : at + len(pool.levels)], budget.beam, budget.spread)
            return accepted(places[key], budget.nodes, budget.depth), budget.nodes

        found[budget] = walk(texts, look)
    return found
