"""`spectr chat`: a conversation in the terminal; the key-value cache is kept between turns."""

import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spectr.cli.flags import (
    SAMPLING,
    DeviceFlag,
    DrafterFlag,
    DtypeFlag,
    MaxTokensFlag,
    ModelFlag,
    RuleFlag,
    SeedFlag,
    TemperatureFlag,
    TopPFlag,
    WeightsFlag,
    given,
)
from spectr.cli.generate import summary, warn_if_lossy
from spectr.cli.group import INTERRUPTED
from spectr.cli.output import check_folder, check_text, talk, write_text
from spectr.cli.terminal import WrappedOutput, enable_history, is_interactive, quiet, read_message
from spectr.errors import ArgumentError, ContextError, SpectrError
from spectr.registry import nearest

if TYPE_CHECKING:
    from spectr.lm import LM, Chat

__all__ = ["chat"]

_HELP = """\
/help          show this list
/reset         start a new conversation with the same system prompt
/system TEXT   set the system prompt; "/system" shows it, and "/system off" removes it
/seed N        use this seed from now on; "/seed random" uses a random one for every answer
/retry         answer the last message again, with a new random seed
/save FILE     write the conversation, as JSON if the name ends in .json, else as text
/stats         show what speculation did for the last answer and in total
/quit, /exit   leave, as Ctrl-D does
A line that ends in \\ continues on the next one, and \"\"\" begins and ends a message of several lines.
Ctrl-C ends an answer. To begin a message with a slash, put a space before it."""


@dataclass(slots=True)
class _Totals:
    """Sums over all answers of a conversation."""

    answers: int = 0
    tokens: int = 0
    calls: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return (
            f"in total {self.answers} answers, {self.tokens} tokens in {self.seconds:.1f} s, {self.calls} target "
            f"calls, {self.tokens / max(1, self.calls):.2f} tokens per call"
        )


@dataclass(slots=True)
class _Session:
    """A conversation with its settings. Commands are methods that take the text after the command's name."""

    conversation: "Chat"
    max_new_tokens: int
    settings: dict[str, Any]
    seed: int | None
    last: str = "there is no answer yet"
    totals: _Totals = field(default_factory=_Totals)

    @property
    def commands(self) -> dict[str, Callable[[str], None]]:
        """The slash commands except /quit and /exit."""
        return {
            "help": self.help,
            "reset": self.reset,
            "system": self.system,
            "seed": self.choose_seed,
            "retry": self.retry,
            "save": self.save,
            "stats": self.stats,
        }

    def command(self, text: str) -> None:
        """Run a slash command. Text that begins with a slash is never sent to the model."""
        name, _, rest = text.removeprefix("/").partition(" ")
        if name not in self.commands:
            known = [f"/{one}" for one in [*self.commands, "quit", "exit"]]
            raise ArgumentError(f"there is no command /{name}; {nearest(f'/{name}', known)}; /help explains them")
        self.commands[name](rest.strip())

    def help(self, _: str) -> None:
        """Show the commands."""
        talk(_HELP)

    def reset(self, _: str) -> None:
        """Forget everything but the system prompt."""
        self._set_turns(self._system)
        talk("started a new conversation")

    def system(self, text: str) -> None:
        """Set, show or remove the system prompt."""
        if not text:
            talk(f"system prompt: {self._system[0]['content']}" if self._system else "there is no system prompt")
            return
        others = self.conversation.turns[len(self._system) :]
        self._set_turns([*([] if text == "off" else [{"role": "system", "content": text}]), *others])
        talk("the system prompt is removed" if text == "off" else "the system prompt is set")

    def choose_seed(self, text: str) -> None:
        """Fix the seed, or return to random seeds."""
        if text and text != "random":
            try:
                self.seed = int(text)
            except ValueError:
                raise ArgumentError(f"/seed takes a whole number, or random, got {text!r}") from None
        elif text:
            self.seed = None
        talk("every answer has a random seed" if self.seed is None else f"the seed is {self.seed}")

    def retry(self, _: str) -> None:
        """Answer the last message again. Its seed is random: a fixed one would give the same answer."""
        turns = self.conversation.turns
        if len(turns) < 2 or turns[-1]["role"] != "assistant":
            raise ArgumentError("there is no answer yet that could be repeated")
        self._set_turns(turns[:-2])
        try:
            self.answer(turns[-2]["content"], None)
        except SpectrError:
            self._set_turns(turns)
            raise

    def save(self, name: str) -> None:
        """Write the conversation to a file."""
        if not name:
            raise ArgumentError("/save requires the name of a file, as in /save talk.txt")
        turns, path = self.conversation.turns, Path(name).expanduser()
        check_folder(path)
        if path.suffix == ".json":
            write_text(path, json.dumps(turns, indent=1, ensure_ascii=False) + "\n")
        else:
            write_text(path, "".join(f"{turn['role']}: {turn['content']}\n\n" for turn in turns))

    def stats(self, _: str) -> None:
        """Report what speculation did."""
        talk(f"last answer: {self.last}")
        talk(str(self.totals))

    def answer(self, text: str, seed: int | None) -> None:
        """Stream one answer. On a terminal an interrupt ends the answer, not the conversation."""
        start = time.perf_counter()
        pieces = self.conversation.say(text, self.max_new_tokens, seed, **self.settings)
        screen, shown, interrupted = WrappedOutput(), 0, False
        with quiet(), closing(pieces):
            try:
                for piece in pieces:
                    shown += len(piece)
                    screen.feed(piece)
            except KeyboardInterrupt:
                interrupted = True
        screen.feed(pieces.text[shown:])
        screen.finish()
        self._count(time.perf_counter() - start, pieces.output, interrupted=interrupted)
        if interrupted and not is_interactive():
            raise typer.Exit(INTERRUPTED)

    def _count(self, seconds: float, output: Any, *, interrupted: bool) -> None:
        lossless, reused = self.conversation.lm.engine.rule.card.lossless, self.conversation.reused
        line = summary(output, seconds, lossless=lossless, interrupted=interrupted)
        self.last = f"{line}, {reused} prompt tokens were still in the cache"
        talk(self.last)
        self.totals.answers += 1
        self.totals.tokens += len(output.tokens)
        self.totals.calls += output.stats.steps
        self.totals.seconds += seconds

    @property
    def _system(self) -> list[dict[str, str]]:
        return [turn for turn in self.conversation.turns[:1] if turn["role"] == "system"]

    def _set_turns(self, turns: list[dict[str, str]]) -> None:
        self.conversation.turns = list(turns)


def _banner(lm: "LM", model: str) -> str:
    engine, net = lm.engine, lm.opened.target.model
    kind = "lossless" if engine.rule.card.lossless else "LOSSY"
    dtype = str(net.dtype).removeprefix("torch.")
    return (
        f"{model} ({dtype} on {net.device}), drafter {engine.drafter.name}, rule {engine.rule.card.name} ({kind}). "
        "/help lists the commands, Ctrl-D leaves."
    )


def _next_message(interrupts: int) -> tuple[str, int]:
    """Return a message ("" after Ctrl-C) and the number of consecutive Ctrl-C; EOFError ends the conversation."""
    try:
        return read_message().rstrip(), 0
    except UnicodeDecodeError:
        talk("a message must be UTF-8 text; this one was not and is ignored")
        return "", 0
    except KeyboardInterrupt:
        if not is_interactive():
            raise
        if interrupts:
            raise EOFError from None
        talk("\nTo leave, press Ctrl-C again or Ctrl-D, or type /quit.")
        return "", interrupts + 1


def _converse(session: _Session) -> None:
    """Answer messages until the input ends or /quit is typed."""
    interrupts = 0
    while True:
        try:
            raw, interrupts = _next_message(interrupts)
        except EOFError:
            if is_interactive():
                talk("")
            return
        if raw in ("/quit", "/exit"):
            return
        if not raw.strip():
            continue
        try:
            if raw.startswith("/"):
                session.command(raw)
            else:
                session.answer(check_text("a message", raw.strip()), session.seed)
        except ContextError as error:
            advice = "say less, or type /reset to start a new conversation; --max-new-tokens makes answers shorter"
            talk(f"spectr: {str(error).partition('; ')[0]}; {advice}")
        except SpectrError as error:
            talk(f"spectr: {error}")


def chat(
    model: ModelFlag = "smollm2-135m",
    device: DeviceFlag = "auto",
    dtype: DtypeFlag = "auto",
    weights: WeightsFlag = "file",
    drafter: DrafterFlag = "auto",
    rule: RuleFlag = "race",
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The system prompt.", rich_help_panel=SAMPLING)
    ] = None,
    max_new_tokens: MaxTokensFlag = 256,
    temperature: TemperatureFlag = None,
    top_p: TopPFlag = None,
    seed: SeedFlag = None,
) -> None:
    """Chat with a model in the terminal. Answers are streamed, and the conversation is kept; /help lists the commands.

    Ctrl-C ends an answer, Ctrl-D the conversation. If the input is a pipe, every line is a message.
    """
    settings = given(temperature=temperature, top_p=top_p)
    from spectr.lm import load
    from spectr.policy import Policy

    Policy(**settings)  # a wrong value is refused before a model is loaded
    turns = [] if system is None else [{"role": "system", "content": check_text("--system", system)}]
    lm = load(model, drafter, rule, device=device, dtype=dtype, weights=weights, progress=talk)
    conversation = lm.chat()
    lm.encode_turns([*turns, {"role": "user", "content": "Hello."}])  # a model without a template is refused now
    conversation.turns = turns
    warn_if_lossy(lm)
    talk(_banner(lm, model))
    if is_interactive():
        enable_history()
    _converse(_Session(conversation, max_new_tokens, settings, seed))
