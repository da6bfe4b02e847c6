"""The programs under examples/ run as they stand, in a process of their own."""

import ast
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.gguf_files import write_gguf

from spectr.models.catalog import locate

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
PROGRAMS = sorted(path.name for path in EXAMPLES.glob("*.py"))
NOTEBOOK = EXAMPLES / "see_the_tree.ipynb"
_MOST = 40  # lines


def _run(name: str, *arguments: str) -> str:
    command = [sys.executable, str(EXAMPLES / name), *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_gguf(tmp_path_factory.mktemp("example") / "tiny.gguf", **{"llama.context_length": 512}))


def test_every_example_is_short_and_listed() -> None:
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for name in [*PROGRAMS, NOTEBOOK.name]:
        assert f"]({name})" in listed
    for name in PROGRAMS:
        assert len((EXAMPLES / name).read_text(encoding="utf-8").splitlines()) < _MOST


@pytest.mark.slow
def test_own_model(model: str) -> None:
    assert "tokens per call of the model, seed 7" in _run("own_model.py", model)


@pytest.mark.slow
def test_many_requests(model: str) -> None:
    assert _run("many_requests.py", model).count("\n  '") == 3


@pytest.mark.slow
def test_compare_rules(model: str) -> None:
    printed = _run("compare_rules.py", model)
    assert [line.split()[0] for line in printed.splitlines()] == ["race", "optimal", "kseq", "speculative"]


@pytest.mark.slow
def test_serve_and_ask(model: str) -> None:
    assert "CompletionUsage" in _run("serve_and_ask.py", model)


@pytest.mark.slow
def test_train_a_head(folder: Path) -> None:
    assert "tokens per call" in _run("train_a_head.py", str(folder), "0.05")


@pytest.mark.slow
def test_inside_transformers(folder: Path) -> None:
    assert _run("inside_transformers.py", str(folder)).strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model of transformers with a tokenizer."""
    import torch
    from tests.tiny import llama
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from transformers import PreTrainedTokenizerFast

    place = tmp_path_factory.mktemp("folder")
    words = ["<s>", "</s>", "one", "two", "three", "Explain", "tides", "in", "sentences", ".", "?", "!"]
    inner = Tokenizer(WordLevel({word: at for at, word in enumerate(words)}, unk_token="?"))
    inner.pre_tokenizer = Whitespace()
    llama(0, len(words), dtype=torch.float32, max_position_embeddings=2048).save_pretrained(place)
    PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="</s>", unk_token="?").save_pretrained(place)
    return place


def _cell(source: str, names: dict[str, Any]) -> Any:
    """Run a cell as a notebook does: its last expression is what it shows."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), "cell", "eval"), names)


@pytest.mark.slow
@pytest.mark.skipif(locate("smollm2-135m") is None, reason="needs the default model: spectr pull smollm2-135m")
def test_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every cell runs, and the text with its trees is shown."""
    monkeypatch.chdir(tmp_path)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    names: dict[str, Any] = {}
    shown = [_cell("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"]
    assert "<html" in shown[1]._repr_html_() or "<iframe" in shown[1]._repr_html_()
    assert shown[3] is True
    assert (tmp_path / "tides.html").stat().st_size > 10_000
