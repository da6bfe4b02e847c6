"""The message that rank 0 sends to the other ranks before every target call: a name, arguments, and tensors such as the
tree.

It is encoded as a header in JSON followed by the bytes of the tensors, with masks packed into bits. A tree of 64 nodes
takes about 1 kB.
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
    """A call that every rank runs."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)  # anything that JSON can represent
    tensors: tuple[Tensor | None, ...] = ()  # integers (int64) or masks (bool)

    def encoded(self) -> bytes:
        """Return the message as bytes."""
        kinds = [None if tensor is None else [tensor.dtype == torch.bool, *tensor.shape] for tensor in self.tensors]
        header = json.dumps([self.name, self.arguments, kinds], separators=(",", ":")).encode()
        return b"".join([_LENGTH.pack(len(header)), header, *(_bytes(t) for t in self.tensors if t is not None)])

    @classmethod
    def decoded(cls, data: bytes) -> "Message":
        """Return the message that was encoded as `data`.

        >>> tree = torch.tensor([[1, 2]]), None, torch.tensor([[True, False, True]])
        >>> Message.decoded(Message("score", {"model": 0}, tree).encoded())
        Message(name='score', arguments={'model': 0},
            tensors=(tensor([[1, 2]]), None, tensor([[ True, False,  True]])))
        """
        (length,) = _LENGTH.unpack_from(data)
        start = _LENGTH.size + length
        name, arguments, kinds = json.loads(data[_LENGTH.size : start])
        tensors: list[Tensor | None] = []
        for kind in kinds:
            if kind is None:
                tensors.append(None)
                continue
            size = _size(kind)
            tensors.append(_tensor(data[start : start + size], kind))
            start += size
        return cls(name, arguments, tuple(tensors))


def _bytes(tensor: Tensor) -> bytes:
    """Return the values of a tensor as bytes, eight to a byte if it is a mask."""
    values = tensor.detach().cpu().contiguous().numpy()
    return np.packbits(values).tobytes() if tensor.dtype == torch.bool else values.astype("<i8").tobytes()


def _size(kind: list[Any]) -> int:
    """Return the size in bytes of an encoded tensor. `kind` says whether it is a mask, followed by its shape."""
    is_mask, *shape = kind
    count: int = prod(shape)
    return -(-count // 8) if is_mask else 8 * count


def _tensor(data: bytes, kind: list[Any]) -> Tensor:
    is_mask, *shape = kind
    if is_mask:
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=prod(shape))
        return torch.from_numpy(bits.astype(np.bool_)).view(shape)
    return torch.from_numpy(np.frombuffer(data, "<i8").astype(np.int64)).view(shape)
