"""Products of one input with several matrices as one: queries, keys and values; the two halves of a gated layer.

A small product does not fill a large device: on an H200 three of a 4096-wide layer take 32 µs and their joint one 17.
The matrices are laid one after the other, once, and the model's own become views of that: nothing is held twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spectr.errors import MismatchError
from spectr.models.int8 import Int8Linear, product

__all__ = ["Family", "families", "join_in", "joined_weights"]

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names under which families of models keep matrices that multiply the same input, in the order in which they do."""


@dataclass(frozen=True, slots=True)
class Family:
    """Linear layers below one module, by name."""

    path: str  # of the module, "" for the layer itself
    names: tuple[str, ...]

    def members(self, layer: nn.Module) -> list[nn.Linear]:
        """In order."""
        parent: Any = layer.get_submodule(self.path)
        return [getattr(parent, name) for name in self.names]

    def full(self, name: str) -> str:
        """As the layer calls it."""
        return f"{self.path}.{name}" if self.path else name


def _alike(members: list[Any]) -> bool:
    """Linear layers as they come, or all rounded, over as many inputs, all with a bias or all without."""
    if len({type(member) for member in members}) > 1 or any("forward" in vars(member) for member in members):
        return False
    if type(members[0]) not in (nn.Linear, Int8Linear):
        return False
    return len({(m.in_features, m.bias is None, m.weight.dtype, m.weight.device) for m in members}) == 1


def families(layer: nn.Module) -> list[Family]:
    """Those of one decoder layer."""
    found = []
    for path, module in layer.named_modules():
        for names in _TOGETHER:
            members = [getattr(module, name, None) for name in names]
            if all(member is not None for member in members) and _alike(members):
                found.append(Family(path, names))
    return found


def _is_laid(parts: list[Tensor]) -> bool:
    """Whether they are such views already."""
    ends = [part.data_ptr() + part.nbytes for part in parts]
    shared = len({part.untyped_storage().data_ptr() for part in parts}) == 1
    return shared and all(part.data_ptr() == end for part, end in zip(parts[1:], ends, strict=False))


def _laid(parts: list[Tensor]) -> Tensor:
    """The parts one after the other, and each from now on a view of that."""
    if _is_laid(parts):
        first = parts[0].data
        size = (sum(map(len, parts)), *first.shape[1:])
        return first.as_strided(size, first.stride(), first.storage_offset())
    joint = torch.cat([part.data for part in parts])
    for part, view in zip(parts, joint.split([len(part) for part in parts]), strict=True):
        part.data = view
    return joint


def joined_weights(layer: nn.Module, kin: list[Family]) -> Iterator[tuple[str, Tensor | None]]:
    """What the joint form of a layer calls by these names: under the first name of a family the joint weights, under
    the others nothing."""
    for family in kin:
        members = family.members(layer)
        for kind in ("weight", "scale", "bias"):
            if getattr(members[0], kind, None) is None:
                continue
            joint = _laid([getattr(member, kind) for member in members])
            for at, name in enumerate(family.names):
                yield f"{family.full(name)}.{kind}", joint if at == 0 else None


@dataclass(slots=True)
class _Product:
    """One product, made where its first part is asked for."""

    sizes: list[int]
    input: Tensor | None = None
    made: tuple[Tensor, ...] = field(default_factory=tuple)

    def first(self, rows: Tensor, whole: Tensor) -> Tensor:
        self.input, self.made = rows, whole.split(self.sizes, -1)
        return self.made[0]

    def other(self, at: int, rows: Tensor) -> Tensor:
        if rows is not self.input:
            raise MismatchError("these layers were taken to multiply one input, and do not; load without compile")
        part = self.made[at]
        if at == len(self.sizes) - 1:
            self.input, self.made = None, ()
        return part


class _First(nn.Module):
    """Holds the joint weights, and what belongs to them."""

    weight: Tensor
    scale: Tensor | None
    bias: Tensor | None

    def __init__(self, product: _Product, like: Any) -> None:
        super().__init__()
        self.product, rows = product, sum(product.sizes)
        for kind in ("weight", "scale", "bias"):
            part = getattr(like, kind, None)
            self.register_buffer(kind, None if part is None else part.new_empty(rows, *part.shape[1:]))

    def forward(self, rows: Tensor) -> Tensor:
        return self.product.first(rows, product(rows, self.weight, self.scale, self.bias))


class _Other(nn.Module):
    """A part of what the first has made."""

    def __init__(self, product: _Product, at: int) -> None:
        super().__init__()
        self.product, self.at = product, at

    def forward(self, rows: Tensor) -> Tensor:
        return self.product.other(self.at, rows)


def join_in(empty: nn.Module, kin: list[Family]) -> None:
    """Let a layer without weights make its products jointly."""
    for family in kin:
        members, parent = family.members(empty), empty.get_submodule(family.path)
        product = _Product([member.out_features for member in members])
        setattr(parent, family.names[0], _First(product, members[0]))
        for at, name in enumerate(family.names[1:], start=1):
            setattr(parent, name, _Other(product, at))
