"""Matrices that were packed as blocks of int8 are close to the originals."""

import torch

from spectr.models.blocks import packed, unpacked


def test_unpacked_weights_are_close_in_any_size() -> None:
    """Unpacked weights are within 0.8 % of the originals for any shape and magnitude, and have the same shape."""
    torch.manual_seed(0)
    tensors = {
        "wide": torch.randn(48, 200),
        "tiny": 1e-4 * torch.randn(3, 64),
        "zero": torch.zeros(2, 5),
        "norm": torch.rand(7),
    }
    small = packed(tensors)
    found = unpacked(small)
    assert found.keys() == tensors.keys()
    assert small["wide"].dtype == torch.int8
    for name, weights in tensors.items():
        assert found[name].shape == weights.shape
        assert float((found[name] - weights).norm()) <= 0.008 * float(weights.norm())
