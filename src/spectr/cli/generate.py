"""`spectr generate`: generates text and reports what speculation did."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from spectr.cli.flags import (
    OUTPUT,
    SAMPLING,
    SPECULATION,
    DeviceFlag,
    DrafterFlag,
    DtypeFlag,
    MaxTokensFlag,
    ModelFlag,
    NodesFlag,
    PlanFlag,
    RuleFlag,
    SeedFlag,
    TemperatureFlag,
    TopPFlag,
    WeightsFlag,
    given,
)
from spectr.cli.group import INTERRUPTED
from spectr.cli.output import check_folder, check_text, console, numbers, print_json, read_stdin, talk
from spectr.cli.screens import screen_for, show_stream

if TYPE_CHECKING:
    from spectr.lm import LM
    from spectr.lm.output import Output

__all__ = ["generate", "summary", "warn_if_lossy"]


def summary(output: "Output", seconds: float, *, lossless: bool, interrupted: bool = False) -> str:
    """Return one line about what speculation did."""
    stats, count = output.stats, len(output.tokens)
    beginning = f"interrupted after {count} tokens" if interrupted else f"{count} tokens"
    gap = "" if stats.optimality_gap is None else f", optimality gap {stats.optimality_gap:.3f} per node"
    return (
        f"{beginning} in {seconds:.1f} s ({count / seconds:.1f}/s), {stats.steps} target calls, "
        f"{stats.block_efficiency:.2f} tokens per call, {stats.accepted} of {stats.drafted} draft tokens accepted"
        f"{gap}, {'lossless' if lossless else 'LOSSY'}, seed {output.seed}"
    )


def warn_if_lossy(lm: "LM") -> None:
    """Warn, before any text is printed, that its distribution is not the target's."""
    rule = lm.engine.rule
    if not rule.card.lossless:
        talk(f"rule {rule.card.name!r} is LOSSY: each token may be off by {rule.bias_bound:g} in total variation")


def _as_json(output: "Output", seconds: float, *, trace: bool, interrupted: bool) -> dict[str, Any]:
    names = ("block_efficiency", "acceptance_by_depth", "acceptance_by_rank", "optimality_gap")
    stats = {**asdict(output.stats), **{name: getattr(output.stats, name) for name in names}}
    data = {
        "text": output.text,
        "tokens": output.tokens,
        "finish_reason": "interrupted" if interrupted else output.finish_reason,
        "seed": output.seed,
        "seconds": seconds,
        "stats": stats,
    }
    if output.logprobs is not None:
        data["logprobs"] = output.logprobs
    if trace:
        data["steps"] = [
            {"tokens": step.tokens, "accepted": step.accepted, "corrected": step.corrected} for step in output.steps
        ]
    return data


def _logprob_table(output: "Output", decode: Callable[[list[int]], str]) -> Table:
    """Return a table of the tokens with their probabilities under the model's own distribution."""
    table = Table(box=None)
    for heading, justify in (("token", "right"), ("text", "left"), ("logprob", "right"), ("probability", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for token, logprob in zip(output.tokens, output.logprobs or (), strict=True):
        table.add_row(str(token), Text(repr(decode([token]))), f"{logprob:.4f}", f"{math.exp(logprob):.4f}")
    return table


def _print_summary(output: "Output", summed: str) -> None:
    talk(summed)
    if (output.stats.optimality_gap or 0) < 0:
        talk(
            "the gap is negative: more was accepted than the best coupling of independent drafts accepts on average. "
            "Drafts that share the target's noise can achieve that, and over few tokens it can happen by chance"
        )


def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt; - reads it from standard input.")],
    model: ModelFlag = "smollm2-135m",
    device: DeviceFlag = "auto",
    dtype: DtypeFlag = "auto",
    weights: WeightsFlag = "file",
    drafter: DrafterFlag = "auto",
    rule: RuleFlag = "race",
    drafts: Annotated[
        int | None,
        typer.Option(min=1, metavar="K", help="Number of drafts in a tree.", rich_help_panel=SPECULATION),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(min=1, metavar="L", help="Number of tokens in each draft.", rich_help_panel=SPECULATION),
    ] = None,
    nodes: NodesFlag = None,
    tree: Annotated[
        str | None,
        typer.Option(
            metavar="B,B,...",
            help="Shape of the tree: the number of children of a node at each depth.",
            rich_help_panel=SPECULATION,
        ),
    ] = None,
    plan: PlanFlag = None,
    profile: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Profile with which --plan auto starts.", rich_help_panel=SPECULATION),
    ] = None,
    max_new_tokens: MaxTokensFlag = 128,
    temperature: TemperatureFlag = None,
    top_k: Annotated[
        int | None,
        typer.Option(min=0, metavar="K", help="Sample from the K likeliest tokens; 0: all.", rich_help_panel=SAMPLING),
    ] = None,
    top_p: TopPFlag = None,
    min_p: Annotated[
        float | None,
        typer.Option(
            metavar="P", help="Drop tokens less than P times as likely as the likeliest.", rich_help_panel=SAMPLING
        ),
    ] = None,
    typical_p: Annotated[
        float | None,
        typer.Option(
            metavar="P",
            help="Sample from the most typical tokens that together have probability P.",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Above 1 makes tokens of the prompt and the text less likely.", rich_help_panel=SAMPLING
        ),
    ] = None,
    presence_penalty: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Subtracted from the logit of every token generated before.", rich_help_panel=SAMPLING
        ),
    ] = None,
    frequency_penalty: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Subtracted from a token's logit once for each time it was generated.",
            rich_help_panel=SAMPLING,
        ),
    ] = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End before this text; may be repeated.", rich_help_panel=SAMPLING),
    ] = None,
    seed: SeedFlag = None,
    raw: Annotated[
        bool,
        typer.Option(
            "--raw", help="Continue the prompt as plain text, without the chat template.", rich_help_panel=SAMPLING
        ),
    ] = False,
    trace: Annotated[
        bool,
        typer.Option(
            "--trace", help="Colour tokens by their origin; with --json, list the steps.", rich_help_panel=OUTPUT
        ),
    ] = False,
    trace_html: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Write a page with the tree of every step to this file.", rich_help_panel=OUTPUT
        ),
    ] = None,
    gap: Annotated[
        bool,
        typer.Option("--gap", help="Also report how much more the best coupling would accept.", rich_help_panel=OUTPUT),
    ] = False,
    logprobs: Annotated[
        bool,
        typer.Option("--logprobs", help="Also print the log-probability of every token.", rich_help_panel=OUTPUT),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, and nothing else, on stdout.", rich_help_panel=OUTPUT)
    ] = False,
) -> None:
    """Generate text, and report what speculation did. The text is streamed to stdout; Ctrl-C stops and keeps it.

    Sampling flags that are not given are taken from the model's files, as in transformers.
    """
    text = check_text("the prompt", read_stdin("the prompt") if prompt == "-" else prompt)
    stops = [check_text("--stop", one) for one in stop or ()]
    shape = None if tree is None else numbers_in_order(tree)
    if trace_html is not None:
        check_folder(trace_html)
    settings = given(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical_p=typical_p,
        repetition_penalty=repetition_penalty, presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
    )  # fmt: skip
    from spectr.lm import load
    from spectr.policy import Policy

    Policy(**settings)  # refuses invalid values before a model is loaded
    options = given(drafts=drafts, length=length, nodes=nodes, tree=shape, plan=plan, profile=profile)
    lm = load(model, drafter, rule, device=device, dtype=dtype, weights=weights, progress=talk, **options)
    warn_if_lossy(lm)
    start = time.perf_counter()
    pieces = lm.stream(
        text, max_new_tokens, seed, raw=raw, stop=stops, logprobs=logprobs, optimality_gap=gap,
        trace=trace_html is not None, **settings,
    )  # fmt: skip
    interrupted = show_stream(pieces, screen_for(lm, stops, trace=trace, as_json=as_json))
    output, seconds = pieces.output, time.perf_counter() - start
    if trace_html is not None:
        output.save_html(trace_html)
        talk(f"the tree of every step is in {trace_html}")
    if as_json:
        print_json(_as_json(output, seconds, trace=trace, interrupted=interrupted))
    elif logprobs:
        console().print("", _logprob_table(output, lm.tokenizer.decode), sep="\n")
    if interrupted or not as_json:
        _print_summary(output, summary(output, seconds, lossless=lm.engine.rule.card.lossless, interrupted=interrupted))
    if interrupted:
        raise typer.Exit(INTERRUPTED)


def numbers_in_order(text: str) -> tuple[int, ...]:
    """Return the branching numbers of --tree, in order."""
    numbers("--tree", text, int, 1)
    return tuple(int(word) for word in text.split(","))
