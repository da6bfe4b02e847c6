"""Runs the engine as on a GPU, on any device: steps are read one step late, and run as if captured, for a rounded
number of rows, a rounded length and a rounded set of settings."""

from typing import Any

import pytest
from torch import Tensor

from spectr.draft.model import ModelDrafting
from spectr.engine.lane import Lane
from spectr.policy import PolicyRows

__all__ = ["LateLane", "run_as_on_a_gpu"]


class LateLane(Lane):
    """A lane that behaves as on a GPU."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        assert getattr(self.parts.drafter, "capturable", False)
        self.lag, self.captures = 1, self.parts.rule.card.capturable and not self.optimality_gap


def _for_all_rows(rows: PolicyRows, name: str, step: Any, logits: Tensor) -> Tensor:
    """Compute policies as on a GPU: for all rows, with rows that do not use a setting restored afterwards."""
    return rows._put_back(name, step(rows, logits), logits)


def run_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every engine that is created from now on behave as on a GPU."""
    monkeypatch.setattr("spectr.engine.scheduler.Lane", LateLane)
    monkeypatch.setattr(PolicyRows, "_where_used", _for_all_rows)
    monkeypatch.setattr(ModelDrafting, "_lags", lambda *_: False)  # reading the value would make the host wait
