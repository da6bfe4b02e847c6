"""`spectr bench cpu`: every method on one file, figures computed from the cells, and runs that are continued."""

import json
from pathlib import Path

import pytest
from tests.gguf_files import write_gguf

from spectr.bench.cpu import WAYS, CpuTrial, run, summarise
from spectr.errors import ArgumentError


def trial(tmp_path: Path, **more: object) -> CpuTrial:
    path = write_gguf(tmp_path / "tiny.gguf", "Q4_1", **{"llama.context_length": 1024})
    ways = ("transformers", "spectr plain", "spectr default")
    given = {"ways": ways, "tokens": 8, "rounds": 2, "threads": 1, **more}
    return CpuTrial(str(path), tmp_path / "found.json", ["the", "thin"], **given)  # type: ignore[arg-type]


def test_every_method_is_measured_and_a_run_is_continued(tmp_path: Path) -> None:
    asked = trial(tmp_path)
    found = run(asked, lambda _: None)
    assert set(found["results"]) == set(asked.ways)
    row = found["results"]["spectr plain"]
    assert row["tokens_per_second"] > 0
    assert row["ratio_to_transformers"] > 0
    assert found["memory"]["target"].keys() == {"Q4_1", "Q8_0"}
    written = json.loads(asked.out.read_text())
    assert len(written["cells"]) == 2 * 3 * 3  # rounds, prompts and the long one, ways
    assert run(asked, lambda _: None)["results"] == found["results"]  # nothing was measured again
    with pytest.raises(ArgumentError, match="holds a run with another tokens"):
        run(trial(tmp_path, tokens=9), lambda _: None)


def test_ratios_are_taken_prompt_by_prompt() -> None:
    """A slow minute that affects both methods changes no ratio."""
    cells = [
        {"way": way, "round": turn, "prompt": prompt, "rate": speed / slow, "first": 1.0}
        for turn, slow in ((0, 1.0), (1, 10.0))
        for prompt in range(2)
        for way, speed in (("spectr plain", 30.0), ("llama.cpp", 20.0))
    ]
    cells += [
        {"way": way, "round": 0, "prompt": 2, "prefill": s} for way, s in (("spectr plain", 2.0), ("llama.cpp", 4.0))
    ]
    found = summarise(cells, ("spectr plain", "llama.cpp"))
    assert found["spectr plain"]["ratio_to_llama.cpp"] == pytest.approx(1.5)
    assert found["spectr plain"]["prefill_ratio_to_llama.cpp"] == pytest.approx(2.0)
    assert found["llama.cpp"]["prefill_tokens_per_second"] == pytest.approx(128.0)


def test_unknown_ways_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="ways must be among transformers, spectr plain"):
        run(trial(tmp_path, ways=("vllm",)), lambda _: None)
    assert WAYS[-1] == "llama.cpp"
