"""Runs the engine on any device as on a GPU: steps are read one step late, and run as they would be captured, for a
rounded number of rows, a rounded length and a rounded set of policy stages."""

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
        runner = self.runner
        runner.lag, runner.captures = 1, self.parts.rule.card.capturable and not runner.optimality_gap


def _for_all_rows(rows: PolicyRows, name: str, step: Any, logits: Tensor) -> Tensor:
    """Compute policies as on a GPU: for all rows, after which rows that do not use a setting are put back."""
    return rows._put_back(name, step(rows, logits), logits)


def run_as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every engine that is created from now on use late lanes."""
    monkeypatch.setattr("spectr.engine.scheduler.Lane", LateLane)
    monkeypatch.setattr(PolicyRows, "_where_used", _for_all_rows)
    monkeypatch.setattr(ModelDrafting, "_lags", lambda *_: False)  # reading the value would make the host wait
