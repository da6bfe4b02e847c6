"""Graph prefill leaves the rows of a session in the same state as a plain read."""

from typing import Any

import pytest
import torch
from tests.tiny import llama
from torch import Tensor

from spectr.models.prefill import GraphPrefill
from spectr.models.target import Session, Target

GPU = pytest.param("cuda", marks=pytest.mark.gpu)
CASES = {
    "one row": ([[5, 6, 7]], [0]),
    "one row that goes on": ([[8] * 40], [11]),
    "one long row": ([[3 + at % 90 for at in range(700)]], [20]),
    "three rows together": ([[5] * 9, [6] * 30, [7]], [0, 4, 17]),
    "a row gets none": ([[5] * 9, []], [3, 6]),
    "two rows one by one": ([[5] * 300, [6] * 290], [2, 9]),
}


def _target(device: str) -> Target:
    made = Target(llama(0, 97, 3, max_position_embeddings=1024).to(device))
    made.joint = True  # as on a GPU
    return made


def _opened(target: Target, filled: list[int]) -> Session:
    """Open a session whose rows have read something, and which keeps features of a layer."""
    session = target.open(len(filled) + 2, 900, feature_layers=(1,))
    target.read(session, [[1] * 25 for _ in range(session.rows)])
    target.rewind(session, [25, *filled, 25])
    return session


def _held(session: Session, lengths: list[int]) -> list[Tensor]:
    store = session.store
    assert store.features is not None
    found = [session.filled]
    for row, length in enumerate(lengths):
        found += [buffer[..., row, :, :length, :] for buffer in session.cache.buffers()]
        found += [store.position[row, :length], store.features[row, :length]]
    return found


@pytest.mark.parametrize("device", ["cpu", GPU])
@pytest.mark.parametrize("name", CASES)
def test_graph_prefill_leaves_the_state_of_a_plain_read(name: str, device: str) -> None:
    """Graph prefill and a plain read give the same keys, values, positions and features, and do not change other rows.

    They are compared three times, because a graph is captured in the second call.
    """
    texts, filled = CASES[name]
    target = _target(device)
    plain, apart = _opened(target, filled), _opened(target, filled)
    reading = target.graph_prefill(apart)
    lengths = [25, *(start + len(text) for start, text in zip(filled, texts, strict=True)), 25]
    stop = 1 + len(texts)
    target.read(plain.window(1, stop, max(filled)), texts, filled)
    for _ in range(3):
        target.rewind(apart, [25, *filled, 25])
        window = apart.window(1, stop, max(filled))
        assert reading.can_read(window, texts, filled)
        with torch.no_grad():
            reading.read(window, texts, filled)
        for old, new in zip(_held(plain, lengths), _held(apart, lengths), strict=True):
            torch.testing.assert_close(old, new, rtol=1e-9, atol=1e-11)


def test_a_session_with_graph_prefill_uses_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """`read` uses the graph prefill of the session if it has one."""
    target = _target("cpu")
    session = _opened(target, [4])
    session.prefill = target.graph_prefill(session)
    calls: list[Any] = []
    read = GraphPrefill.read
    monkeypatch.setattr(GraphPrefill, "read", lambda *given: [calls.append(given), read(*given)])
    window = session.window(1, 2, 4)
    target.read(window, [[5] * 9], [4])
    assert len(calls) == 1
    assert (session.filled.tolist(), window.longest) == ([25, 13, 25], 13)


def test_without_memory_prompts_are_read_without_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """If there is no memory for graphs, graph prefill is turned off and prompts are read without it."""
    target = _target("cpu")
    session = _opened(target, [4])
    session.prefill = target.graph_prefill(session)

    def open_none(*_: Any, **__: Any) -> Session:
        raise torch.OutOfMemoryError("no memory is left")

    monkeypatch.setattr(target, "open", open_none)
    for _ in range(2):
        target.rewind(session, [25, 4, 25])
        target.read(session.window(1, 2, 4), [[5] * 9], [4])
        assert session.filled.tolist() == [25, 13, 25]
    assert session.prefill.is_off
