"""Linear layers with the same input as one product: queries, keys and values; the two halves of a gated layer.

A small product does not fill a large device: on an H200 three products of a 4096-wide layer take 32 µs, and the joint
one 17 µs. The matrices are concatenated once, and the model's own weights become views of the result, so that nothing
is stored twice.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from spectr.errors import MismatchError
from spectr.models.int8 import Int8Linear, product

__all__ = ["JointGroup", "join_products", "joined_weights", "joint_groups"]

_TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of linear layers with the same input, in the order in which models call them."""


@dataclass(frozen=True, slots=True)
class JointGroup:
    """Linear layers of one module that have the same input."""

    path: str  # path of the module, "" for the decoder layer itself
    names: tuple[str, ...]

    def members(self, layer: nn.Module) -> list[nn.Linear]:
        """Return the linear layers of the group, in order."""
        parent: Any = layer.get_submodule(self.path)
        return [getattr(parent, name) for name in self.names]

    def full(self, name: str) -> str:
        """Return the name of a member relative to the decoder layer."""
        return f"{self.path}.{name}" if self.path else name


def _alike(members: list[Any]) -> bool:
    """Return whether all are plain linear layers, or all int8 ones, with equal input sizes, dtypes and devices, and all
    with a bias or all without."""
    if len({type(member) for member in members}) > 1 or any("forward" in vars(member) for member in members):
        return False
    if type(members[0]) not in (nn.Linear, Int8Linear):
        return False
    return len({(m.in_features, m.bias is None, m.weight.dtype, m.weight.device) for m in members}) == 1


def joint_groups(layer: nn.Module) -> list[JointGroup]:
    """Return the groups of one decoder layer."""
    found = []
    for path, module in layer.named_modules():
        for names in _TOGETHER:
            members = [getattr(module, name, None) for name in names]
            if all(member is not None for member in members) and _alike(members):
                found.append(JointGroup(path, names))
    return found


def _is_concatenated(parts: list[Tensor]) -> bool:
    """Return whether the parts already lie one after the other in one storage."""
    ends = [part.data_ptr() + part.nbytes for part in parts]
    shared = len({part.untyped_storage().data_ptr() for part in parts}) == 1
    return shared and all(part.data_ptr() == end for part, end in zip(parts[1:], ends, strict=False))


def _concatenated(parts: list[Tensor]) -> Tensor:
    """Return the parts concatenated along the first dimension, and turn each part into a view of the result."""
    if _is_concatenated(parts):
        first = parts[0].data
        size = (sum(map(len, parts)), *first.shape[1:])
        return first.as_strided(size, first.stride(), first.storage_offset())
    joint = torch.cat([part.data for part in parts])
    for part, view in zip(parts, joint.split([len(part) for part in parts]), strict=True):
        part.data = view
    return joint


def joined_weights(layer: nn.Module, groups: list[JointGroup]) -> Iterator[tuple[str, Tensor | None]]:
    """Yield the weights of a layer's joint form by name: the joint weights under the first name of each group, and None
    under the others."""
    for group in groups:
        members = group.members(layer)
        for kind in ("weight", "scale", "bias"):
            if getattr(members[0], kind, None) is None:
                continue
            joint = _concatenated([getattr(member, kind) for member in members])
            for at, name in enumerate(group.names):
                yield f"{group.full(name)}.{kind}", joint if at == 0 else None


@dataclass(slots=True)
class _Product:
    """One joint product, computed when its first part is called for and split among the others."""

    sizes: list[int]
    input: Tensor | None = None
    parts: tuple[Tensor, ...] = field(default_factory=tuple)

    def first(self, rows: Tensor, whole: Tensor) -> Tensor:
        self.input, self.parts = rows, whole.split(self.sizes, -1)
        return self.parts[0]

    def other(self, at: int, rows: Tensor) -> Tensor:
        if rows is not self.input:
            raise MismatchError("layers that were joined do not have the same input; load the model without compile")
        part = self.parts[at]
        if at == len(self.sizes) - 1:
            self.input, self.parts = None, ()
        return part


class _First(nn.Module):
    """Replaces the first layer of a group: holds the joint weights and computes the joint product."""

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
    """Replaces another layer of a group: returns its part of the joint product."""

    def __init__(self, product: _Product, at: int) -> None:
        super().__init__()
        self.product, self.at = product, at

    def forward(self, rows: Tensor) -> Tensor:
        return self.product.other(self.at, rows)


def join_products(empty: nn.Module, groups: list[JointGroup]) -> None:
    """Replace the grouped linear layers of a layer without weights by their joint form."""
    for group in groups:
        members, parent = group.members(empty), empty.get_submodule(group.path)
        product = _Product([member.out_features for member in members])
        setattr(parent, group.names[0], _First(product, members[0]))
        for at, name in enumerate(group.names[1:], start=1):
            setattr(parent, name, _Other(product, at))
