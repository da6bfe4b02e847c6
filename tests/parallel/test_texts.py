"""A model over several processes gives the texts that it gives in one: every rule, every drafter.

In float64 texts are equal token for token. The default model is float32: its products are summed in another order over
three processes, so that texts may part at a near-tie, which is looked at.
"""

from pathlib import Path

import pytest
from tests.parallel.cases import DEFAULT, default_texts, tiny_texts, verdicts
from tests.parallel.conftest import Job

import spectr
from spectr.audit.equality import Scores, compare
from spectr.models.catalog import pull

pytestmark = pytest.mark.scale


def test_two_processes_give_the_texts_of_one(torchrun: Job, folder: Path, other: Path) -> None:
    """A Llama of 4 heads, and 10,000 verdicts of which both ranks have the same hash."""
    found = torchrun(2, "tiny", folder, other)
    alone = spectr.load(folder, "none", dtype="float64")
    meant = tiny_texts(alone.opened, other)
    assert found["texts"].keys() == meant.keys()
    assert found["texts"] == meant
    assert found["many"] == verdicts(alone.opened, 64, 160)
    assert found["digest"] == alone.opened.target.digest()
    assert found["rows"] >= 10_000
    assert found["rounded"] == 0


def test_three_processes_give_the_texts_of_the_default_model(torchrun: Job) -> None:
    """9 heads and 3 key-value heads; 200 verdicts."""
    pull(DEFAULT)
    found = torchrun(3, "default")
    alone = spectr.load(DEFAULT, weights="float32")
    meant = default_texts(alone)
    assert found["texts"].keys() == meant.keys()
    for name, (requests, texts) in meant.items():
        scores = Scores(alone.opened.target, noisy=name.startswith("race"))
        compared = compare(requests, texts, found["texts"][name], scores)
        assert compared.holds, (name, compared)
    assert found["rows"] >= 200
    assert "feature" in found["name"]
