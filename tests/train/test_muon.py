"""Muon: orthogonal steps, of the size of Adam's, for matrices of all shapes."""

import pytest
import torch

from spectr.train.muon import Muon, orthogonal


@pytest.mark.parametrize("shape", [(3, 20, 60), (2, 60, 20)])
def test_singular_values_come_to_lie_near_one(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(0)
    given = torch.randn(shape)
    values = torch.linalg.svdvals(orthogonal(given))
    assert bool(((values > 0.8) & (values < 1.2)).all())
    u, _, v = torch.linalg.svd(given, full_matrices=False)
    assert float((orthogonal(given) - u @ v).norm() / (u @ v).norm()) < 0.1


def test_matrices_are_fitted() -> None:
    """Least squares for three matrices of two shapes, and a state that can be saved and loaded."""
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.zeros(shape)) for shape in ((6, 9), (9, 6), (6, 9))]
    truth = [torch.randn(one.shape) for one in weights]
    optimizer = Muon(weights, 0.2, weight_decay=0.0)
    for step in range(200):
        optimizer.param_groups[0]["lr"] = 0.2 * (1 - step / 200)
        for one, true in zip(weights, truth, strict=True):
            ((one - true) ** 2).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    assert all(float((one - true).detach().abs().max()) < 0.1 for one, true in zip(weights, truth, strict=True))
    again = Muon(weights, 0.05)
    again.load_state_dict(optimizer.state_dict())
    assert len(again.state) == 2
