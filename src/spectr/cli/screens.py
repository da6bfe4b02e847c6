"""Shows a text while it is generated: plainly, with a colour for the origin of each token, or not at all."""

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any

from rich.text import Text

from spectr.cli.output import console, talk

if TYPE_CHECKING:
    from spectr.engine import Step
    from spectr.lm import LM
    from spectr.lm.output import TextHandle

__all__ = ["screen_for", "show_stream"]

_DEPTHS = ("grey70", "cyan", "deep_sky_blue1", "dodger_blue2", "blue", "medium_purple", "magenta")


def _colour(step: "Step", place: int) -> str:
    """Return the colour of a token's origin: a draft, by its depth; a correction; or the bonus after a whole path."""
    if place < step.accepted:
        return _DEPTHS[min(place, len(_DEPTHS) - 1)]
    return "red" if step.corrected else "green"


def _legend() -> Text:
    """Return the legend of the colours of --trace."""
    legend = Text()
    for name, style in (("correction", "red"), ("bonus", "green")):
        legend.append(f"{name} ", style=style)
    for depth, style in enumerate(_DEPTHS, start=1):
        legend.append(f"draft {depth}{'+' if depth == len(_DEPTHS) else ''} ", style=style)
    return legend


class _PlainText:
    """Writes a text to stdout while it is generated."""

    def __init__(self) -> None:
        self.written = 0

    def show(self, pieces: "TextHandle", piece: str) -> None:
        """Write one piece and flush it to the terminal or pipe."""
        self.written += len(piece)
        print(piece, end="", flush=True)

    def end(self, pieces: "TextHandle") -> None:
        """Write the text that an interrupt left unwritten, and end the line."""
        self.show(pieces, pieces.text[self.written :])
        print(flush=True)


class _Traced:
    """Writes a text to a terminal while it is generated, each token in the colour of its origin."""

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        from spectr.text.stream import TextStream

        self.stream, self.out, self.steps = TextStream(tokenizer, stops), console(), 0

    def show(self, pieces: "TextHandle", _piece: str) -> None:
        """Write the tokens of the steps since the last piece."""
        new_steps, self.steps = pieces.steps[self.steps :], len(pieces.steps)
        for step in new_steps:
            for place, token in enumerate(step.tokens):
                self._write(Text(self.stream.feed(token), style=_colour(step, place)))

    def end(self, pieces: "TextHandle") -> None:
        """Write the rest of the text, and the legend on stderr."""
        self.show(pieces, "")
        self._write(Text(self.stream.finish() + "\n"))
        console(stderr=True).print(_legend())

    def _write(self, text: Text) -> None:
        self.out.print(text, end="", soft_wrap=True)
        self.out.file.flush()


class _Silent:
    """Shows nothing during generation; the result is printed at the end."""

    def show(self, pieces: "TextHandle", piece: str) -> None:
        """Show nothing."""

    def end(self, pieces: "TextHandle") -> None:
        """Show nothing."""


def show_stream(pieces: "TextHandle", screen: _PlainText | _Traced | _Silent) -> bool:
    """Show the pieces of a text; return True if Ctrl-C ended it. The text generated before is kept."""
    with closing(pieces):
        try:
            for piece in pieces:
                screen.show(pieces, piece)
        except KeyboardInterrupt:
            interrupted = True
        else:
            interrupted = False
    screen.end(pieces)
    return interrupted


def screen_for(lm: "LM", stops: Sequence[str], *, trace: bool, as_json: bool) -> _PlainText | _Traced | _Silent:
    """Return the object that shows the text during generation."""
    if as_json:
        return _Silent()
    if trace and console().is_terminal:
        return _Traced(lm.tokenizer, stops)
    if trace:
        talk("stdout is not a terminal, so --trace shows no colours; --trace --json lists the steps")
    return _PlainText()
