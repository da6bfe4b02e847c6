"""The stages of policies that kernels compute equal the plain code, and rough filters keep a little more."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.gpu import no_host_sync
from tests.kernels.test_threshold import NO_LOOPS, nucleus, ranked, some
from torch import Tensor

from spectr.policy import History, Past, Policy, PolicyRows, fused
from spectr.policy.history import Text
from spectr.policy.stages import rounded

pytest.importorskip("triton")
pytestmark = [pytest.mark.gpu] if torch.cuda.is_available() else [NO_LOOPS]  # `-m gpu` runs the kernels as they are
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZE, LARGE = 2_503, 49_152  # the last chunk is not full
OFF = -torch.inf
CLASS = 1 / 32  # of the rough search

FILTERS = [
    Policy(0.7, top_k=40, top_p=0.9), Policy(0), Policy(), Policy(1e-5), Policy(0, top_k=3, top_p=0.1, min_p=0.5),
    Policy(1.7, top_p=0.5), Policy(top_k=1), Policy(top_k=SIZE - 1, top_p=0.999, min_p=0.0),
    Policy(top_k=SIZE, top_p=1.0), Policy(0.5, top_k=700, top_p=1e-9),
]  # fmt: skip


@pytest.fixture
def by_kernels(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Tensor]:
    """A function that calls policies with the kernels; without it they run without."""
    monkeypatch.setattr(fused, "usable", lambda _: False)

    def call(rows: PolicyRows, logits: Tensor, *given: Any, **more: Any) -> Tensor:
        with monkeypatch.context() as patch:
            patch.setattr(fused, "usable", lambda x: x.dtype != torch.float64)
            before = logits.clone()
            found = rows(logits, *given, **more)
        assert torch.equal(logits.nan_to_num(7.0), before.nan_to_num(7.0))  # the input is not overwritten
        return found

    return call


ByKernels = Callable[..., Tensor]


def rows_of(policies: list[Policy], size: int = SIZE) -> PolicyRows:
    return PolicyRows.of(policies, size, DEVICE)


@pytest.mark.parametrize(
    "kind",
    [
        "tied", "excluded",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("random", "signed zeros", "flat", "neighbours")),
    ],
)  # fmt: skip
def test_filters_keep_the_same_tokens_with_kernels(kind: str, by_kernels: ByKernels) -> None:
    """The same tokens stay, ties included; rows that use no filter have the same bits, and so have greedy rows that are
    ranked. A captured step computes more stages than its rows use."""
    rows, logits = rows_of(FILTERS), some(kind, len(FILTERS), 2, SIZE).to(DEVICE)
    for ranks in (False, True):
        meant = rows(logits, ranked=ranks)
        assert torch.equal(by_kernels(rows, logits, ranked=ranks), meant)
        assert torch.equal(by_kernels(rows, logits, ranked=ranks, stages=rounded(rows.stages())), meant)


@pytest.mark.parametrize(
    "policy",
    [Policy(0.6), Policy(1e-5), Policy(0), Policy(top_k=9), Policy(top_p=0.8), Policy(top_k=99, typical_p=0.9)],
    ids=str,
)
def test_one_stage_alone(policy: Policy, by_kernels: ByKernels) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        rows, logits = rows_of([policy]), some("tied", 1, 3, SIZE).to(DEVICE, dtype)
        found = by_kernels(rows, logits)
        assert found.dtype == torch.float32
        assert torch.equal(found, rows(logits))
    wide = some("random", 1, 2, SIZE).to(DEVICE).double()
    assert torch.equal(by_kernels(rows, wide), rows(wide))  # float64 is left to the plain code
    apart = some("random", 2, 3, SIZE).to(DEVICE).transpose(0, 1)[..., : SIZE - 3]
    three = rows_of([policy] * 3, SIZE - 3)
    assert torch.equal(by_kernels(three, apart), three(apart))


def test_min_p_is_that_of_the_plain_code_up_to_rounding(by_kernels: ByKernels) -> None:
    policies = [Policy(min_p=0.1), Policy(0.5, min_p=0.9, top_k=50), Policy(2.0, min_p=1e-6, top_p=0.9), Policy()]
    rows = rows_of(policies)
    for kind in ("random", "tied", "excluded"):
        logits = some(kind, len(policies), 2, SIZE).to(DEVICE)
        meant = rows(logits)
        for roughly in (False, True):
            found = by_kernels(rows_of([replace(one, top_k=0, top_p=1.0) for one in policies]), logits, roughly=roughly)
            law = (logits / rows.number("temperature").float()[:, None, None]).softmax(-1)
            share = law / law.amax(-1, keepdim=True) / rows.number("min_p")[:, None, None].clamp_min(1e-300)
            clear = (share - 1).abs() > 1e-4
            assert torch.equal((found > OFF)[clear], (share.gt(1) & (logits > OFF))[clear])
        clear[0], clear[3] = True, True
        assert torch.equal(by_kernels(rows, logits)[clear], meant[clear])


def test_greedy_rows_without_tokens_and_with_ties(by_kernels: ByKernels) -> None:
    rows, logits = rows_of([Policy(0), Policy(0)]), torch.full((2, 3, SIZE), OFF, device=DEVICE)
    logits[0, 1, [2_100, 5, 2_400]] = torch.tensor([3.0, 2.0, 3.0], device=DEVICE)
    logits[1, 2] = -0.0
    logits[1, 1, 9] = torch.finfo(torch.float32).max
    found = by_kernels(rows, logits)
    assert torch.equal(found, rows(logits))
    assert found.argmax(-1).tolist() == [[0, 2_100, 0], [0, 9, 0]]


def excess(logits: Tensor, kept: Tensor, policy: Policy) -> tuple[int, int]:
    """Return how many tokens (M, V) were excluded that should stay, and how many stayed that are not close to the
    border: not in its class, or beyond a nucleus with a spare share that is 7 % smaller."""
    rows, size = logits[None], logits.shape[-1]
    border = ranked(rows, torch.tensor([policy.top_k]))[0][:, None]
    within = logits.masked_fill(logits < border, OFF)[None]
    least = torch.maximum(border, nucleus(within, torch.tensor([policy.top_p], dtype=torch.float64))[0][:, None])
    wider = logits.masked_fill(logits < border - 1.001 * CLASS, OFF)[None]
    spare = (1 - policy.top_p) * math.exp(-2.01 * CLASS)
    mass = torch.tensor([1 - spare if policy.top_p < 1 else 1.0], dtype=torch.float64)
    lower = torch.maximum(border, nucleus(wider, mass)[0][:, None]) - 1.001 * CLASS
    assert size == kept.shape[-1]
    return int((~kept & (logits >= least) & (logits > OFF)).sum()), int((kept & (logits < lower)).sum())


@pytest.mark.parametrize(
    "kind",
    ["random", "tied", "excluded", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("flat", "peaked", "far"))],
)
def test_rough_filters_keep_a_little_more(kind: str, by_kernels: ByKernels) -> None:
    policies = [
        Policy(top_k=40), Policy(top_k=1), Policy(top_p=0.9), Policy(top_p=0.999), Policy(top_p=1e-9),
        Policy(top_k=200, top_p=0.6), Policy(top_k=5, top_p=0.99), Policy(top_p=0.3),
    ]  # fmt: skip
    logits = some("peaked" if kind == "far" else kind, len(policies), 2, SIZE)
    logits = 9 * logits - 40 if kind == "far" else logits  # nearly all tokens are farther away than the classes reach
    found = by_kernels(rows_of(policies), logits.to(DEVICE), ranked=True, roughly=True).cpu()
    for x, shaped, policy in zip(logits, found, policies, strict=True):
        kept = shaped > OFF
        assert torch.equal(shaped[kept], x[kept])
        missing, spare = excess(x, kept, policy)
        assert missing == 0, policy
        assert spare == 0 or kind == "far", policy
        assert bool(kept.gather(-1, x.argmax(-1, keepdim=True)).all())


def test_rough_filters_leave_other_rows_alone(by_kernels: ByKernels) -> None:
    """Rows without filters and greedy rows keep their bits, NaN and infinity included; every row ends."""
    policies = [Policy(), Policy(0, top_k=3, top_p=0.2, min_p=0.9), Policy(top_k=SIZE), Policy(top_k=7, top_p=0.8)]
    rows, logits = rows_of(policies), some("random", 4, 6, SIZE).to(DEVICE)
    for row in logits:
        row[0], row[1, 1:], row[2], row[3, 2_400] = OFF, OFF, torch.nan, torch.nan
        row[4, 17], row[5, 5] = torch.inf, -torch.inf
    found = by_kernels(rows, logits, ranked=True, roughly=True)
    assert torch.equal(found[:3].nan_to_num(9.0), logits[:3].nan_to_num(9.0))
    last = found[3]
    assert bool((last[0] == OFF).all())
    assert last[1, 0] == logits[3, 1, 0]
    assert last[4, 17] == torch.inf
    for node in (3, 5):
        best = logits[3, node].nan_to_num(OFF).topk(7)
        kept = last[node] > OFF
        assert bool(kept[best.indices[0]])
        assert not bool(kept[logits[3, node] < best.values[-1] - CLASS].any())
    law = PolicyRows.of([Policy(top_k=7, top_p=0.8)], SIZE, DEVICE)
    alone = by_kernels(law, logits[3:, 5:], ranked=True, roughly=True)
    assert torch.equal(alone[0, 0], last[5])


PENALTIES = [
    Policy(), Policy(repetition_penalty=1.7), Policy(0, repetition_penalty=0.6), Policy(presence_penalty=0.8),
    Policy(frequency_penalty=-0.37), Policy(0.9, presence_penalty=-0.3, frequency_penalty=0.7, repetition_penalty=1.1),
    Policy(min_new_tokens=4, repetition_penalty=1.3), Policy(min_length=7), Policy(logit_bias={3: 2.5, 4: -math.inf}),
    Policy(logit_bias={2_500: -1e-3}, repetition_penalty=1.2, frequency_penalty=1.0, min_new_tokens=9),
    Policy(no_repeat_ngram_size=2, bad_words=[[3, 1]], repetition_penalty=1.2, min_new_tokens=9),
]  # fmt: skip


def text_case(policies: list[Policy], size: int = SIZE, nodes: int = 5, depth: int = 4) -> tuple[Past, Tensor]:
    """Return a past in which tokens repeat on paths and in texts, of which some are at the end of the vocabulary, and
    logits."""
    draws = torch.Generator().manual_seed(3)
    common = torch.tensor([0, 1, 3, 4, 2_047, 2_048, size - 1])

    def tokens(count: int) -> list[int]:
        return common[torch.randint(len(common), (count,), generator=draws)].tolist()

    history = History(len(policies), 24, size, DEVICE)
    history.put(
        0, [Text(tokens(1 + row), tokens(row % 4), None, frozenset({1, size - 1})) for row in range(len(policies))]
    )
    history.look_back(seen=True, counts=True)
    paths = common[torch.randint(len(common), (len(policies), nodes, depth), generator=draws)]
    lengths = torch.randint(depth + 1, (len(policies), nodes, 1), generator=draws)
    paths = torch.where(torch.arange(depth) < lengths, paths, -1)
    return Past(history, paths.to(DEVICE)), some("tied", len(policies), nodes, size).to(DEVICE)


@pytest.mark.parametrize("depth", [0, 4, pytest.param(1, marks=pytest.mark.slow)])
def test_penalties_equal_the_plain_code(depth: int, by_kernels: ByKernels) -> None:
    """Bits are equal, on paths and beside them; a captured step computes more stages than its rows use."""
    rows, (past, logits) = rows_of(PENALTIES), text_case(PENALTIES, depth=depth)
    logits[0, 0, :9], logits[1, 1, 3], logits[6, 2, 1], logits[5, 0] = torch.nan, torch.nan, torch.nan, OFF
    logits[2, 0, 4], logits[1, 0, 0], logits[4, 0, 1] = torch.inf, OFF, OFF
    for given in (logits, logits.bfloat16()):
        for stages in (None, rounded(rows.stages())):
            meant = rows(given, past, stages=stages, ranked=True)
            found = by_kernels(rows, given, past, stages=stages, ranked=True)
            assert torch.equal(found.isnan(), meant.isnan())
            assert torch.equal(found.nan_to_num(7.0), meant.nan_to_num(7.0))
    assert torch.equal(by_kernels(rows, logits, past)[0].nan_to_num(7.0), logits[0].nan_to_num(7.0))
    usual = rows_of(PENALTIES[:10])
    few = Past(past.history.window(10), past.paths[:10])
    assert torch.equal(
        by_kernels(usual, logits[:10], few, stages=rounded(usual.stages()), ranked=True).nan_to_num(7.0),
        usual(logits[:10], few, ranked=True).nan_to_num(7.0),
    )


def test_penalties_of_the_neighbour_are_seen(by_kernels: ByKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted faults: kernels with the penalties of the row before, with its flags, with its tables, with the paths of
    the node before, or with none."""
    rows, (past, logits) = rows_of(PENALTIES), text_case(PENALTIES)
    meant, history = rows(logits, past), past.history
    assert torch.equal(by_kernels(rows, logits, past), meant)
    number, users = PolicyRows.number, PolicyRows.users
    faults: dict[str, tuple[type, Any]] = {
        "number": (PolicyRows, lambda *given: number(*given).roll(1)),
        "users": (PolicyRows, lambda *given: users(*given).roll(1)),
        "seen": (History, property(lambda _, held=history.seen: held.roll(1, 0))),
        "counts": (History, property(lambda _, held=history.counts: held.roll(1, 0))),
    }
    for name, (place, fault) in faults.items():
        with monkeypatch.context() as patch:
            patch.setattr(place, name, fault)
            assert not torch.equal(by_kernels(rows, logits, past), meant), name
    sibling = replace(past, paths=past.paths.roll(1, 1))
    assert not torch.equal(by_kernels(rows, logits, sibling), meant)
    assert not torch.equal(by_kernels(rows, logits, replace(past, paths=torch.full_like(past.paths, -1))), meant)


def test_rows_of_a_batch_equal_rows_alone(by_kernels: ByKernels) -> None:
    policies = [*PENALTIES[:10], *FILTERS]
    rows, (past, logits) = rows_of(policies), text_case(policies, nodes=2)
    for more in ({}, {"ranked": True, "roughly": True}):
        together = by_kernels(rows, logits, past, stages=rounded(rows.stages()), **more)
        for row in range(0, len(policies), 3):
            few = rows.take_rows([row])
            tables = History(1, 24, SIZE, DEVICE)
            tables.make_room(len(policies), 24)
            tables.look_back(seen=True, counts=True)
            for table, held in zip(vars(tables).items(), vars(past.history).values(), strict=True):
                if isinstance(held, Tensor):
                    getattr(tables, table[0])[:1] = held[row : row + 1]
            alone = Past(tables.window(1), past.paths[row : row + 1])
            found = by_kernels(few, logits[row : row + 1], alone, stages=rounded(rows.stages()), **more)
            assert torch.equal(found[0], together[row]), row


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(1, 64), (8, 8), (1, 1)])
@pytest.mark.parametrize("kind", ["random", "tied", "peaked", "flat"])
def test_large_vocabularies(kind: str, shape: tuple[int, int], by_kernels: ByKernels) -> None:
    """Kernels give what the plain code gives on the same device, without a synchronisation, and again when replayed
    from a CUDA graph with other settings. The rough filters keep at least as much."""
    policies = [
        Policy(0.8, top_k=50, top_p=0.95, repetition_penalty=1.3), Policy(frequency_penalty=0.4, top_p=0.5),
        Policy(0), Policy(top_k=1, presence_penalty=0.2), Policy(top_k=40_000, top_p=0.999), Policy(1e-5),
        Policy(top_p=0.1, min_new_tokens=9), Policy(),
    ][: shape[0]]  # fmt: skip
    past, _ = text_case(policies, LARGE, shape[1])
    logits = some(kind, *shape, LARGE).cuda()
    logits[:, :, 5::7] = OFF
    rows = rows_of(policies, LARGE)
    rows.make_bias()
    stages = rounded(frozenset({"top_k", "repetition_penalty"}))
    rough = by_kernels(rows, logits, past, stages=stages, ranked=True, roughly=True)
    assert not bool(((rough == OFF) & (rows(logits, past, stages=stages, ranked=True) > OFF)).any())
    assert torch.equal(by_kernels(rows, logits, past, stages=stages), rows(logits, past, stages=stages))
    graph = torch.cuda.CUDAGraph()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fused, "usable", lambda _: True)
        with no_host_sync():
            rows(logits, past, stages=stages)
            rows(logits, past, stages=stages, ranked=True, roughly=True)
        with torch.cuda.graph(graph):
            captured = rows(logits, past, stages=stages)
    for changed in (policies, policies[::-1], [Policy(top_p=0.7, frequency_penalty=1.0)] * len(policies)):
        rows.put(0, changed)
        graph.replay()
        assert torch.equal(captured, rows(logits, past, stages=stages))
