"""`spectr generate`, `spectr pull` and `spectr models`: text from a model, and the models that come by name."""

import sys
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.table import Table

from spectr.cli.output import JsonFlag, console, print_json, talk
from spectr.lm import LM, Output, load

__all__ = ["generate", "models", "pull_model"]


def _summary(output: Output, seconds: float, *, lossless: bool) -> str:
    """One honest line about what speculation did."""
    stats = output.stats
    rate = len(output.tokens) / seconds
    return (
        f"{len(output.tokens)} tokens in {seconds:.1f} s ({rate:.1f}/s), {stats.steps} target calls, "
        f"{stats.block_efficiency:.2f} tokens per call, {stats.accepted} of {stats.drafted} draft tokens accepted, "
        f"{'lossless' if lossless else 'LOSSY'}"
    )


def _as_json(output: Output, seconds: float) -> dict[str, Any]:
    stats = {
        **asdict(output.stats),
        "block_efficiency": output.stats.block_efficiency,
        "acceptance_by_depth": output.stats.acceptance_by_depth,
    }
    return {
        "text": output.text,
        "tokens": output.tokens,
        "finish_reason": output.finish_reason,
        "seconds": seconds,
        "stats": stats,
    }


def _run(lm: LM, prompt: str, settings: dict[str, Any]) -> tuple[Output, float]:
    start = time.perf_counter()
    output: Output = lm.generate(prompt, **settings)
    return output, time.perf_counter() - start


def generate(
    prompt: Annotated[str, typer.Argument(help="What to answer; - reads it from standard input.")],
    model: Annotated[str, typer.Option(metavar="NAME", help="Catalog name, hub id or folder.")] = "smollm2-135m",
    drafter: Annotated[str, typer.Option(metavar="NAME", help="What drafts: lookup, none.")] = "lookup",
    rule: Annotated[
        str, typer.Option("--rule", metavar="RULE", help="A rule of `spectr rules` for fixed drafts.")
    ] = "race",
    max_new_tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Most tokens to add.")] = 128,
    temperature: Annotated[float, typer.Option(min=0, metavar="T", help="0 is greedy.")] = 0.8,
    top_k: Annotated[int, typer.Option(min=0, metavar="K", help="Keep the K likeliest tokens; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(metavar="P", help="Keep the likeliest tokens of mass P.")] = 1.0,
    min_p: Annotated[float, typer.Option(metavar="P", help="Keep tokens P times as likely as the best.")] = 0.0,
    seed: Annotated[int, typer.Option(metavar="N", help="With the race, the text is a function of it.")] = 0,
    raw: Annotated[bool, typer.Option("--raw", help="Continue plain text: no chat template.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Generate text, losslessly, with many drafts, and show what speculation did."""
    text = sys.stdin.read() if prompt == "-" else prompt
    lm = load(model, drafter=drafter, rule=rule, progress=talk)
    if not lm.engine.rule.card.lossless:
        talk(f"rule {rule!r} is LOSSY: up to {lm.engine.rule.bias_bound:g} total variation per token")
    policy = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    output, seconds = _run(lm, text, {"max_new_tokens": max_new_tokens, "seed": seed, "raw": raw, **policy})
    if as_json:
        print_json(_as_json(output, seconds))
        return
    typer.echo(output.text)
    talk(_summary(output, seconds, lossless=lm.engine.rule.card.lossless))


def pull_model(name: Annotated[str, typer.Argument(help="A name of `spectr models`.")] = "smollm2-135m") -> None:
    """Fetch and convert a catalog model, once."""
    from spectr.models.catalog import pull

    typer.echo(pull(name, talk))


def models(as_json: JsonFlag = False) -> None:
    """List the models that come by name, and whether they are here."""
    from spectr.models.catalog import CATALOG, locate

    if as_json:
        listed = {name: {"about": m.about, "folder": str(locate(name) or "") or None} for name, m in CATALOG.items()}
        print_json({"models": listed})
        return
    table = Table(box=None)
    for heading in ("model", "here", "about"):
        table.add_column(heading)
    for name, model in CATALOG.items():
        table.add_row(name, "yes" if locate(name) else "no", model.about)
    console().print(table)
