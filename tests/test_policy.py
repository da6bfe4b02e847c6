"""The policy against the definitions, and its errors."""

import pytest
import torch

from spectr.errors import ArgumentError
from spectr.policy import Policy

LOGITS = torch.tensor([[1.0, 3.0, 2.0, -1.0, 3.0], [0.0, 0.1, 0.2, 0.3, 5.0]])


def kept(policy: Policy) -> list[list[int]]:
    return [row.isfinite().nonzero().flatten().tolist() for row in policy(LOGITS)]


def test_temperature() -> None:
    assert torch.allclose(Policy(0.5)(LOGITS).softmax(-1), (LOGITS / 0.5).softmax(-1))
    assert Policy(1e-39)(LOGITS).softmax(-1)[1].tolist() == [0, 0, 0, 0, 1]
    assert torch.equal(Policy()(LOGITS), LOGITS)
    assert Policy()(LOGITS.bfloat16()).dtype == torch.float32


def test_greedy_is_the_point_mass_on_the_first_of_equals() -> None:
    assert kept(Policy(0)) == [[1], [4]]
    assert Policy(0)(LOGITS).softmax(-1)[0, 1] == 1


def test_top_k_keeps_ties() -> None:
    assert kept(Policy(top_k=1)) == [[1, 4], [4]]
    assert kept(Policy(top_k=3)) == [[1, 2, 4], [2, 3, 4]]
    assert kept(Policy(top_k=99)) == [[0, 1, 2, 3, 4]] * 2


def test_top_p_is_the_smallest_set() -> None:
    law = LOGITS.double().softmax(-1)
    for mass in (0.1, 0.5, 0.8, 0.95, 0.999):
        for row, ids in enumerate(kept(Policy(top_p=mass))):
            inside = law[row, ids]
            assert float(inside.sum()) >= mass - 1e-9
            assert float(inside.sum() - inside.min()) < mass


def test_min_p() -> None:
    law = LOGITS.softmax(-1)
    assert kept(Policy(min_p=0.2)) == [(row >= 0.2 * row.max()).nonzero().flatten().tolist() for row in law]


def test_order_is_temperature_then_filters() -> None:
    hot, cold = kept(Policy(2.0, top_p=0.9)), kept(Policy(0.3, top_p=0.9))
    assert len(hot[0]) > len(cold[0])


@pytest.mark.parametrize(
    ("setting", "name"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_k": -1}, "top_k"),
        ({"top_p": 0}, "top_p"),
        ({"min_p": 2}, "min_p"),
        ({"temperature": float("nan")}, "temperature"),
    ],
)
def test_bad_settings(setting: dict[str, float], name: str) -> None:
    with pytest.raises(ArgumentError, match=f"^{name}"):
        Policy(**setting)
