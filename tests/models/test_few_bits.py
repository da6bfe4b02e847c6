"""Matrices that were stored in few bits are close to the originals, and files with eight bits are still read."""

import pytest
import torch

from spectr.models.few_bits import SCALE, decoded, encoded


@pytest.mark.parametrize(("bits", "error"), [(5, 0.05), (6, 0.025)])
def test_decoded_weights_are_close_in_any_size(bits: int, error: float) -> None:
    """Decoded weights are close to the originals for any shape and magnitude, and have the same shape."""
    torch.manual_seed(0)
    tensors = {
        "wide": torch.randn(48, 200),
        "tiny": 1e-4 * torch.randn(3, 64),
        "zero": torch.zeros(2, 5),
        "norm": torch.rand(7),
    }
    small = encoded(tensors, bits)
    found = decoded(small)
    assert found.keys() == tensors.keys()
    assert small[{5: "wide.five", 6: "wide.six"}[bits]].numel() == 48 * 200 * bits // 8
    for name, weights in tensors.items():
        assert found[name].shape == weights.shape
        assert float((found[name] - weights).norm()) <= error * float(weights.norm())


@pytest.mark.parametrize(("bits", "largest"), [(5, 15), (6, 31)])
def test_all_values_come_back(bits: int, largest: int) -> None:
    """Every value at every place of a word is stored without loss, beside any other."""
    torch.manual_seed(1)
    weights = torch.randint(-largest, largest + 1, (64, 64)).float()
    weights[:, 0] = largest  # the scale of every block is then 1
    assert torch.equal(decoded(encoded({"any": weights}, bits))["any"], weights)


def test_six_bits_are_laid_out_as_before() -> None:
    """Files with six bits have four values in three bytes, the lowest bits of the first value first."""
    stored = encoded({"any": torch.tensor([[1.0, -31.0, 31.0, 0.0]])})
    assert stored["any.six"].tolist() == [[33 | (1 & 3) << 6, 1 >> 2 | (63 & 15) << 4, 63 >> 4 | 32 << 2]]


def test_files_with_eight_bits_are_read() -> None:
    """Matrices that an earlier version stored as int8, with scales, are read as they were."""
    codes = torch.randint(-127, 128, (3, 70)).to(torch.int8)
    scale = torch.tensor([[0.5, 2.0]]).repeat(3, 1).to(torch.float16)
    found = decoded({"old": codes, "old" + SCALE: scale})["old"]
    assert torch.equal(found[:, :64], codes[:, :64] * 0.5)
    assert torch.equal(found[:, 64:], codes[:, 64:] * 2.0)
