"""`spectr chat`: a conversation in the terminal, whose cache is kept between turns."""

import time
from typing import Annotated, Any

import typer

from spectr.cli.generate import DrafterFlag, ModelFlag, summary, warn_if_lossy
from spectr.cli.output import console, talk
from spectr.errors import ArgumentError
from spectr.lm import Chat, load
from spectr.policy import Policy

__all__ = ["chat"]


def _answer(conversation: Chat, text: str, max_new_tokens: int, settings: dict[str, Any]) -> None:
    """Stream one answer; an interrupt ends it, not the conversation, and neither does a turn that is too long."""
    start = time.perf_counter()
    try:
        pieces = conversation.say(text, max_new_tokens, **settings)
    except ArgumentError as error:
        talk(str(error))
        return
    try:
        for piece in pieces:
            typer.echo(piece, nl=False)
    except KeyboardInterrupt:
        getattr(pieces, "close", lambda: None)()
    typer.echo()
    stats, seconds = conversation.stats, time.perf_counter() - start
    if stats.steps:
        line = summary(stats, stats.emitted, seconds, lossless=conversation.lm.engine.rule.card.lossless)
        talk(f"{line}, {conversation.reused} tokens not read again")


def _ask() -> str | None:
    """What the user says; None at the end."""
    try:
        return console(stderr=True).input("[bold]> [/bold]")
    except (EOFError, KeyboardInterrupt):
        return None


def chat(
    model: ModelFlag = "smollm2-135m",
    drafter: DrafterFlag = "auto",
    rule: Annotated[str, typer.Option("--rule", metavar="RULE", help="A rule of `spectr rules`.")] = "race",
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="Said to the model before all turns.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Most tokens of an answer.")] = 256,
    temperature: Annotated[float, typer.Option(min=0, metavar="T", help="0 is greedy.")] = 0.8,
    top_p: Annotated[float, typer.Option(metavar="P", help="Keep the likeliest tokens of mass P.")] = 1.0,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the conversation.")] = 0,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, or auto.")] = "auto",
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="float32, bfloat16, ... or auto.")] = "float32",
) -> None:
    """Talk with a model: answers stream, history and cache are kept. Ctrl-C ends an answer, Ctrl-D the conversation."""
    lm = load(model, drafter, rule, device=device, dtype=dtype, progress=talk)
    warn_if_lossy(lm)
    conversation = lm.chat()
    if system:
        conversation.turns.append({"role": "system", "content": system})
    settings = {"temperature": temperature, "top_p": top_p, "seed": seed}
    Policy(temperature=temperature, top_p=top_p)  # refused before anything is said
    while (text := _ask()) is not None:
        if text.strip():
            _answer(conversation, text, max_new_tokens, settings)
