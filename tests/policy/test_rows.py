"""Policies of several rows at once: each row gets bit by bit what its policy gives alone."""

import math
import random
from typing import Any

import pytest
import torch
from tests.late import _for_all_rows
from torch import Tensor

from spectr.policy import History, Past, Policy, PolicyRows
from spectr.policy.history import Text
from spectr.policy.stages import STAGES, rounded

V, NODES, DEPTH = 16, 5, 3
STOPS = frozenset({14, 15})


def spread(ids: Tensor, scores: Tensor) -> Tensor:
    return scores + ids[:, -1:] / 5 * torch.arange(V)


POLICIES = [
    Policy(), Policy(0), Policy(0, logit_bias={1: -math.inf}, repetition_penalty=1.4), Policy(0.6), Policy(1e-5),
    Policy(1.3, top_k=4), Policy(top_p=0.7), Policy(0.8, top_k=9, top_p=0.9, min_p=0.05), Policy(typical_p=0.6),
    Policy(epsilon_cutoff=0.05, eta_cutoff=0.1), Policy(repetition_penalty=1.5), Policy(0.9, presence_penalty=0.8),
    Policy(frequency_penalty=0.5, min_new_tokens=3), Policy(logit_bias={3: 2.5, 4: -math.inf}, suppress_tokens=[9]),
    Policy(bad_words=[[2], [1, 3], [4, 4, 5]]), Policy(bad_words=[[3, 1]], no_repeat_ngram_size=2),
    Policy(no_repeat_ngram_size=3, min_length=9), Policy(begin_suppress_tokens=[1, 2, 3], forced_eos_token_id=14),
    Policy(allowed=lambda text: [token for token in range(V) if (token + sum(text)) % 3]),
    Policy(0.7, top_p=0.8, processors=[spread]),
]  # fmt: skip


def case(seed: int, rows: int) -> tuple[list[Policy], list[Text], Tensor, Tensor]:
    """Policies, texts, paths and logits of `rows` rows."""
    draws, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    policies = [draws.choice(POLICIES) for _ in range(rows)]
    texts = [
        Text([draws.randrange(6) for _ in range(draws.randrange(1, 9))],
             [draws.randrange(6) for _ in range(draws.randrange(4))], draws.randrange(5, 9), STOPS)
        for _ in range(rows)
    ]  # fmt: skip
    paths = torch.randint(6, (rows, NODES, DEPTH), generator=generator)
    paths = torch.where(
        torch.arange(DEPTH) < torch.randint(DEPTH + 1, (rows, NODES, 1), generator=generator), paths, -1
    )
    logits = 3 * torch.randn(rows, NODES, V, generator=generator)
    return policies, texts, paths, (logits * 4).round() / 4  # ties are common


def histories(texts: list[Text]) -> History:
    made = History(len(texts), 32, V)
    made.put(0, texts)
    return made


def alone(policies: list[Policy], texts: list[Text], paths: Tensor, logits: Tensor, *, ranked: bool) -> Tensor:
    """The logits of each row, computed alone."""
    found = []
    for row, policy in enumerate(policies):
        past = Past(histories([texts[row]]), paths[row : row + 1])
        found.append(PolicyRows.of([policy], V)(logits[row : row + 1], past, ranked=ranked))
    return torch.cat(found)


@pytest.fixture(params=["users", "everybody"])
def _device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute policies as on a CPU, for the rows that use a setting, and as on a GPU, for all rows."""
    if request.param == "everybody":
        monkeypatch.setattr(PolicyRows, "_where_used", _for_all_rows)


@pytest.mark.usefixtures("_device")
@pytest.mark.parametrize("ranked", [False, True], ids=["law", "ranked"])
def test_a_row_in_a_batch_equals_a_row_alone(ranked: bool) -> None:
    for seed in range(60):
        policies, texts, paths, logits = case(seed, 1 + seed % 7)
        together = PolicyRows.of(policies, V)(logits, Past(histories(texts), paths), ranked=ranked)
        assert torch.equal(together, alone(policies, texts, paths, logits, ranked=ranked)), seed


@pytest.mark.usefixtures("_device")
def test_unused_stages_change_nothing() -> None:
    """Captured steps compute more stages than their rows use."""
    for seed in range(30):
        policies, texts, paths, logits = case(seed, 4)
        rows, past = PolicyRows.of(policies, V), Past(histories(texts), paths)
        wider = rounded(rows.stages())
        assert rows.stages() <= wider
        rows.make_bias()
        assert torch.equal(rows(logits, past, stages=wider), rows(logits, past))


def test_few_sets_of_stages_serve_all() -> None:
    plain = [frozenset(random.Random(seed).sample(STAGES[:-2], 3)) for seed in range(200)]
    found = {rounded(one) for one in plain}
    assert len(found) <= 5
    assert all(one <= rounded(one) for one in plain)


@pytest.mark.usefixtures("_device")
def test_rows_come_and_go() -> None:
    """Rows are put, moved, viewed and added; each has the policy that was put there last."""
    draws = random.Random(5)
    _, texts, paths, logits = case(1, 12)
    held, rows, history = [Policy()] * 2, PolicyRows(2, V), histories(texts[:2])
    for turn in range(60):
        first = draws.randrange(len(held))
        match turn % 5:
            case 0 | 1:
                fresh = [draws.choice(POLICIES) for _ in range(draws.randrange(1, len(held) - first + 1))]
                rows.put(first, fresh)
                held[first : first + len(fresh)] = fresh
            case 2:
                order = draws.sample(range(len(held)), len(held))
                rows.copy_rows(order, list(range(len(held))))
                held = [held[row] for row in order]
            case 3 if len(held) < 9:
                rows.make_room(len(held) + 2)
                held = [*held, Policy(), Policy()]
                history = histories(texts[: len(held)])
        count = draws.randrange(1, len(held) + 1)
        past = Past(history.window(count), paths[:count])
        want = alone(held[:count], texts[:count], paths[:count], logits[:count], ranked=False)
        assert torch.equal(rows.window(count)(logits[:count], past), want), turn
        picked = draws.sample(range(len(held)), count)
        past = Past(histories([texts[row] for row in picked]), paths[picked])
        want = alone([held[r] for r in picked], [texts[r] for r in picked], paths[picked], logits[picked], ranked=False)
        assert torch.equal(rows.take_rows(picked)(logits[picked], past), want), turn


def test_the_version_changes_when_a_table_is_replaced() -> None:
    """The version changes whenever a table is replaced, since captured steps know tensors by their addresses."""

    def places(rows: PolicyRows) -> list[int]:
        return [table.data_ptr() for table in rows._tables()]

    rows = PolicyRows.of(POLICIES[:18], V)
    before, version = places(rows), rows.version
    for policy in POLICIES[:18]:
        rows.put(3, [policy])
    rows.copy_rows([1, 2], [2, 1])
    assert (places(rows), rows.version) == (before, version)
    rows.put(0, [Policy(bad_words=[[1, 2, 3, 4, 5, 6]])])
    assert rows.version > version
    assert places(rows) != before


class Grammar:
    """A user's hook that compares by value and cannot be hashed."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grammar)

    def __call__(self, *given: Any) -> Any:
        return [3, 4] if len(given) == 1 else given[1] + 1


@pytest.mark.parametrize("setting", [{"allowed": Grammar()}, {"processors": [Grammar()]}], ids=["hook", "processor"])
def test_hooks_need_no_hash(setting: dict[str, Any]) -> None:
    policies, (_, texts, paths, logits) = [Policy(**setting), Policy(), Policy(0.5, **setting)], case(2, 3)
    shaped = PolicyRows.of(policies, V)(logits, Past(histories(texts), paths))
    assert torch.equal(shaped, alone(policies, texts, paths, logits, ranked=False))
