"""Batches in this process: the results of good and bad lines, and the contents of the journal."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import Spectr, spectr
from tests.fleet.conftest import Requests, read_results, request_line

from spectr import load
from spectr.errors import ArgumentError
from spectr.fleet import batch as batch_module
from spectr.fleet.answerer import BatchAnswerer, BatchModel
from spectr.fleet.batch import BatchFiles, Tally, run_batch
from spectr.fleet.journal import Journal
from spectr.fleet.lines import read_lines, seed_of

__all__ = ["spectr"]  # a fixture


@pytest.fixture(scope="module")
def model(folder: str) -> BatchModel:
    """A small model in float64, so that texts do not depend on the other requests of a batch."""
    return BatchModel(folder, "lookup", running=8, loading={"dtype": "float64"})


def run(requests: Path, out: Path, model: BatchModel, chunk: int = 4) -> Tally:
    return run_batch(BatchFiles(requests, out, chunk), model, lambda _: None, lambda *_: nullcontext(lambda _: None))


def text_of(result: dict[str, Any]) -> str:
    (choice,) = result["response"]["body"]["choices"]
    return choice["text"] if "text" in choice else choice["message"]["content"]


def test_results_are_what_the_model_says_alone(requests: Requests, tmp_path: Path, model: BatchModel) -> None:
    """Every line gets the text of `LM.generate`, with a seed that follows from its id; the journal is removed."""
    path, out = requests(10), tmp_path / "out.jsonl"
    tally = run(path, out, model)
    lm = load(model.model, "none", dtype="float64")
    found = read_results(out)
    assert [result["custom_id"] for result in found] == [f"r-{number}" for number in range(10)]
    for number, result in enumerate(found):
        prompt: Any = f"one two {number}" if number % 2 else [{"role": "user", "content": f"tides {number}"}]
        alone = lm.generate(prompt, max_new_tokens=40, seed=seed_of(f"r-{number}"), raw=True)
        assert text_of(result) == alone.text
        assert result["response"]["body"]["usage"]["completion_tokens"] == len(alone.tokens)
    assert (tally.answered, tally.refused, tally.bad, tally.resumed) == (10, 0, 0, 0)
    assert sorted(one.name for one in tmp_path.iterdir()) == ["out.jsonl", "requests.jsonl"]


def test_a_seed_of_the_body_stands(requests: Requests, tmp_path: Path, model: BatchModel) -> None:
    """A seed in the body is used; otherwise the seed follows from the id of the line."""
    run(requests([request_line(1, seed=5), request_line(3)]), tmp_path / "out.jsonl", model)
    seeds = [result["response"]["body"]["spectr"]["seed"] for result in read_results(tmp_path / "out.jsonl")]
    assert seeds == [5, seed_of("r-3")]


def test_bad_lines_become_errors_and_lose_nothing(requests: Requests, tmp_path: Path, model: BatchModel) -> None:
    """Every bad line gets a result with an error code, in its place, and good lines are answered."""
    good = request_line(1)
    lines = [
        good, "{not json", "[1]", "", good, {**request_line(3), "url": "/v1/nothing"}, {**request_line(5), "urk": 1},
        {**request_line(7), "custom_id": 7}, request_line(9, stream=True), request_line(11, temprature=1),
        {**request_line(13), "body": "text"}, {**request_line(15), "method": "GET"}, request_line(17),
    ]  # fmt: skip
    tally = run(requests(lines), tmp_path / "out.jsonl", model)
    found = read_results(tmp_path / "out.jsonl")
    codes = [
        result["error"]["code"] if result["error"] else result["response"]["body"].get("error", {}).get("code", 200)
        for result in found
    ]
    assert codes == [
        200, "invalid_json", "invalid_json", "duplicate_custom_id", "invalid_url", "unknown_field", "invalid_custom_id",
        "unsupported_field", "unknown_field", "invalid_json", "invalid_url", 200,
    ]  # fmt: skip
    without = [place for place, result in enumerate(found) if result["response"] is None]
    assert without == [1, 2, 3, 4, 5, 6, 10]
    assert "temperature" in found[8]["response"]["body"]["error"]["message"]
    assert found[7]["response"]["status_code"] == 400
    assert (tally.answered, tally.refused, tally.bad) == (2, 3, 7)


def test_a_byte_that_is_no_text_spoils_its_line_alone(tmp_path: Path, model: BatchModel) -> None:
    """A line that is not valid UTF-8 is an error of that line only."""
    path = tmp_path / "requests.jsonl"
    path.write_bytes(b"\xff\xfe{}\n" + json.dumps(request_line(1)).encode())
    tally = run(path, tmp_path / "out.jsonl", model)
    assert (tally.answered, tally.bad) == (1, 1)


def test_it_goes_on_where_it_stopped(
    requests: Requests, tmp_path: Path, model: BatchModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a process has ended in the middle of a journal line, the next one answers exactly the missing requests."""
    path, whole, out = requests(10), tmp_path / "whole.jsonl", tmp_path / "out.jsonl"
    run(path, whole, model)
    answered: list[int] = []
    original = BatchAnswerer.answer

    async def counting(self: BatchAnswerer, lines: Any) -> Any:
        answered.extend(line.number for line in lines)
        if len(answered) > 4:
            raise KeyboardInterrupt
        return await original(self, lines)

    monkeypatch.setattr(batch_module.BatchAnswerer, "answer", counting)
    with pytest.raises(KeyboardInterrupt):
        run(path, out, model)
    monkeypatch.undo()
    journal = tmp_path / "out.jsonl.journal"
    kept = journal.read_bytes()
    done = len(kept.splitlines()) - 1
    assert not out.exists()
    for broken in (b"[]\n", b"{}\n", b'{"line": "x"}\n'):
        journal.write_bytes(kept + broken)
        Journal(tmp_path / "out.jsonl", json.loads(kept.splitlines()[0])["batch"]).__exit__(None, None, None)
        assert journal.read_bytes() == kept
    journal.write_bytes(kept + b'{"line": 9, "result": {"id"')
    tally = run(path, out, model)
    assert tally.resumed == done
    assert tally.answered == 10 - done
    assert read_results(out) == read_results(whole)


def test_a_journal_belongs_to_one_batch(requests: Requests, tmp_path: Path, model: BatchModel) -> None:
    """A journal cannot be opened by two processes, nor continued with another input or model."""
    path, out = requests(3), tmp_path / "out.jsonl"
    with Journal(out, {"input": "a", "model": "m"}) as journal, pytest.raises(ArgumentError, match="another process"):
        Journal(out, {"input": "a", "model": "m"})
    assert journal.done == frozenset()
    with pytest.raises(ArgumentError, match="started with a different input, model"):
        Journal(out, {"input": "b", "model": "n"})
    with pytest.raises(ArgumentError, match="started with a different"):
        run(path, out, model)
    for line in (b"garbage\n", b"[]\n", b"\xff\n", b'{"format": 1, "batch": []}\n'):
        journal.path.write_bytes(line)
        with pytest.raises(ArgumentError, match="its first line is not; remove this file to start"):
            run(path, out, model)


def test_results_are_not_written_over(requests: Requests, tmp_path: Path, model: BatchModel) -> None:
    """A batch refuses an output file that already exists."""
    out = tmp_path / "out.jsonl"
    out.write_text("mine")
    with pytest.raises(ArgumentError, match="already exists"):
        run(requests(2), out, model)
    assert out.read_text() == "mine"


def test_a_journal_keeps_the_first_result_of_a_line(tmp_path: Path) -> None:
    """Results are written in the order of lines, and the first result of a line counts."""
    out = tmp_path / "out.jsonl"
    with Journal(out, {}) as journal:
        journal.append([(2, {"id": "b"}), (1, {"id": "a"})])
        journal.append([(2, {"id": "again"}), (3, {"id": "c"})])
    with Journal(out, {}) as journal:
        assert journal.done == {1, 2, 3}
        journal.finish()
    assert [json.loads(line)["id"] for line in out.read_text().splitlines()] == ["a", "b", "c"]


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("\n\n")
    with pytest.raises(ArgumentError, match="at least one request"):
        read_lines(tmp_path / "empty.jsonl")
    with pytest.raises(ArgumentError, match="must be a file"):
        read_lines(tmp_path / "missing.jsonl")


def test_the_command_reports_its_counts(spectr: Spectr, requests: Requests, tmp_path: Path, folder: str) -> None:
    """`spectr batch` reports counts, and refuses existing results and several workers without Ray."""
    out = str(tmp_path / "out.jsonl")
    flags = ("--model", folder, "--dtype", "float64", "--drafter", "lookup")
    path = str(requests([1, 3, "{"]))
    ran = spectr("batch", path, "--out", out, *flags, "--json")
    assert ran.code == 0
    tally = json.loads(ran.out)
    assert (tally["lines"], tally["answered"], tally["bad"]) == (3, 2, 1)
    assert "2 answered" in ran.err
    assert spectr("batch", path, "--out", out, *flags).code == 2  # the results exist
    refused = spectr("batch", path, "--out", str(tmp_path / "other.jsonl"), *flags, "--workers", "2")
    assert (refused.code, "add --ray" in refused.err) == (2, True)
