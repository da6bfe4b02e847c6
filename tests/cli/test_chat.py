"""`spectr chat`: messages from a pipe and from a terminal, its commands, and answers that wrap between words."""

import io
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from tests.cli.conftest import COMMAND

from spectr.cli.terminal import WrappedOutput, read_message

Spectr = Callable[..., Any]


@pytest.fixture
def talk(spectr: Spectr, tiny: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Run a conversation with the small model, with messages from a pipe."""

    def run(messages: str | bytes, *flags: str) -> Any:
        data = messages if isinstance(messages, bytes) else messages.encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        return spectr("chat", "--model", tiny, "--max-new-tokens", "6", *flags)

    return run


def saved(path: Path) -> list[tuple[str, str]]:
    return [(turn["role"], turn["content"]) for turn in json.loads(path.read_text())]


def test_a_conversation_in_a_pipe(talk: Callable[..., Any]) -> None:
    ran = talk("Hello.\n\nAgain.", "--temperature", "0", "--system", "Brief.")
    assert ran.code == 0
    banner, first, second = ran.err.splitlines()
    assert "drafter none or lookup, rule race (lossless). /help lists the commands" in banner
    assert first.endswith(", 0 prompt tokens were still in the cache")
    assert not second.endswith(", 0 prompt tokens were still in the cache")
    assert "> " not in ran.out  # no prompt without a terminal


def test_commands(talk: Callable[..., Any], tmp_path: Path) -> None:
    """Text that begins with a slash is never sent to the model, whether it is a command or not."""
    file = tmp_path / "talk.json"
    ran = talk(
        "/help\n/stats\n/nosuch thing\n/rset\nHello.\n/stats\n/system Be kind.\n/system\n /etc/hosts?\n"
        f"/save {file}\n/seed 7\n/seed x\n/retry\n/quit\nnever said\n"
    )
    assert ran.code == 0
    for sentence in (
        "/retry         answer the last message again",
        "last answer: there is no answer yet",
        "spectr: there is no command /nosuch; Known: /help",
        "spectr: there is no command /rset; did you mean /reset",
        "in total 1 answers, ",
        "system prompt: Be kind.",
        "the seed is 7",
        "spectr: /seed takes a whole number, or random, got 'x'",
    ):
        assert sentence in ran.err
    turns = saved(file)
    assert turns[0] == ("system", "Be kind.")
    assert [text for role, text in turns if role == "user"] == ["Hello.", "/etc/hosts?"]
    assert len([line for line in ran.err.splitlines() if " target calls, " in line and "cache" in line]) == 4


def test_a_seed_gives_the_same_answer_again(talk: Callable[..., Any]) -> None:
    """From the flag or from the command; `/retry` gives another answer to the same message."""
    assert talk("Hello.\n", "--seed", "5").out == talk("/seed 5\nHello.\n").out
    assert talk("Hello.\n").out != talk("Hello.\n").out
    first, again = talk("Hello.\n/retry\n", "--seed", "5", "--max-new-tokens", "16").err.splitlines()[-2:]
    assert ", seed 5, " in first
    assert ", seed 5, " not in again


def test_retry_and_reset_change_the_history(talk: Callable[..., Any], tmp_path: Path) -> None:
    one, two = tmp_path / "one.json", tmp_path / "two.txt"
    ran = talk(f"/retry\nHello.\nMore.\n/retry\n/save {one}\n/reset\nAfresh.\n/save {two}\n", "--system", "Brief.")
    assert "spectr: there is no answer yet that could be repeated" in ran.err
    assert [role for role, _ in saved(one)] == ["system", "user", "assistant", "user", "assistant"]
    assert [text for role, text in saved(one) if role == "user"] == ["Hello.", "More."]
    written = two.read_text()
    assert written.startswith("system: Brief.\n\nuser: Afresh.\n\nassistant: ")
    assert "Hello" not in written


def test_messages_of_several_lines(talk: Callable[..., Any], tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    talk(f'one\\\ntwo\n"""\n/reset is text here\n\nand this\n"""\n"""short"""\n/save {file}\n')
    asked = [text for role, text in saved(file) if role == "user"]
    assert asked == ["one\ntwo", "/reset is text here\n\nand this", "short"]


def test_a_message_may_end_with_the_input(monkeypatch: pytest.MonkeyPatch) -> None:
    for typed, meant in ((b"one\\", "one"), (b'"""one\ntwo', "\none\ntwo"), (b"one", "one")):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(typed)))
        assert read_message() == meant
        with pytest.raises(EOFError):
            read_message()


def test_what_cannot_be_saved_or_answered_leaves_the_conversation(talk: Callable[..., Any], tmp_path: Path) -> None:
    long = "quick brown " * 400
    ran = talk(f"one\n{long}\n/save {tmp_path}/no/where.txt\n/save\n/save {tmp_path}\ntwo\n/save {tmp_path}/it.json\n")
    assert ran.code == 0
    for sentence in (
        "512 positions",
        "type /reset to start",
        "there is no folder",
        "/save requires the name of a file",
        "it is a folder",
    ):
        assert sentence in ran.err
    assert [text for role, text in saved(tmp_path / "it.json") if role == "user"] == ["one", "two"]


def test_bad_arguments_are_refused(spectr: Spectr, talk: Callable[..., Any], plain: Path) -> None:
    ran = spectr("chat", "--model", str(plain))
    assert ran.code == 2
    assert "needs a model with a chat template" in ran.err
    ran = talk(b"caf\xe9\n")
    assert (ran.code, ran.out) == (2, "")
    assert "spectr: a message must be UTF-8 text, and byte 4" in ran.err
    assert spectr("chat", "--model", "nowhere", "--top-p", "2").err.startswith("spectr: top_p must lie in")
    assert "--system must be UTF-8" in spectr("chat", "--model", "nowhere", "--system", "\udcff").err


_PRESSES = 10  # of Ctrl-C, after which a command does not react to it


class Terminal:
    """A command in a pseudo-terminal."""

    def __init__(self, *arguments: str) -> None:
        # Where the tests run in the background of a shell, they and their children ignore Ctrl-C.
        heed = "import os, pty, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); "
        spawn = heed + "sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
        self.process = subprocess.Popen(
            [sys.executable, "-c", spawn, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.seen = ""

    def type(self, keys: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(keys.encode())
        self.process.stdin.flush()

    def expect(self, text: str) -> str:
        """Wait for a text, and return and consume everything shown up to its end."""
        while text not in self.seen:
            self._read()
        before, _, self.seen = self.seen.partition(text)
        return before

    def expect_some(self, signs: int) -> None:
        """Wait until this many characters were shown."""
        while len(self.seen) < signs:
            self._read()

    def _read(self, seconds: float = 90.0) -> None:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], seconds)[0], f"nothing comes after {self.seen!r}"
        found = os.read(self.process.stdout.fileno(), 1 << 16)
        assert found, f"the end came after {self.seen!r}"
        self.seen += found.decode(errors="replace")

    def type_seen(self, keys: str) -> None:
        """Type, and wait until the keys are shown."""
        self.type(keys)
        self.expect(keys)

    def interrupt(self, shown: str) -> None:
        """Press Ctrl-C until a text is shown: Python's line editor does not notice an interrupt between a key and its
        next wait."""
        assert self.process.stdout is not None
        for _ in range(_PRESSES):
            self.type("\x03")
            time.sleep(1)
            while select.select([self.process.stdout], [], [], 10)[0] and shown not in self.seen:
                self._read()
            if shown in self.seen:
                break
        assert shown in self.seen, f"nothing else comes after {self.seen!r}"
        self.expect(shown)

    def leave(self) -> int:
        """Press Ctrl-C until the process ends, and return its exit code."""
        for _ in range(_PRESSES):
            if self.process.poll() is None:
                self.type("\x03")
                with suppress(subprocess.TimeoutExpired):
                    self.process.wait(timeout=20)
        assert self.process.returncode is not None, f"it has not ended after {self.seen!r}"
        return self.process.returncode

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        with self.process:  # closes its pipes
            pass


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")
def test_a_conversation_in_a_terminal(endless: str) -> None:
    """Ctrl-C ends an answer and clears a line; two in a row leave; keys typed during an answer are not shown."""
    with Terminal(*COMMAND, "chat", "--model", endless, "--max-new-tokens", "30000") as screen:
        screen.expect("/help lists the commands, Ctrl-D leaves.")
        screen.expect("> ")
        screen.type_seen("half a message")
        screen.interrupt("To leave, press Ctrl-C again or Ctrl-D, or type /quit.")
        screen.type_seen("Tell me more.")
        screen.type("\n")
        screen.expect_some(40)  # the answer is coming
        screen.type("typed ahead\n\x03")
        answer = screen.expect("interrupted after ")
        assert "typed ahead" not in answer
        screen.expect("> ")
        screen.type_seen("/stats")
        screen.type("\n")
        screen.expect("in total 1 answers")  # what was typed ahead was not sent either
        screen.expect("> ")
        screen.type_seen("one")
        screen.interrupt("To leave, press")
        screen.type_seen("two")
        assert screen.leave() == 0


WORDS = st.text(st.characters(codec="utf-8", categories=("L", "P", "N")), min_size=1, max_size=8)


@given(st.lists(WORDS, max_size=30), st.integers(1, 5))
def test_answers_wrap_between_words(words: list[str], size: int) -> None:
    """For any pieces every word is whole, every line fits, and nothing else changes."""
    text, shown = " ".join(words), io.StringIO()
    screen = WrappedOutput()
    screen.width = 24
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stdout", shown)
        for start in range(0, len(text), size):
            screen.feed(text[start : start + size])
        screen.finish()
    assert all(cell_len(line) <= 24 for line in shown.getvalue().splitlines())
    narrow = [word for word in words if cell_len(word) == len(word)]
    if len(narrow) == len(words):
        assert shown.getvalue().split() == text.split()
    assert "".join(shown.getvalue().split()) == "".join(text.split())


def test_wrapping_keeps_what_was_laid_out(capsys: pytest.CaptureFixture[str]) -> None:
    screen = WrappedOutput()
    screen.width = 12
    screen.feed("a list:\n  - one\n  - two three four\n\n漢字漢字漢字漢字\n" + "x" * 20)
    screen.finish()
    assert capsys.readouterr().out == "a list:\n  - one\n  - two\nthree four\n\n漢字漢字漢字\n漢字\n" + "x" * 20 + "\n"


def test_a_pipe_is_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    screen = WrappedOutput()
    assert screen.width is None
    screen.feed("word " * 100)
    screen.finish()
    assert capsys.readouterr().out == "word " * 100 + "\n"
