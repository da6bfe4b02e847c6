"""Plans for trees, and drawing a tree by a plan from the logits of any drafter."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from spectr.checks import whole
from spectr.errors import ArgumentError
from spectr.rows import constant
from spectr.transport.laws import law_of, zero_undefined
from spectr.trees import Budget, Frontier, Growth, LogitsOf, Shape, as_shape, grow, prune, static_frontier
from spectr.types import Draft, Scene, Siblings

__all__ = ["DRAFT_MISMATCH", "MOST_NODES", "Drawn", "Plan", "Planned", "beam_for", "chains_for", "check_size", "draw"]

DRAFT_MISMATCH = 0.75
"""An assumed distance between the raw logits of drafter and target. The probability that a node wins the race is
estimated as the softmax of (logits + noise) / this. The training objective `race` fits drafters to this score."""

MOST_NODES = 4096
"""The most nodes of a tree. A call has a mask of the square of their number, and a distribution for each."""

_BEAMS = {2: (1, 1), 4: (2, 3), 8: (4, 4), 16: (6, 5), 32: (8, 6), 64: (16, 8), 128: (16, 8), 256: (24, 9)}


def check_size(nodes: int) -> None:
    """Raise ArgumentError if a tree with so many nodes is too large."""
    if nodes > MOST_NODES:
        raise ArgumentError(
            f"a tree must have at most {MOST_NODES} nodes, the root included, got more; lower nodes, drafts or length, "
            "or the branching numbers of tree"
        )


def beam_for(nodes: int) -> tuple[int, int]:
    """Return how many nodes to expand at each depth, and how many depths, for a pruned tree of `nodes` nodes.

    >>> beam_for(64)
    (16, 8)
    """
    return next((beam for most, beam in _BEAMS.items() if nodes <= most), _BEAMS[256])


def chains_for(nodes: int, longest: int = 8) -> tuple[int, int]:
    """Return how many chains of how many tokens fill a tree of `nodes` nodes: up to eight chains of at least four
    tokens, and more chains where they would be longer than `longest`.

    >>> chains_for(2), chains_for(16), chains_for(64), chains_for(128)
    ((1, 1), (3, 5), (9, 7), (15, 8))
    """
    drafts = max(1, min(8, (nodes - 1) // 4))
    length = min(longest, max(1, (nodes - 1) // drafts))
    return max(1, (nodes - 1) // length), length


@dataclass(frozen=True, slots=True)
class Plan:
    """The shape of a tree and how siblings are drawn: `drafts` chains of `length` tokens, or a `tree` given by its
    branching numbers. With siblings `race` or `fixed` and no `tree`, the tree is pruned: at each of `length` depths the
    best `drafts` nodes are expanded, and the best `nodes` nodes are kept."""

    siblings: Siblings = "race"
    drafts: int = 4
    length: int = 4
    nodes: int | None = None  # the most nodes, including the root; None: as many as the chains have
    tree: tuple[int, ...] | Shape | None = None  # branching numbers, or any shape
    shared: int | None = None  # nodes of all rows of a batch together, at least two each; for pruned trees

    def __post_init__(self) -> None:
        for name in ("drafts", "length"):
            whole(name, getattr(self, name), 1)
        if self.shared is not None:
            whole("shared", self.shared, 1)
        for count in () if self.tree is None or isinstance(self.tree, Shape) else self.tree:
            whole("a branching number of tree", count, 1)
        if self.nodes is not None and whole("nodes", self.nodes) < 2:
            raise ArgumentError(
                f"nodes must be at least 2 (the root and one draft), got {self.nodes}; use drafter='none' to disable "
                "drafting"
            )
        check_size(self._most)
        if self.nodes is not None and not self.prunes and len(self.shape.parents) > self.nodes:
            raise ArgumentError(
                f"the tree must fit into nodes={self.nodes}, it has {len(self.shape.parents)}; "
                "lower drafts or length, or raise nodes"
            )

    @property
    def _most(self) -> int:
        """The most nodes of a tree, or of the chains that a pruned one is chosen from, counted without making it."""
        if isinstance(self.tree, Shape):
            return len(self.tree.parents)
        if self.tree is not None:
            found = width = 1
            for count in self.tree[:MOST_NODES]:
                width = min(width * count, MOST_NODES)
                found += width
            return found
        return max(self.nodes or 0, 1 + self.drafts * self.length)

    def for_rows(self, rows: int) -> "Plan":
        """Return the plan of each row in a batch of `rows` rows, which share `shared` nodes.

        >>> Plan(drafts=16, length=4, nodes=64, shared=128).for_rows(16)
        Plan(siblings='race', drafts=4, length=4, nodes=8, tree=None, shared=None)
        """
        if self.shared is None or not self.prunes:
            return self
        nodes = 1 << max(2, self.shared // rows).bit_length() - 1  # powers of two: each size has its own kernels
        if nodes >= self.capacity:
            return replace(self, shared=None)
        drafts, length = beam_for(nodes)
        return replace(self, drafts=min(drafts, self.drafts), length=min(length, self.length), nodes=nodes, shared=None)

    @property
    def prunes(self) -> bool:
        """Whether the shape of the tree is chosen while it is drawn."""
        return self.siblings in ("race", "fixed") and self.tree is None

    @property
    def shape(self) -> Shape:
        """The shape of a tree that is not pruned."""
        return Shape.chains(self.drafts, self.length) if self.tree is None else as_shape(self.tree)

    @property
    def budget(self) -> Budget:
        """The size of a pruned tree."""
        return Budget(self.capacity, self.drafts, self.length)

    @property
    def depth(self) -> int:
        """The most tokens of a path below the root."""
        return self.length if self.prunes else self.shape.depth

    def check_depth(self, most: int, why: str) -> None:
        """Raise ArgumentError if a path may have more than `most` tokens; the error says `why`."""
        if self.depth > most:
            raise ArgumentError(
                f"drafts must be at most {most} tokens long, {why}, got {self.depth}; lower length, or the depth of "
                "tree"
            )

    @property
    def capacity(self) -> int:
        """The most nodes of a tree, including the root."""
        if not self.prunes:
            return len(self.shape.parents)
        return self.nodes or 1 + self.drafts * self.length

    @property
    def scored(self) -> int:
        """The number of nodes that a drafter has to score, including the root."""
        return self.budget.scored if self.prunes else sum(map(len, self.shape.parents_by_depth))


class Planned:
    """A mixin: the properties of a drafter that follow from its plan."""

    __slots__ = ()
    plan: Plan

    @property
    def siblings(self) -> Siblings:
        """How the children of a node are drawn."""
        return self.plan.siblings

    @property
    def nodes(self) -> int:
        """The most nodes of a tree, including the root."""
        return self.plan.capacity

    @property
    def gives_laws(self) -> bool:
        """Whether drafts carry their distributions: they do unless the tree is pruned."""
        return not self.plan.prunes


@dataclass(frozen=True, slots=True)
class Drawn:
    """A draft, and the index (B, N) of each node in the order of scoring, -1 for nodes that were not scored."""

    draft: Draft
    scored: Tensor


def draw(plan: Plan, scene: Scene, logits_of: LogitsOf) -> Drawn:
    """Draw a tree by `plan` from a drafter's raw logits."""
    plan = plan.for_rows(len(scene.root))
    return _pruned(plan, scene, logits_of) if plan.prunes else _grown(plan, scene, logits_of)


def _grown(plan: Plan, scene: Scene, logits_of: LogitsOf) -> Drawn:
    shape, policy = plan.shape, scene.ranking_logits if plan.siblings in ("fixed", "race") else scene.draft_logits

    def law_at(tokens: Tensor, nodes: list[int]) -> Tensor:
        frontier = static_frontier(shape, tokens, nodes)
        return law_of(policy(zero_undefined(logits_of(frontier))[0], frontier.paths))

    draft = grow(scene.root, law_at, Growth(shape, plan.siblings), scene.coins)
    order = {node: at for at, node in enumerate(n for level in shape.parents_by_depth for n in level)}
    scored = constant(tuple(order.get(node, -1) for node in range(len(shape.parents))), scene.root.device)
    return Drawn(draft, scored.expand_as(draft.tokens))


def _pruned(plan: Plan, scene: Scene, logits_of: LogitsOf) -> Drawn:
    """Draw a pruned tree. Nodes are ranked by their probability to win the race given its noise, or for fixed siblings
    by their probability."""
    laws: list[Tensor] = []
    races = plan.siblings == "race"
    score_scale = torch.where(scene.temperature > 0, scene.temperature, 1.0).float() / DRAFT_MISMATCH
    score_scale = score_scale if races else torch.ones_like(score_scale)

    def best_of(frontier: Frontier, count: int) -> tuple[Tensor, Tensor]:
        logits = scene.ranking_logits(logits_of(frontier), frontier.paths)
        if scene.wants_laws:
            laws.append(law_of(zero_undefined(logits)[0]))
        depth = torch.full_like(scene.root, frontier.depth)[:, None]
        return scene.coins.likeliest(logits, depth if races else None, score_scale, count)

    drawn = prune(scene.root, best_of, plan.budget)
    draft = drawn.draft
    if plan.siblings == "fixed":
        fixed = draft.alive & (torch.arange(draft.alive.shape[1], device=draft.alive.device) > 0)
        draft = replace(draft, siblings="fixed", fixed=fixed)
    if laws:
        every = torch.cat(laws, 1)  # (B, S, V), in the order scored
        at = drawn.scored.clamp_min(0)[..., None].expand(-1, -1, every.shape[-1])
        draft = replace(draft, laws=every.gather(1, at))
    return Drawn(draft, drawn.scored)
