"""What rank 0 sends to the other ranks before every target call: a name, a few numbers, and tensors such as the tree.

A message is a header in JSON and the bytes of its tensors, masks packed into bits: about 1 kB for a tree of 64 nodes.
"""

import json
import struct
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

__all__ = ["Message"]

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Message:
    """A call that all ranks run."""

    name: str
    numbers: dict[str, Any] = field(default_factory=dict)  # what JSON can hold
    tensors: tuple[Tensor | None, ...] = ()  # whole numbers (int64) or masks (bool)

    def encoded(self) -> bytes:
        """The message as bytes."""
        kinds = [None if tensor is None else [tensor.dtype == torch.bool, *tensor.shape] for tensor in self.tensors]
        header = json.dumps([self.name, self.numbers, kinds], separators=(",", ":")).encode()
        return b"".join([_LENGTH.pack(len(header)), header, *(_bytes(t) for t in self.tensors if t is not None)])

    @classmethod
    def decoded(cls, data: bytes) -> "Message":
        """The message from its bytes.

        >>> tree = torch.tensor([[1, 2]]), None, torch.tensor([[True, False, True]])
        >>> Message.decoded(Message("score", {"model": 0}, tree).encoded())
        Message(name='score', numbers={'model': 0},
            tensors=(tensor([[1, 2]]), None, tensor([[ True, False,  True]])))
        """
        (length,) = _LENGTH.unpack_from(data)
        at = _LENGTH.size + length
        name, numbers, kinds = json.loads(data[_LENGTH.size : at])
        tensors: list[Tensor | None] = []
        for kind in kinds:
            if kind is None:
                tensors.append(None)
                continue
            count = _size(kind)
            tensors.append(_tensor(data[at : at + count], kind))
            at += count
        return cls(name, numbers, tuple(tensors))


def _bytes(tensor: Tensor) -> bytes:
    """The numbers of a tensor, masks in bits."""
    values = tensor.detach().cpu().contiguous().numpy()
    return np.packbits(values).tobytes() if tensor.dtype == torch.bool else values.astype("<i8").tobytes()


def _size(kind: list[Any]) -> int:
    """Bytes of a tensor, of which the header says whether it is a mask and its shape."""
    is_mask, *shape = kind
    numbers: int = prod(shape)
    return -(-numbers // 8) if is_mask else 8 * numbers


def _tensor(data: bytes, kind: list[Any]) -> Tensor:
    is_mask, *shape = kind
    if is_mask:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=prod(shape))
        return torch.from_numpy(bits.astype(np.bool_)).view(shape)
    return torch.from_numpy(np.frombuffer(data, "<i8").astype(np.int64)).view(shape)
