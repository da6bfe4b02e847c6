"""`spectr generate`, `pull` and `models` with the real default model."""

import json
import subprocess
import sys

import pytest

from spectr.cli import main


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_text_on_stdout_and_talk_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = run(capsys, "generate", "Say: one two three four.", "--max-new-tokens", "12", "--temperature", "0")
    assert out.strip()
    assert "tokens per call" in err
    assert "lossless" in err


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("generate", "one two one two one", "--raw", "--max-new-tokens", "8", "--seed", "3", "--json")
    found = [json.loads(run(capsys, *arguments, "--drafter", name)[0]) for name in ("none", "lookup")]
    assert found[0]["tokens"] == found[1]["tokens"]
    assert found[0]["stats"]["block_efficiency"] == 1
    assert len(found[1]["tokens"]) == 8


def test_models_and_pull(capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(capsys, "pull")[0].strip()
    listed = json.loads(run(capsys, "models", "--json")[0])
    assert listed["models"]["smollm2-135m"]["folder"] == folder
    assert "smollm2-135m" in run(capsys, "models")[0]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["generate", "x", "--drafter", "lokup"], "did you mean lookup"),
        (["generate", "x", "--rule", "recursive_wor", "--drafter", "lookup"], "holds for siblings"),
        (["generate", ""], "must not be empty"),
        (["generate", "x", "--top-p", "2"], "top_p must lie in"),
        (["pull", "smollm"], "did you mean smollm2-135m"),
    ],
)
def test_what_is_refused(arguments: list[str], sentence: str) -> None:
    done = subprocess.run([sys.executable, "-m", "spectr", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert sentence in done.stderr
    assert done.stdout == ""
