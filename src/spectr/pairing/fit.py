"""What a drafter must fit (target, rule, the user's options), and its tree where the user names none."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from spectr.checks import whole
from spectr.draft import Plan
from spectr.draft.options import DraftOptions
from spectr.draft.plan import beam_for, chains_for
from spectr.errors import MismatchError
from spectr.trees import as_shape
from spectr.types import Siblings
from spectr.verify import Card

if TYPE_CHECKING:
    from spectr.models.hf import OpenedModel

__all__ = ["Pairing", "default_tree", "plan_within"]

_FEW, _MANY = 2, 64  # nodes of a trained head's tree, on a CPU and elsewhere
_DEEP = 4  # depths elsewhere, at most: each is a pass over the drafter's weights, and the fifth does not pay
_DEEP_CHAIN = 3  # the same of chains: the fourth does not
_TOGETHER = 128  # nodes of all rows: about what a call takes before arithmetic, not memory, is what it waits for
_DEEP_BLOCK = 8  # depths of a tree from a block, at most: they cost no further call, and few tokens stand deeper


@dataclass(frozen=True, slots=True)
class Pairing:
    """The target, the rule's card and the options that a drafter must fit."""

    target: "OpenedModel"
    card: Card
    options: DraftOptions
    loading: Mapping[str, Any]  # how a model drafter is loaded: as the target was

    @property
    def siblings(self) -> Siblings:
        """As the rule wants them."""
        return self.card.draws or self.card.siblings[0]

    def beam(self, nodes: int) -> tuple[int, int]:
        """Nodes to expand at each depth, and depths, of a tree of which nothing else is said."""
        beam, deep = beam_for(nodes)
        return beam, deep if self.target.target.device.type == "cpu" else min(deep, _DEEP)

    def plan(self, **usual: int) -> Plan:
        """What the user says, and else what is `usual`. `nodes` sizes the tree under every rule: a pruned tree gets
        the beam and the depths that go with so many nodes, chains get their number and length, one chain its length,
        as far as the user leaves them open."""
        given: dict[str, Any] = {**usual, **self.options.some("drafts", "length", "nodes", "tree")}
        if not self.card.tree:
            given = {"drafts": 1, **given}
            if given["drafts"] > 1 or as_shape(given.get("tree", (1,))).width > 1:
                raise MismatchError(
                    f"rule {self.card.name!r} verifies one chain: set drafts=1, or choose path_block or optimal"
                )
        if "nodes" in given and "tree" not in given:
            prunes = self.card.tree and Plan(siblings=self.siblings).prunes
            filled = self.beam(given["nodes"]) if prunes else self.chains(given["nodes"])
            given = {**dict(zip(("drafts", "length"), filled, strict=True)), **given}
        return Plan(siblings=self.siblings, **given)

    def chains(self, nodes: int) -> tuple[int, int]:
        """How many chains of how many tokens fill so many nodes, given what the user says of either."""
        room = max(1, whole("nodes", nodes) - 1)
        drafts = 1 if not self.card.tree else self.options.drafts
        if drafts is not None:
            return drafts, max(1, room // max(1, drafts))
        if self.options.length is not None:
            return max(1, room // max(1, self.options.length)), self.options.length
        return chains_for(nodes, 8 if self.target.target.device.type == "cpu" else _DEEP)


def default_tree(pairing: Pairing) -> dict[str, int]:
    """The tree of a trained head where the user leaves it open: wide where nodes are nearly free, small on a CPU. Under
    the race, whose text is the same with any tree, it is smaller where rows are many."""
    options, cpu = pairing.options, pairing.target.target.device.type == "cpu"
    given = options.some("drafts", "length")
    if options.tree is not None or len(given) == 2 or (given and cpu):
        return {}
    if not Plan(siblings=pairing.siblings).prunes:
        if options.nodes is not None:
            return {}
        return {"drafts": 8 if pairing.card.tree and not cpu else 1, "length": 2 if cpu else _DEEP_CHAIN}
    if options.nodes is not None or given or cpu:
        return {"nodes": options.nodes or (_FEW if cpu else _MANY)}
    return {"nodes": _MANY, **({"shared": _TOGETHER} if pairing.siblings == "race" else {})}


def plan_within(pairing: Pairing, depths: int) -> Plan:
    """The plan for a head that drafts so many depths in one call: as deep as pays, unless the user says."""
    usual = default_tree(pairing)
    made = pairing.plan(**usual)
    if pairing.options.some("length", "tree"):
        return made
    deep = made.length if pairing.target.target.device.type == "cpu" else _DEEP_BLOCK
    if not made.prunes:
        deep = min(deep, made.length) if pairing.options.nodes is not None else deep
    return replace(made, length=min(depths, deep))
