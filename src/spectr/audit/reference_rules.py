"""Rules by their definitions: a second implementation, which decisions of the engine are checked with.

One row at a time, in plain Python over NumPy laws; it shares no code with `spectr.verify` or `spectr.trees`. A rule is
a function of a tree, of the laws at its nodes, and of the coins. Of nodes that carry one and the same text the first
stands for all of them, and has the children of all, except in a traversal, which goes through nodes as they are.
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

__all__ = ["Decision", "Decisions", "Judged", "Laws", "ReferenceRule", "Tree", "reference_rule"]

Numbers = npt.NDArray[np.float64]


class _Purpose(IntEnum):
    """What a coin decides, as its key says it."""

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
    width: int  # the most nodes that a depth could have had
    texts: list[tuple[int, ...]] = field(init=False)  # the tokens below the root on the way to each node
    first: list[int] = field(init=False)  # the first alive node with the same text
    below: list[list[int]] = field(init=False)  # children of all copies, at the first

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
        """What was drafted below a first node."""
        below = self.below[node]
        fixed = tuple(self.fixed[child] for child in below) if self.siblings in ("hybrid", "fixed") else None
        return Children(tuple(self.tokens[child] for child in below), fixed, self.width)

    def path(self, node: int) -> list[int]:
        """The nodes from the root to this one, as they were drafted."""
        return [0] if node == 0 else [*self.path(self.parents[node]), node]

    def at(self, text: tuple[int, ...]) -> int:
        """The first node that carries a text, which must be drafted."""
        return next(node for node, own in enumerate(self.texts) if own == text and self.alive[node])

    def child(self, node: int, token: int) -> int | None:
        """The first child that carries a token."""
        return next((self.first[child] for child in self.below[node] if self.tokens[child] == token), None)


class Laws(Protocol):
    """The laws at the nodes of a row's tree."""

    def logits(self, node: int) -> Numbers:
        """The target's after the policy, (V,); −inf where a token cannot come."""
        ...

    def target(self, node: int) -> Numbers:
        """The law that they stand for."""
        ...

    def draft(self, node: int) -> Numbers:
        """The law that a node's drawn children came from."""
        ...

    def free_choice(self, node: int) -> int | None:
        """A token that is to be selected if it was drafted, where any selection is right."""
        ...


@dataclass(frozen=True, slots=True)
class Decision:
    """A coin, and where it had to fall for what was decided; or the scores of a race."""

    node: int
    what: str
    choice: int
    coin: float  # of a race: the winner's score
    low: float = 0.0
    high: float = 1.0


@dataclass(slots=True)
class Decisions:
    """The coins of one row in one step, and what they decided."""

    seed: int
    committed: int  # tokens of the text before the step, prompt included
    made: list[Decision] = field(default_factory=list)

    def flip(self, chance: float, node: int) -> bool:
        """Whether a path is kept as far as this node."""
        thrown = coin(self.seed, self.committed, node, _Purpose.BLOCK)
        self.made.append(Decision(node, "block", int(thrown < chance), thrown, 0.0, chance))
        return thrown < chance

    def pick(self, weights: Numbers, node: int, purpose: _Purpose) -> int:
        """An index in proportion to weights, by inverse CDF; 0 if they are all zero."""
        sums, thrown = weights.cumsum(), coin(self.seed, self.committed, node, purpose)
        last = int(np.searchsorted(sums, sums[-1]))  # the first to reach the total has weight
        choice = min(int(np.searchsorted(sums, thrown * sums[-1], side="right")), last)
        total = sums[-1] if sums[-1] > 0 else 1.0
        low, high = (sums[choice] - weights[choice]) / total, sums[choice] / total
        self.made.append(Decision(node, purpose.name.lower(), choice, thrown, float(low), float(high)))
        return choice

    def race(self, logits: Numbers, node: int, depth: int) -> int:
        """The token that wins at a depth below the committed text."""
        tokens = np.flatnonzero(logits > -np.inf)
        scores = logits[tokens] + noise(self.seed, self.committed + depth, tokens)
        best = int(scores.argmax())
        self.made.append(Decision(node, "race", int(tokens[best]), float(scores[best])))
        return int(tokens[best])

    def score(self, logits: Numbers, token: int, depth: int) -> float:
        """What a token has in a race."""
        return float(logits[token] + noise(self.seed, self.committed + depth, np.array([token]))[0])


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict: the accepted tokens and the one after them, and whether it stands in the place of a draft."""

    tokens: tuple[int, ...]
    accepted: int
    corrected: bool


Rule = Callable[[Tree, Laws, Decisions], Judged]


def _judged(tree: Tree, end: int, bonus: int) -> Judged:
    return Judged((*tree.texts[end], bonus), len(tree.texts[end]), bool(tree.below[tree.first[end]]))


def _race(tree: Tree, laws: Laws, decisions: Decisions) -> Judged:
    """Every token is the winner of its position; a path of the tree is kept as long as it consists of winners."""
    node = 0
    while True:
        winner = decisions.race(laws.logits(node), node, len(tree.texts[node]))
        child = tree.child(node, winner)
        if child is None:
            return _judged(tree, node, winner)
        node = child


def _match(tree: Tree, laws: Laws, decisions: Decisions) -> Judged:
    """Every token is a draw from the target."""
    node = 0
    while True:
        token = decisions.pick(laws.target(node), node, _Purpose.BONUS)
        child = tree.child(node, token)
        if child is None:
            return _judged(tree, node, token)
        node = child


def _slot(chances: Numbers, tree: Tree, laws: Laws, decisions: Decisions, node: int) -> int:
    """Which of the drafts below a node comes out."""
    tokens, free = tree.children(node).tokens, laws.free_choice(node)
    return tokens.index(free) if free in tokens else decisions.pick(chances, node, _Purpose.CHILD)


def _walk(tree: Tree, laws: Laws, decisions: Decisions, *, coupling: ReferenceCoupling) -> Judged:
    """At each node the coupling says which child comes out; if none does, the residual is drawn from."""
    node = 0
    while True:
        outcome = coupling.outcome(laws.target(node), laws.draft(node), tree.children(node))
        missed = max(0.0, 1 - outcome.ending.sum())
        slot = _slot(np.append(outcome.ending, missed), tree, laws, decisions, node)
        if slot == len(outcome.ending):
            return _judged(tree, node, decisions.pick(outcome.residual, node, _Purpose.BONUS))
        node = tree.first[tree.below[node][slot]]


def _longest(tree: Tree, laws: Laws, decisions: Decisions, end: int, proposals: Sequence[Numbers]) -> Judged:
    """Block verification of the path to a node, given the law that the token after each node of it was proposed from.
    w is the chance to keep so much, and the longest success counts. Coins belong to the nodes on the path as they were
    drafted, laws to the first nodes of the same text."""
    path = tree.path(end)
    targets = [laws.target(tree.first[node]) for node in path]
    kept, chances, length = [1.0], list[float](), len(path) - 1
    for depth in range(length):
        target, proposal, token = targets[depth], proposals[depth], tree.tokens[path[depth + 1]]
        missing = float(np.maximum(kept[depth] * target - proposal, 0).sum())
        scale = missing + 1 - kept[depth]
        chances.append(missing / scale if scale > 0 else 1.0)
        given = proposal[token] if proposal[token] > 0 else 1.0
        kept.append(min(1.0, kept[depth] * target[token] / given))
    chances.append(kept[length])
    last = max([depth for depth in range(1, length + 1) if decisions.flip(chances[depth], path[depth])], default=0)
    weights = targets[last] if last == length else left_over(kept[last] * targets[last], proposals[last])
    return _judged(tree, path[last], decisions.pick(weights, path[last], _Purpose.BONUS))


def _block(tree: Tree, laws: Laws, decisions: Decisions) -> Judged:
    """One chain, judged as a whole."""
    alive = [node for node in range(len(tree.tokens)) if tree.alive[node]]
    end = max(alive, key=lambda node: len(tree.texts[node]))
    return _longest(tree, laws, decisions, end, [laws.draft(node) for node in tree.path(end)])


def _path_block(tree: Tree, laws: Laws, decisions: Decisions, *, coupling: ReferenceCoupling) -> Judged:
    """A path is selected down to a leaf, and judged as a whole with the laws of what was selected."""
    node, proposals = 0, list[Numbers]()
    while tree.below[node]:
        chosen = coupling.selection(laws.target(node), laws.draft(node), tree.children(node))
        proposals.append(chosen.law)
        slot = _slot(chosen.chance, tree, laws, decisions, node)
        node = tree.first[tree.below[node][slot]]
    return _longest(tree, laws, decisions, node, proposals)


@dataclass(slots=True)
class _Traversal:
    """What is left of the laws while nodes are tested, leaves first."""

    tree: Tree
    laws: Laws
    decisions: Decisions
    children: list[list[int]]  # of each node, copies apart
    target: dict[int, Numbers] = field(default_factory=dict)
    draft: dict[int, Numbers] = field(default_factory=dict)
    chance: dict[int, float] = field(default_factory=lambda: {0: 1.0})

    def visit(self, node: int) -> int | None:
        """The node that is accepted in the tree below this one, itself included; None if none is."""
        self.target[node], self.draft[node] = self.laws.target(node), self.laws.draft(node)
        for child in self.children[node]:
            token = self.tree.tokens[child]
            owed, given = self.target[node][token], self.draft[node][token]
            self.chance[child] = min(1.0, self.chance[node] * owed / given) if given > 0 else 0.0
            found = self.visit(child)
            if found is not None:
                return found
            self._reject(node, token)
        return node if node == 0 or self.decisions.flip(self.chance[node], node) else None

    def _reject(self, node: int, token: int) -> None:
        """Hand a node what the rejection of a child leaves."""
        left = np.maximum(self.chance[node] * self.target[node] - self.draft[node], 0)
        scale = left.sum() + 1 - self.chance[node]
        self.chance[node] = float(left.sum() / scale) if scale > 0 else 1.0
        self.target[node] = normalised(left, self.target[node])
        if self.tree.siblings == "without_replacement":
            self.draft[node] = without(self.draft[node], [token])


def _traverse(tree: Tree, laws: Laws, decisions: Decisions) -> Judged:
    """Leaves first; a rejected node hands its parent what is left."""
    children: list[list[int]] = [[] for _ in tree.tokens]
    for node in range(1, len(tree.tokens)):
        if tree.alive[node]:
            children[tree.parents[node]].append(node)
    state = _Traversal(tree, laws, decisions, children)
    end = state.visit(0)
    assert end is not None
    return _judged(tree, end, decisions.pick(state.target[end], end, _Purpose.BONUS))


@dataclass(frozen=True, slots=True)
class ReferenceRule:
    """A rule, and whether it looks at draft laws."""

    judge: Rule
    needs_laws: bool


def reference_rule(rule: Any) -> ReferenceRule | None:
    """The reference of a rule of the engine, found by its name and the options of its coupling; None if there is
    none."""
    name: str = rule.card.name
    plain = {"race": _race, "match": _match, "block": _block, "traversal": _traverse}
    if name in plain:
        return ReferenceRule(plain[name], name in ("block", "traversal"))
    held = getattr(rule, "coupling", None)
    coupling = _named(name) if held is None else ReferenceCoupling.of(held)
    if coupling is None:
        return None
    return ReferenceRule(partial(_path_block if name == "path_block" else _walk, coupling=coupling), True)


def _named(rule: str) -> ReferenceCoupling | None:
    """The coupling of a walk whose rule does not show it."""
    named = {"speculative": "maximal", "spectr": "kseq", "path_block": "optimal"}
    known = ("optimal", "hybrid", "kseq_plus", "kseq", "recursive", "recursive_wor", *named)
    return ReferenceCoupling(named.get(rule, rule)) if rule in known else None
