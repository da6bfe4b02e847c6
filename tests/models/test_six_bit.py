"""Matrices that were stored in six bits are close to the originals, and files with eight bits are still read."""

import torch

from spectr.models.six_bit import SCALE, decoded, encoded


def test_decoded_weights_are_close_in_any_size() -> None:
    """Decoded weights are within 2.5 % of the originals for any shape and magnitude, and have the same shape."""
    torch.manual_seed(0)
    tensors = {
        "wide": torch.randn(48, 200),
        "tiny": 1e-4 * torch.randn(3, 64),
        "zero": torch.zeros(2, 5),
        "norm": torch.rand(7),
    }
    small = encoded(tensors)
    found = decoded(small)
    assert found.keys() == tensors.keys()
    assert small["wide.six"].numel() == 48 * 150
    for name, weights in tensors.items():
        assert found[name].shape == weights.shape
        assert float((found[name] - weights).norm()) <= 0.025 * float(weights.norm())


def test_all_values_of_six_bits_come_back() -> None:
    """Every value from -31 to 31 at every place of four is stored without loss, beside any other."""
    torch.manual_seed(1)
    weights = torch.randint(-31, 32, (64, 64)).float()
    weights[:, 0] = 31  # the scale of every block is then 1
    assert torch.equal(decoded(encoded({"any": weights}))["any"], weights)


def test_files_with_eight_bits_are_read() -> None:
    """Matrices that an earlier version stored as int8, with scales, are read as they were."""
    codes = torch.randint(-127, 128, (3, 70)).to(torch.int8)
    scale = torch.tensor([[0.5, 2.0]]).repeat(3, 1).to(torch.float16)
    found = decoded({"old": codes, "old" + SCALE: scale})["old"]
    assert torch.equal(found[:, :64], codes[:, :64] * 0.5)
    assert torch.equal(found[:, 64:], codes[:, 64:] * 2.0)
