"""`spectr generate`: streamed text, the summary, and errors; mostly with a small model."""

import io
import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
from tests.cli.conftest import COMMAND

from spectr.lm.output import TextHandle

Spectr = Callable[..., Any]
ASK = ("generate", "one two one two one", "--raw", "--max-new-tokens", "12")


@pytest.mark.parametrize("model", ["tiny", pytest.param(None, marks=pytest.mark.slow)])
def test_text_on_stdout_and_talk_on_stderr(spectr: Spectr, model: str | None, tiny: str) -> None:
    """With a small model, and with the real default model and its drafter."""
    more = () if model is None else ("--model", tiny)
    ran = spectr("generate", "Say: one two three four.", "--max-tokens", "12", "--temperature", "0", *more)
    assert ran.code == 0
    assert ran.out.strip()
    assert "tokens per call" in ran.err
    assert "lossless" in ran.err


def test_json_is_the_same_with_any_drafter(spectr: Spectr, tiny: str) -> None:
    arguments = (*ASK, "--model", tiny, "--seed", "3", "--json", "--drafter")
    found = [json.loads(spectr(*arguments, name).out) for name in ("none", "lookup")]
    assert found[0]["tokens"] == found[1]["tokens"]
    assert found[0]["stats"]["block_efficiency"] == 1
    assert found[0]["seed"] == 3
    assert len(found[1]["tokens"]) <= 12


def test_a_seed_is_random_and_reported(spectr: Spectr, tiny: str) -> None:
    """The same command gives another text each time, and the seed that is reported gives a text again."""
    ran = [spectr(*ASK, "--model", tiny) for _ in range(2)]
    seeds = [re.search(r", seed (\d+)$", one.err, re.MULTILINE) for one in ran]
    assert seeds[0] is not None
    assert seeds[1] is not None
    assert seeds[0][1] != seeds[1][1]
    assert spectr(*ASK, "--model", tiny, "--seed", seeds[0][1]).out == ran[0].out


def test_flags_that_are_not_given_are_the_models_own(spectr: Spectr, tiny: str) -> None:
    """No flag has a default that would override a model's files or the API."""
    import spectr as package

    meant = package.load(tiny).generate(ASK[1], 12, seed=5, raw=True)
    assert json.loads(spectr(*ASK, "--model", tiny, "--seed", "5", "--json").out)["tokens"] == meant.tokens
    zero = json.loads(spectr(*ASK, "--model", tiny, "--temperature", "0", "--top-k", "0", "--json").out)["tokens"]
    assert zero == package.load(tiny).generate(ASK[1], 12, raw=True, temperature=0, top_k=0).tokens


def test_it_streams_and_an_interrupt_keeps_what_came(endless: str) -> None:
    """The first text is shown long before the last; Ctrl-C ends it with a summary and exit code 130."""
    arguments = [*COMMAND, "generate", "one two", "--model", endless, "--max-new-tokens", "30000"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    listening = ["env", "--default-signal=INT", *arguments]  # a shell in the background has them ignored
    with subprocess.Popen(listening, **pipes) as running:
        assert running.stdout is not None
        first = os.read(running.stdout.fileno(), 1 << 16)
        assert first
        assert running.poll() is None
        running.send_signal(signal.SIGINT)
        try:
            rest, said = running.communicate(timeout=60)
        finally:
            running.kill()
    assert running.returncode == 130
    (count,) = re.findall(r"interrupted after (\d+) tokens", said.decode())
    assert 0 < int(count) < 30_000
    assert (first + rest).decode().endswith("\n")
    assert "Traceback" not in said.decode()


def test_an_interrupted_text_as_json(spectr: Spectr, endless: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The text so far is valid JSON; the interrupt comes after some twenty tokens."""
    following = TextHandle.__next__

    def interrupted(pieces: TextHandle) -> str:
        if len(pieces.tokens) > 20:
            raise KeyboardInterrupt
        return following(pieces)

    monkeypatch.setattr(TextHandle, "__next__", interrupted)
    ran = spectr("generate", "one", "--model", endless, "--max-new-tokens", "30000", "--json")
    assert ran.code == 130
    found = json.loads(ran.out)
    assert found["finish_reason"] == "interrupted"
    assert found["text"]
    assert 20 < len(found["tokens"]) < 40
    assert "interrupted after" in ran.err


@pytest.mark.slow
def test_a_pipe_that_closes_ends_it_quietly(endless: str) -> None:
    arguments = [*COMMAND, "generate", "one two", "--model", endless, "--max-new-tokens", "30000"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert os.read(running.stdout.fileno(), 1)
        running.stdout.close()
        assert b"Traceback" not in running.stderr.read()
    assert running.returncode == 141


def test_a_prompt_from_standard_input(spectr: Spectr, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"one two one two one")))
    piped = spectr("generate", "-", *ASK[2:], "--model", tiny, "--seed", "1")
    assert piped.code == 0
    assert piped.out == spectr(*ASK, "--model", tiny, "--seed", "1").out


@pytest.mark.parametrize(
    ("arguments", "given", "what"),
    [
        (["caf\udce9"], b"", "the prompt must be UTF-8 text, and byte 4 of it (0xe9) is not"),
        (["-"], b"caf\xe9", "the prompt must be UTF-8 text, and byte 4 of it (0xe9) is not"),
        (["x", "--stop", "\udcff"], b"", "--stop must be UTF-8 text"),
        (["-"], b"", "the prompt must not be empty"),
    ],
)
def test_bytes_that_are_no_text_are_refused(arguments: list[str], given: bytes, what: str) -> None:
    """The error is one sentence, and is raised before a model is loaded."""
    command = [*COMMAND, "generate", *arguments, "--model", "nowhere"]
    done = subprocess.run(command, input=given, capture_output=True, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.decode().startswith(f"spectr: {what}")
    assert done.stderr.count(b"\n") == 1


def test_trace_colours_tokens(spectr: Spectr, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a terminal the coloured text goes to stdout and the legend to stderr."""
    arguments = (*ASK, "--model", tiny, "--drafter", "ngram", "--seed", "2")
    plain = spectr(*arguments)
    monkeypatch.setenv("FORCE_COLOR", "1")
    traced = spectr(*arguments, "--trace")
    assert "\x1b[" in traced.out
    assert re.sub(r"\x1b\[[0-9;]*m", "", traced.out) == plain.out
    assert "correction" in traced.err


def test_trace_without_a_terminal_is_the_text_alone(spectr: Spectr, tiny: str) -> None:
    arguments = (*ASK, "--model", tiny, "--seed", "2")
    traced = spectr(*arguments, "--trace")
    assert traced.out == spectr(*arguments).out
    assert "correction" not in traced.err
    assert "--trace --json lists the steps" in traced.err


def test_trace_ends_where_the_text_ends(spectr: Spectr, tiny: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop string is not shown with colours either."""
    text = spectr(*ASK, "--model", tiny, "--seed", "2").out.rstrip("\n")
    stop = text[len(text) // 2 :][:2]
    monkeypatch.setenv("FORCE_COLOR", "1")
    traced = spectr(*ASK, "--model", tiny, "--seed", "2", "--stop", stop, "--trace")
    assert re.sub(r"\x1b\[[0-9;]*m", "", traced.out) == text[: text.index(stop)] + "\n"


def test_trace_as_json(spectr: Spectr, tiny: str) -> None:
    found = json.loads(spectr(*ASK, "--model", tiny, "--trace", "--json").out)
    assert [token for step in found["steps"] for token in step["tokens"]] == found["tokens"]
    assert {"accepted", "corrected"} <= set(found["steps"][0])


def test_logprobs_without_json_are_a_table(spectr: Spectr, tiny: str) -> None:
    arguments = (*ASK, "--model", tiny, "--seed", "4", "--logprobs")
    found = json.loads(spectr(*arguments, "--json").out)
    text, _, table = spectr(*arguments).out.rpartition("\n\n")
    assert text == found["text"]
    rows = [line.split() for line in table.splitlines()[1:]]
    assert [int(row[0]) for row in rows] == found["tokens"]
    assert [float(row[-2]) for row in rows] == pytest.approx(found["logprobs"], abs=1e-3)


def test_a_negative_gap_is_explained(spectr: Spectr, tiny: str) -> None:
    """More may be accepted than the best coupling of independent drafts accepts on average; these seeds show both
    cases."""
    arguments = (*ASK, "--model", tiny, "--drafter", "early_exit", "--drafts", "2", "--length", "1", "--gap", "--seed")
    gaps = [json.loads(spectr(*arguments, seed, "--json").out)["stats"]["optimality_gap"] for seed in ("0", "1")]
    assert gaps[0] > 0.05 > -0.05 > gaps[1]
    for seed, gap in enumerate(gaps):
        ran = spectr(*arguments, str(seed))
        assert f"optimality gap {gap:.3f} per node" in ran.err
        assert ("the gap is negative" in ran.err) == (gap < 0)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("generate", ""), "must not be empty"),
        (("generate", "x", "--top-p", "2", "--model", "nowhere"), "top_p must lie in"),  # before a model is loaded
        (("generate", "x", "--tree", "2,x", "--model", "nowhere"), "--tree takes integers"),
        (("generate", "x", "--trace-html", "/nowhere/x.html", "--model", "nowhere"), "there is no folder /nowhere"),
        (("pull", "smollm"), "did you mean smollm2-135m"),
    ],
)
def test_bad_arguments_are_refused(spectr: Spectr, arguments: tuple[str, ...], sentence: str) -> None:
    ran = spectr(*arguments)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("spectr: ")
    assert sentence in ran.err


@pytest.mark.parametrize(
    ("flags", "sentence"),
    [
        (("--drafter", "lokup"), "did you mean lookup"),
        (("--rule", "recursive_wor", "--drafter", "lookup"), "holds for siblings"),
    ],
)
def test_what_a_model_refuses(spectr: Spectr, tiny: str, flags: tuple[str, ...], sentence: str) -> None:
    ran = spectr("generate", "x", "--model", tiny, *flags)
    assert (ran.code, ran.out) == (2, "")
    assert sentence in ran.err


def test_a_lossy_rule_says_so_before_and_after(spectr: Spectr, tiny: str) -> None:
    ran = spectr(*ASK, "--model", tiny, "--rule", "lenience", "--drafter", "early_exit")
    assert "rule 'lenience' is LOSSY: each token may be off by 0.1" in ran.err.splitlines()[0]
    assert ", LOSSY, seed" in ran.err.splitlines()[-1]
