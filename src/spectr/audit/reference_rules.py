"""Rules by their definitions: a second implementation, with which the engine's decisions are checked.

One row at a time, in plain Python over NumPy laws; it shares no code with `spectr.verify` or `spectr.trees`. A rule is
a function of a tree, of the laws at its nodes, and of the coins. The first of several nodes with the same text
represents all of them and has all their children, except in a traversal, which visits every node.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from spectr.audit.reference_coins import coin, noise
from spectr.audit.reference_couplings import Children, ReferenceCoupling, left_over, normalised, without

__all__ = ["Decision", "Decisions", "Laws", "ReferenceRule", "ReferenceVerdict", "Tree", "reference_rule"]

Numbers = npt.NDArray[np.float64]


class _Purpose(IntEnum):
    """What a coin decides, as encoded in its key."""

    CHILD = 2  # which child (or none) a node ends on
    BONUS = 3  # the token after the accepted path
    BLOCK = 4  # whether a path is kept this far


@dataclass(frozen=True, slots=True)
class Tree:
    """A row's draft; node 0 is the last committed token."""

    tokens: list[int]
    parents: list[int]
    alive: list[bool]
    fixed: list[bool]
    siblings: str
    width: int  # the largest number of nodes that a depth can have
    texts: list[tuple[int, ...]] = field(init=False)  # the tokens from below the root to each node
    first: list[int] = field(init=False)  # the first alive node with the same text
    below: list[list[int]] = field(init=False)  # at the first copy, the children of all copies

    def __post_init__(self) -> None:
        texts: list[tuple[int, ...]] = [()]
        known, first = dict[tuple[int, ...], int]({(): 0}), [0]
        below: list[list[int]] = [[] for _ in self.tokens]
        for node in range(1, len(self.tokens)):
            texts.append((*texts[self.parents[node]], self.tokens[node]))
            first.append(known.setdefault(texts[node], node) if self.alive[node] else node)
            if self.alive[node]:
                below[first[self.parents[node]]].append(node)
        for name, value in (("texts", texts), ("first", first), ("below", below)):
            object.__setattr__(self, name, value)

    def children(self, node: int) -> Children:
        """Return the drafts below a node that is the first copy of its text."""
        below = self.below[node]
        fixed = tuple(self.fixed[child] for child in below) if self.siblings in ("hybrid", "fixed") else None
        return Children(tuple(self.tokens[child] for child in below), fixed, self.width)

    def path(self, node: int) -> list[int]:
        """Return the nodes from the root to this one, as they were drafted."""
        return [0] if node == 0 else [*self.path(self.parents[node]), node]

    def at(self, text: tuple[int, ...]) -> int:
        """Return the first node with this text, which must have been drafted."""
        return next(node for node, own in enumerate(self.texts) if own == text and self.alive[node])

    def child(self, node: int, token: int) -> int | None:
        """Return the first child with this token, or None."""
        return next((self.first[child] for child in self.below[node] if self.tokens[child] == token), None)


class Laws(Protocol):
    """The laws at the nodes of a row's tree."""

    def logits(self, node: int) -> Numbers:
        """Return the target's logits after the policy, (V,); −inf for excluded tokens."""
        ...

    def target(self, node: int) -> Numbers:
        """Return the target's distribution, (V,)."""
        ...

    def draft(self, node: int) -> Numbers:
        """Return the law from which a node's children were drawn, (V,)."""
        ...

    def free_choice(self, node: int) -> int | None:
        """Return a token to select if it was drafted, at a node where any selection is correct; None elsewhere."""
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """A decision, its coin, and the interval of the coin that leads to it; or the winner's score of a race."""

    node: int
    what: str
    choice: int
    coin: float  # in a race: the winner's score
    low: float = 0.0
    high: float = 1.0


@dataclass(slots=True)
class Decisions:
    """The coins of one row in one step, and the decisions made with them."""

    seed: int
    committed: int  # tokens of the text before the step, prompt included
    made: list[Decision] = field(default_factory=list)

    def flip(self, chance: float, node: int) -> bool:
        """Decide whether a path is kept as far as this node."""
        value = coin(self.seed, self.committed, node, _Purpose.BLOCK)
        self.made.append(Decision(node, "block", int(value < chance), value, 0.0, chance))
        return value < chance

    def pick(self, weights: Numbers, node: int, purpose: _Purpose) -> int:
        """Draw an index in proportion to weights, by inverse CDF; 0 if they are all zero."""
        sums, value = weights.cumsum(), coin(self.seed, self.committed, node, purpose)
        last = int(np.searchsorted(sums, sums[-1]))  # the last index with a weight
        choice = min(int(np.searchsorted(sums, value * sums[-1], side="right")), last)
        total = sums[-1] if sums[-1] > 0 else 1.0
        low, high = (sums[choice] - weights[choice]) / total, sums[choice] / total
        self.made.append(Decision(node, purpose.name.lower(), choice, value, float(low), float(high)))
        return choice

    def race(self, logits: Numbers, node: int, depth: int) -> int:
        """Return the token that wins at a depth below the committed text."""
        tokens = np.flatnonzero(logits > -np.inf)
        scores = logits[tokens] + noise(self.seed, self.committed + depth, tokens)
        best = int(scores.argmax())
        self.made.append(Decision(node, "race", int(tokens[best]), float(scores[best])))
        return int(tokens[best])

    def score(self, logits: Numbers, token: int, depth: int) -> float:
        """Return the score of a token in a race."""
        return float(logits[token] + noise(self.seed, self.committed + depth, np.array([token]))[0])


@dataclass(frozen=True, slots=True)
class ReferenceVerdict:
    """A verdict: the accepted tokens and the one after them, and whether that one replaces a draft."""

    tokens: tuple[int, ...]
    accepted: int
    corrected: bool


Rule = Callable[[Tree, Laws, Decisions], ReferenceVerdict]


def _verdict(tree: Tree, end: int, bonus: int) -> ReferenceVerdict:
    return ReferenceVerdict((*tree.texts[end], bonus), len(tree.texts[end]), bool(tree.below[tree.first[end]]))


def _race(tree: Tree, laws: Laws, decisions: Decisions) -> ReferenceVerdict:
    """Emit the winner of every position; a path of the tree is kept as long as it consists of winners."""
    node = 0
    while True:
        winner = decisions.race(laws.logits(node), node, len(tree.texts[node]))
        child = tree.child(node, winner)
        if child is None:
            return _verdict(tree, node, winner)
        node = child


def _match(tree: Tree, laws: Laws, decisions: Decisions) -> ReferenceVerdict:
    """Draw every token from the target."""
    node = 0
    while True:
        token = decisions.pick(laws.target(node), node, _Purpose.BONUS)
        child = tree.child(node, token)
        if child is None:
            return _verdict(tree, node, token)
        node = child


def _slot(chances: Numbers, tree: Tree, laws: Laws, decisions: Decisions, node: int) -> int:
    """Return the index of the accepted draft below a node."""
    tokens, free = tree.children(node).tokens, laws.free_choice(node)
    return tokens.index(free) if free in tokens else decisions.pick(chances, node, _Purpose.CHILD)


def _walk(tree: Tree, laws: Laws, decisions: Decisions, *, coupling: ReferenceCoupling) -> ReferenceVerdict:
    """Let the coupling accept a child at each node; if it accepts none, draw from the residual."""
    node = 0
    while True:
        outcome = coupling.outcome(laws.target(node), laws.draft(node), tree.children(node))
        missed = max(0.0, 1 - outcome.ending.sum())
        slot = _slot(np.append(outcome.ending, missed), tree, laws, decisions, node)
        if slot == len(outcome.ending):
            return _verdict(tree, node, decisions.pick(outcome.residual, node, _Purpose.BONUS))
        node = tree.first[tree.below[node][slot]]


def _longest(tree: Tree, laws: Laws, decisions: Decisions, end: int, proposals: Sequence[Numbers]) -> ReferenceVerdict:
    """Block-verify the path to a node, given the law from which the token after each of its nodes was proposed.

    w is the probability of keeping at least that much, and the deepest success counts. Coins are keyed by the drafted
    nodes of the path, laws by the first nodes with the same text."""
    path = tree.path(end)
    targets = [laws.target(tree.first[node]) for node in path]
    kept, chances, length = [1.0], list[float](), len(path) - 1
    for depth in range(length):
        target, proposal, token = targets[depth], proposals[depth], tree.tokens[path[depth + 1]]
        missing = float(np.maximum(kept[depth] * target - proposal, 0).sum())
        scale = missing + 1 - kept[depth]
        chances.append(missing / scale if scale > 0 else 1.0)
        proposed = proposal[token] if proposal[token] > 0 else 1.0
        kept.append(min(1.0, kept[depth] * target[token] / proposed))
    chances.append(kept[length])
    last = max([depth for depth in range(1, length + 1) if decisions.flip(chances[depth], path[depth])], default=0)
    weights = targets[last] if last == length else left_over(kept[last] * targets[last], proposals[last])
    return _verdict(tree, path[last], decisions.pick(weights, path[last], _Purpose.BONUS))


def _block(tree: Tree, laws: Laws, decisions: Decisions) -> ReferenceVerdict:
    """Verify one chain as a whole."""
    alive = [node for node in range(len(tree.tokens)) if tree.alive[node]]
    end = max(alive, key=lambda node: len(tree.texts[node]))
    return _longest(tree, laws, decisions, end, [laws.draft(node) for node in tree.path(end)])


def _path_block(tree: Tree, laws: Laws, decisions: Decisions, *, coupling: ReferenceCoupling) -> ReferenceVerdict:
    """Select a path down to a leaf, and block-verify it with the laws of the selected tokens."""
    node, proposals = 0, list[Numbers]()
    while tree.below[node]:
        chosen = coupling.selection(laws.target(node), laws.draft(node), tree.children(node))
        proposals.append(chosen.law)
        slot = _slot(chosen.chance, tree, laws, decisions, node)
        node = tree.first[tree.below[node][slot]]
    return _longest(tree, laws, decisions, node, proposals)


@dataclass(slots=True)
class _Traversal:
    """The remaining laws while nodes are tested, leaves first."""

    tree: Tree
    laws: Laws
    decisions: Decisions
    children: list[list[int]]  # the children of each node; copies are separate
    target: dict[int, Numbers] = field(default_factory=dict)
    draft: dict[int, Numbers] = field(default_factory=dict)
    chance: dict[int, float] = field(default_factory=lambda: {0: 1.0})

    def visit(self, node: int) -> int | None:
        """Return the accepted node in the subtree of this one, or None."""
        self.target[node], self.draft[node] = self.laws.target(node), self.laws.draft(node)
        for child in self.children[node]:
            token = self.tree.tokens[child]
            target_mass, draft_mass = self.target[node][token], self.draft[node][token]
            self.chance[child] = min(1.0, self.chance[node] * target_mass / draft_mass) if draft_mass > 0 else 0.0
            found = self.visit(child)
            if found is not None:
                return found
            self._reject(node, token)
        return node if node == 0 or self.decisions.flip(self.chance[node], node) else None

    def _reject(self, node: int, token: int) -> None:
        """Update a node's laws after the rejection of a child."""
        left = np.maximum(self.chance[node] * self.target[node] - self.draft[node], 0)
        scale = left.sum() + 1 - self.chance[node]
        self.chance[node] = float(left.sum() / scale) if scale > 0 else 1.0
        self.target[node] = normalised(left, self.target[node])
        if self.tree.siblings == "without_replacement":
            self.draft[node] = without(self.draft[node], [token])


def _traverse(tree: Tree, laws: Laws, decisions: Decisions) -> ReferenceVerdict:
    """Test leaves first; the mass of a rejected node returns to its parent."""
    children: list[list[int]] = [[] for _ in tree.tokens]
    for node in range(1, len(tree.tokens)):
        if tree.alive[node]:
            children[tree.parents[node]].append(node)
    state = _Traversal(tree, laws, decisions, children)
    end = state.visit(0)
    assert end is not None
    return _verdict(tree, end, decisions.pick(state.target[end], end, _Purpose.BONUS))


@dataclass(frozen=True, slots=True)
class ReferenceRule:
    """A rule, and whether it reads draft laws."""

    judge: Rule
    needs_laws: bool


def reference_rule(rule: Any) -> ReferenceRule | None:
    """Return the reference of a rule of the engine, by its name and the options of its coupling; None without one."""
    name: str = rule.card.name
    plain = {"race": _race, "match": _match, "block": _block, "traversal": _traverse}
    if name in plain:
        return ReferenceRule(plain[name], name in ("block", "traversal"))
    own = getattr(rule, "coupling", None)
    coupling = _named(name) if own is None else ReferenceCoupling.of(own)
    if coupling is None:
        return None
    return ReferenceRule(partial(_path_block if name == "path_block" else _walk, coupling=coupling), True)


def _named(rule: str) -> ReferenceCoupling | None:
    """Return the coupling of a rule without a `coupling` attribute, by the rule's name."""
    named = {"speculative": "maximal", "spectr": "kseq", "path_block": "optimal"}
    known = ("optimal", "hybrid", "kseq_plus", "kseq", "recursive", "recursive_wor", *named)
    return ReferenceCoupling(named.get(rule, rule)) if rule in known else None
