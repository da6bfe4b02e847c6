"""When ranks differ or one of them dies, there is a clear error and no wrong text, and all ranks end within seconds.

Here only the ranks themselves end each other; torchrun would end them as well.
"""

import os
import signal
from pathlib import Path

import pytest
from tests.parallel.ranks import Ranks, altered_tokens, altered_verdict, generate, perturbed_logits, wait

pytestmark = pytest.mark.scale

WITHIN = 60  # seconds; on an idle machine it takes about four


def test_ranks_that_agree_end_with_zero(folder: Path, tmp_path: Path) -> None:
    """Ranks without a fault generate a text and exit with 0."""
    with Ranks(2, folder, tmp_path) as ranks:
        assert ranks.codes(90) == [0, 0], ranks.said(0) + ranks.said(1)
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize(
    ("plant", "sentence"),
    [
        (altered_tokens, "rank 1 ran a different call than rank 0"),
        (altered_verdict, "rank 1 committed different tokens than rank 0"),
    ],
)
def test_a_planted_fault_of_one_rank_is_seen(folder: Path, tmp_path: Path, plant: object, sentence: str) -> None:
    """Planted fault: one rank scores or keeps other tokens. All ranks end with an error that names the rank."""
    with Ranks(2, folder, tmp_path, plants={1: plant}) as ranks:  # type: ignore[dict-item]
        assert ranks.codes(90) == [1, 1]
        assert sentence in ranks.said(0)
        assert sentence in ranks.said(1)
    assert not (tmp_path / "ended").exists()


def test_logits_that_differ_in_the_last_bit_are_counted(folder: Path, tmp_path: Path) -> None:
    """Logits that differ by rounding are no error but counted, since only the logits of rank 0 decide."""
    with Ranks(2, folder, tmp_path, plants={1: perturbed_logits}) as ranks:
        assert ranks.codes(90) == [0, 0], ranks.said(0)
    assert (tmp_path / "ended").read_text().split()[-1] == "1"


@pytest.mark.parametrize(("victim", "job"), [(1, generate), (1, wait), (0, generate)])
def test_a_killed_rank_ends_the_others(folder: Path, tmp_path: Path, victim: int, job: object) -> None:
    """When a rank is killed, while it generates or waits, the other ends soon with an error that names it."""
    with Ranks(2, folder, tmp_path, job) as ranks:  # type: ignore[arg-type]
        assert ranks.has_begun(), ranks.said(0)
        killed = ranks.processes[victim]
        assert killed.pid is not None
        os.kill(killed.pid, signal.SIGKILL)
        codes = ranks.codes(WITHIN)
        assert codes[victim] == -signal.SIGKILL
        assert codes[1 - victim] == 1
        assert f"rank {victim} (process {killed.pid}) has ended" in ranks.said(1 - victim)
    assert not (tmp_path / "ended").exists()
