"""Corner cases of the arithmetic of laws."""

import torch

from spectr.transport.laws import normalise, ratio, residual, without


def test_a_residual_without_mass_is_the_target() -> None:
    law = torch.tensor([[0.5, 0.5, 0.0], [0.2, 0.3, 0.5]])
    assert torch.equal(residual(law, law), law)
    assert torch.equal(residual(law, torch.zeros_like(law)), law)


def test_normalise_replaces_rows_without_mass() -> None:
    other = torch.tensor([0.25, 0.75])
    assert torch.equal(normalise(torch.zeros(2), other), other)
    assert normalise(torch.tensor([1.0, 3.0]), other).tolist() == [0.25, 0.75]


def test_removing_all_mass_gives_zero() -> None:
    law, tokens = torch.tensor([0.5, 0.5, 0.0]), torch.tensor([0, 1])
    assert without(law, tokens, torch.tensor([True, True])).tolist() == [0.0, 0.0, 0.0]
    assert without(law, tokens, torch.tensor([True, False])).tolist() == [0.0, 1.0, 0.0]
    assert without(law, torch.tensor([0, 0]), torch.tensor([True, False])).tolist() == [0.0, 1.0, 0.0]


def test_the_ratio_is_infinite_where_the_draft_law_is_zero() -> None:
    assert ratio(torch.tensor([0.0, 0.5, 0.5]), torch.tensor([0.0, 0.0, 0.25])).tolist() == [torch.inf, torch.inf, 2.0]
