"""What a drafter must fit (the target, the rule and the user's options), and the default sizes of its tree."""

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

_CPU_NODES, _GPU_NODES = 2, 64  # nodes of a trained head's tree, by default
_GPU_DEPTH = 4  # the deepest tree on a GPU: each depth is a pass over the drafter's weights, and a fifth does not pay
_GPU_CHAIN = 3  # the longest chain on a GPU: a fourth token does not pay
_BATCH_NODES = 128  # nodes of all rows: with more, a call on a GPU is bound by arithmetic instead of memory
_BLOCK_DEPTH = 8  # the deepest tree of a block: depths cost no further call, and few accepted paths are longer


@dataclass(frozen=True, slots=True)
class Pairing:
    """The target, the rule's card and the options that a drafter must fit."""

    target: "OpenedModel"
    card: Card
    options: DraftOptions
    loading: Mapping[str, Any]  # options for loading a model as the drafter: those of the target

    @property
    def siblings(self) -> Siblings:
        """How siblings are drawn under the rule."""
        return self.card.draws or self.card.siblings[0]

    def beam(self, nodes: int) -> tuple[int, int]:
        """Return how many nodes to expand at each depth, and how many depths, for a pruned tree of `nodes` nodes."""
        beam, deep = beam_for(nodes)
        return beam, deep if self.target.target.device.type == "cpu" else min(deep, _GPU_DEPTH)

    def plan(self, **defaults: int) -> Plan:
        """Return a plan of the user's options, then of `defaults`. `nodes` sizes the tree under every rule: options
        that are not set follow from it, which are the beam and the depths of a pruned tree, the number and length of
        chains, or the length of a single chain."""
        sizes: dict[str, Any] = {**defaults, **self.options.some("drafts", "length", "nodes", "tree")}
        if not self.card.tree:
            sizes = {"drafts": 1, **sizes}
            if sizes["drafts"] > 1 or as_shape(sizes.get("tree", (1,))).width > 1:
                raise MismatchError(
                    f"rule {self.card.name!r} verifies one chain: set drafts=1, or choose path_block or optimal"
                )
        if "nodes" in sizes and "tree" not in sizes:
            prunes = self.card.tree and Plan(siblings=self.siblings).prunes
            filled = self.beam(sizes["nodes"]) if prunes else self.chains(sizes["nodes"])
            sizes = {**dict(zip(("drafts", "length"), filled, strict=True)), **sizes}
        return Plan(siblings=self.siblings, **sizes)

    def chains(self, nodes: int) -> tuple[int, int]:
        """Return how many chains of how many tokens fill `nodes` nodes, given the user's `drafts` or `length`."""
        room = max(1, whole("nodes", nodes) - 1)
        drafts = 1 if not self.card.tree else self.options.drafts
        if drafts is not None:
            return drafts, max(1, room // max(1, drafts))
        if self.options.length is not None:
            return max(1, room // max(1, self.options.length)), self.options.length
        return chains_for(nodes, 8 if self.target.target.device.type == "cpu" else _GPU_DEPTH)


def default_tree(pairing: Pairing) -> dict[str, int]:
    """Return the default sizes of a trained head's tree, as far as the user has not set them: wide on a GPU, where
    nodes are almost free, and small on a CPU. Under the race, whose text does not depend on the tree, trees are smaller
    in large batches."""
    options, cpu = pairing.options, pairing.target.target.device.type == "cpu"
    chosen = options.some("drafts", "length")
    if options.tree is not None or len(chosen) == 2 or (chosen and cpu):
        return {}
    if not Plan(siblings=pairing.siblings).prunes:
        if options.nodes is not None:
            return {}
        return {"drafts": 8 if pairing.card.tree and not cpu else 1, "length": 2 if cpu else _GPU_CHAIN}
    if options.nodes is not None or chosen or cpu:
        return {"nodes": options.nodes or (_CPU_NODES if cpu else _GPU_NODES)}
    return {"nodes": _GPU_NODES, **({"shared": _BATCH_NODES} if pairing.siblings == "race" else {})}


def plan_within(pairing: Pairing, depths: int) -> Plan:
    """Return the plan for a head that drafts `depths` depths in one call; unless the user sets it, its depth is what
    pays."""
    plan = pairing.plan(**default_tree(pairing))
    if pairing.options.some("length", "tree"):
        return plan
    deep = plan.length if pairing.target.target.device.type == "cpu" else _BLOCK_DEPTH
    if not plan.prunes:
        deep = min(deep, plan.length) if pairing.options.nodes is not None else deep
    return replace(plan, length=min(depths, deep))
