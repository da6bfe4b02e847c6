"""`spectr generate`: text from a model, and what speculation did."""

import sys
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.text import Text

from spectr.cli.output import JsonFlag, console, numbers, print_json, talk
from spectr.engine import Step
from spectr.lm import LM, Output, load
from spectr.metrics import Stats
from spectr.text import TextStream

__all__ = ["DrafterFlag", "ModelFlag", "generate", "summary", "warn_if_lossy"]

ModelFlag = Annotated[str, typer.Option("--model", metavar="NAME", help="Catalog name, hub id or folder.")]
DrafterFlag = Annotated[
    str,
    typer.Option(
        "--drafter",
        metavar="NAME",
        help="What drafts: auto, lookup, ngram, early_exit, random, none, a folder or a model's name, several with +.",
    ),
]
_DEPTHS = ("grey70", "cyan", "deep_sky_blue1", "dodger_blue2", "blue", "medium_purple", "magenta")


def summary(stats: Stats, tokens: int, seconds: float, *, lossless: bool) -> str:
    """One honest line about what speculation did."""
    gap = "" if stats.optimality_gap is None else f", optimality gap {stats.optimality_gap:.3f} per node"
    return (
        f"{tokens} tokens in {seconds:.1f} s ({tokens / seconds:.1f}/s), {stats.steps} target calls, "
        f"{stats.block_efficiency:.2f} tokens per call, {stats.accepted} of {stats.drafted} draft tokens accepted"
        f"{gap}, {'lossless' if lossless else 'LOSSY'}"
    )


def warn_if_lossy(lm: LM) -> None:
    """Say it before the text, not after."""
    rule = lm.engine.rule
    if not rule.card.lossless:
        talk(f"rule {rule.card.name!r} is LOSSY: up to {rule.bias_bound:g} total variation per token")


def _as_json(output: Output, seconds: float, *, trace: bool) -> dict[str, Any]:
    names = ("block_efficiency", "acceptance_by_depth", "acceptance_by_rank", "optimality_gap")
    stats = {**asdict(output.stats), **{name: getattr(output.stats, name) for name in names}}
    found = {
        "text": output.text,
        "tokens": output.tokens,
        "finish_reason": output.finish_reason,
        "seconds": seconds,
        "stats": stats,
    }
    if output.logprobs is not None:
        found["logprobs"] = output.logprobs
    if trace:
        found["steps"] = [
            {"tokens": step.tokens, "accepted": step.accepted, "corrected": step.corrected} for step in output.steps
        ]
    return found


def _colour(step: Step, place: int) -> str:
    """Where a token came from: a draft, by its depth; a correction; or the bonus after a whole path."""
    if place < step.accepted:
        return _DEPTHS[min(place, len(_DEPTHS) - 1)]
    return "red" if step.corrected else "green"


def _traced(output: Output, tokenizer: Any) -> Text:
    """The text with its tokens coloured, and below it what the colours mean."""
    stream, found = TextStream(tokenizer), Text()
    for step in output.steps:
        for place, token in enumerate(step.tokens):
            found.append(stream.feed(token), style=_colour(step, place))
    found.append(stream.finish())
    found.append("\n\n")
    for name, style in (("correction", "red"), ("bonus", "green")):
        found.append(f"{name} ", style=style)
    for depth, style in enumerate(_DEPTHS, start=1):
        found.append(f"draft {depth}{'+' if depth == len(_DEPTHS) else ''} ", style=style)
    return found


def _given(**options: Any) -> dict[str, Any]:
    """Options that were given: None, nothing and zero are not."""
    return {name: value for name, value in options.items() if value not in (None, (), [], 0, 0.0)}


def generate(
    prompt: Annotated[str, typer.Argument(help="What to answer; - reads it from standard input.")],
    model: ModelFlag = "smollm2-135m",
    drafter: DrafterFlag = "auto",
    rule: Annotated[str, typer.Option("--rule", metavar="RULE", help="A rule of `spectr rules`.")] = "race",
    drafts: Annotated[int | None, typer.Option(min=1, metavar="K", help="Drafts in the tree.")] = None,
    length: Annotated[int | None, typer.Option(min=1, metavar="L", help="Tokens of each draft.")] = None,
    nodes: Annotated[int | None, typer.Option(min=2, metavar="N", help="Most nodes of the tree, with root.")] = None,
    tree: Annotated[str | None, typer.Option(metavar="B,B,...", help="Children of a node at each depth.")] = None,
    plan: Annotated[
        str | None, typer.Option(metavar="FILE", help="A profile of `spectr tune`, or auto: chosen at every step.")
    ] = None,
    profile: Annotated[str | None, typer.Option(metavar="FILE", help="What --plan auto begins with.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Most tokens to add.")] = 128,
    temperature: Annotated[float, typer.Option(min=0, metavar="T", help="0 is greedy.")] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, metavar="K", help="Keep the K likeliest tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(metavar="P", help="Keep the likeliest tokens of mass P.")] = 1.0,
    min_p: Annotated[float, typer.Option(metavar="P", help="Keep tokens P times as likely as the best.")] = 0.0,
    typical_p: Annotated[float, typer.Option(metavar="P", help="Keep the most typical tokens of mass P.")] = 1.0,
    repetition_penalty: Annotated[float, typer.Option(metavar="X", help="Above 1: fewer repetitions.")] = 1.0,
    presence_penalty: Annotated[float, typer.Option(metavar="X", help="Off a token once generated.")] = 0.0,
    frequency_penalty: Annotated[float, typer.Option(metavar="X", help="Off a token each time generated.")] = 0.0,
    stop: Annotated[list[str] | None, typer.Option(metavar="TEXT", help="Ends the text; may be repeated.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="With the race, the text is a function of it.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Continue plain text: no chat template.")] = False,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, or auto.")] = "auto",
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="float32, bfloat16, ... or auto.")] = "float32",
    trace: Annotated[bool, typer.Option("--trace", help="Colour tokens by origin; with --json: the steps.")] = False,
    gap: Annotated[bool, typer.Option("--gap", help="Also what the best coupling would have accepted.")] = False,
    logprobs: Annotated[bool, typer.Option("--logprobs", help="With --json: of every token.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Generate text, losslessly, with many drafts, and show what speculation did."""
    text = sys.stdin.read() if prompt == "-" else prompt
    shape = None if tree is None else numbers_in_order(tree)
    options = _given(drafts=drafts, length=length, nodes=nodes, tree=shape, plan=plan, profile=profile)
    lm = load(model, drafter, rule, device=device, dtype=dtype, progress=talk, **options)
    warn_if_lossy(lm)
    settings = {
        "temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p, "typical_p": typical_p,
        "repetition_penalty": repetition_penalty, "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
    }  # fmt: skip
    start = time.perf_counter()
    output = lm.generate(
        text, max_new_tokens, seed, raw=raw, stop=stop or (), logprobs=logprobs, optimality_gap=gap, **settings
    )
    seconds = time.perf_counter() - start
    if as_json:
        print_json(_as_json(output, seconds, trace=trace))
        return
    if trace:
        console().print(_traced(output, lm.tokenizer), soft_wrap=True)
    else:
        typer.echo(output.text)
    talk(summary(output.stats, len(output.tokens), seconds, lossless=lm.engine.rule.card.lossless))


def numbers_in_order(text: str) -> tuple[int, ...]:
    """Branching numbers, as given."""
    numbers("--tree", text, int, 1)
    return tuple(int(word) for word in text.split(","))
