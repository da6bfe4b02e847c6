"""Results on disk are complete or absent, partial lines are dropped, and other runs are refused."""

import json
from pathlib import Path

import pytest

from spectr.bench.journal import Journal, read_results, write_atomically
from spectr.errors import ArgumentError

HEAD = {"grid": [1, 2], "target": "t"}


def test_cells_outlive_a_kill(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    journal = Journal(path, HEAD)
    for name in ("a", "b"):
        journal.add(name, {"value": name})
    journal.close()  # as if killed
    part = tmp_path / "b.json.part"
    part.write_bytes(part.read_bytes() + b'{"cell": "c", "fou')  # in the middle of a line
    assert read_results(path)[1] == {"a": {"value": "a"}, "b": {"value": "b"}}
    again = Journal(path, HEAD)
    assert list(again.cells) == ["a", "b"]
    again.add("c", {"value": "ć"})
    again.finish({"sum": 3})
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.json"]
    head, cells, data = read_results(path)
    assert (head, list(cells), data) == (HEAD, ["a", "b", "c"], {"sum": 3})
    more = Journal(path, HEAD)
    more.add("d", {})
    more.close()
    assert list(read_results(path)[1]) == ["a", "b", "c", "d"]  # the finished file, and what came after


def test_another_run_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    journal = Journal(path, HEAD)
    journal.add("a", {})
    journal.finish({})
    before = path.read_text()
    with pytest.raises(ArgumentError, match="holds a run with another grid; choose another --out"):
        Journal(path, {**HEAD, "grid": [1]})
    assert path.read_text() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["b.json"]


def test_two_concurrent_runs_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    journal = Journal(path, HEAD)
    with pytest.raises(ArgumentError, match="another run is writing"):
        Journal(path, HEAD)
    journal.add("a", {})
    journal.close()
    later = Journal(path, HEAD)
    assert list(later.cells) == ["a"]
    later.close()


def test_a_file_of_something_else_is_refused_and_left(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    for text in ("{}", "nothing", '{"head": 1}'):
        path.write_text(text)
        with pytest.raises(ArgumentError, match="is not the result of a benchmark"):
            Journal(path, HEAD)
        assert path.read_text() == text
        assert [entry.name for entry in tmp_path.iterdir()] == ["b.json"]
    with pytest.raises(ArgumentError, match="there is no benchmark in"):
        read_results(tmp_path / "nowhere.json")
    with pytest.raises(ArgumentError, match="cannot write"):
        Journal(tmp_path / "no" / "folder.json", HEAD)


def test_the_result_is_json_with_a_line_for_each_cell(tmp_path: Path) -> None:
    path = tmp_path / "b.json"
    journal = Journal(path, HEAD)
    journal.add("a", {"list": [1, 2]})
    journal.finish({"empty": [], "none": None, "rows": [{"x": 1}, {"x": 2}]})
    lines = path.read_text().splitlines()
    assert '  "a": {"list": [1, 2]}' in lines
    assert '  {"x": 2}' in lines
    assert json.loads(path.read_text())["none"] is None


def test_writing_is_all_or_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_atomically(path, "one")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(path, "\ud800")
    assert path.read_text() == "one"
