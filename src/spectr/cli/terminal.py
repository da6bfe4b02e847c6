"""The terminal of a chat: reads messages from it or from a pipe, and wraps answers at its width."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.cells import cell_len

from spectr.cli.output import talk, utf8

try:
    import termios
except ImportError:  # not on this system
    termios = None  # type: ignore[assignment]

__all__ = ["WrappedOutput", "enable_history", "is_interactive", "quiet", "read_message"]

_BLOCK = '"""'


def is_interactive() -> bool:
    """Return whether standard input is a terminal."""
    return sys.stdin is not None and sys.stdin.isatty()


def _line(prompt: str) -> str:
    """Read one line without its end; raise EOFError at the end of input.

    If both ends are the terminal `input` prints the prompt itself, so that line editing keeps it. A pipe gets none."""
    if not is_interactive():
        data = b"" if sys.stdin is None else sys.stdin.buffer.readline()
        if not data:
            raise EOFError
        return utf8(data, "a message").rstrip("\r\n")
    if sys.stdout.isatty():
        return input(prompt)
    print(prompt, end="", file=sys.stderr, flush=True)
    return input()


def _rest_of_block(first: str) -> str:
    """Read lines up to one that ends with three quotes, or to the end of input.

    The result begins with a line break, so that a block is never taken for a command."""
    lines, line = [""], first.removeprefix(_BLOCK)
    while not line.endswith(_BLOCK):
        lines.append(line)
        try:
            line = _line("... ")
        except EOFError:
            return "\n".join(lines)
    return "\n".join([*lines, line.removesuffix(_BLOCK)])


def read_message() -> str:
    """Read one message: a line, several lines joined by backslashes at their ends, or a block between three quotes.

    Raises EOFError at the end of input, and KeyboardInterrupt on Ctrl-C, which discards the message.
    """
    line = _line("> ")
    if line.lstrip().startswith(_BLOCK):
        return _rest_of_block(line.lstrip())
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1].removesuffix("\\")
        try:
            lines.append(_line("... "))
        except EOFError:
            break
    return "\n".join(lines)


@contextmanager
def quiet() -> Iterator[None]:
    """Disable the echo of keys during an answer, and discard what was typed meanwhile."""
    if termios is None or not is_interactive():
        yield
        return
    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(keyboard, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcflush(keyboard, termios.TCIFLUSH)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


class WrappedOutput:
    """Writes a text to stdout while it is generated; on a terminal, lines break between words.

    A word is shown once it is complete, so that it is never split. Wide characters, as in Chinese, may be followed by a
    line break anywhere.
    """

    def __init__(self) -> None:
        is_terminal = sys.stdout is not None and sys.stdout.isatty()
        self.width = shutil.get_terminal_size().columns if is_terminal else None
        self._column, self._gap, self._word = 0, "", ""
        self._is_split = False  # the current word is longer than a line, and its beginning is already shown

    def feed(self, piece: str) -> None:
        """Show the words that a piece completes."""
        print("".join(self._broken(piece)) if self.width else piece, end="", flush=True)

    def finish(self) -> None:
        """Show the last word, and end the line."""
        print(self._next_word() if self.width else "", flush=True)

    def _broken(self, piece: str) -> Iterator[str]:
        assert self.width is not None
        for sign in piece:
            if sign.isspace() or cell_len(sign) > 1:
                yield self._next_word()
                self._is_split = False
            if sign == "\n":
                yield self._gap + "\n"
                self._column, self._gap = 0, ""
            elif sign.isspace():
                self._gap += sign
            else:
                self._word += sign
                if cell_len(sign) > 1:
                    yield self._next_word()
                elif cell_len(self._word) >= self.width:  # longer than a line: the terminal breaks it
                    yield self._next_word()
                    self._is_split = True

    def _next_word(self) -> str:
        """Return the complete word, with the gap before it or a line break in its place."""
        if not self._word:
            return ""
        word, gap, size = self._word, self._gap, cell_len(self._word)
        if self._column and not self._is_split and self._column + len(gap) + size > (self.width or 0):
            gap, self._column = "\n", 0
        else:
            self._column += len(gap)
        self._column = (self._column + size - 1) % (self.width or 1) + 1
        self._word = self._gap = ""
        return gap + word


def enable_history() -> None:
    """Enable line editing with history, if Python has readline; importing the module is enough."""
    try:
        import readline  # noqa: F401
    except ImportError:
        talk("this Python has no readline: messages cannot be edited or recalled with the arrow keys")
