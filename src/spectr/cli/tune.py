"""`spectr tune`: which plan decodes fastest here, and a profile that says so."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from spectr.cli.flags import DtypeFlag
from spectr.cli.output import JsonFlag, check_folder, console, numbers, print_json, progress_bar, talk

__all__ = ["texts_for", "tune"]

_NOTABLE = 0.02  # a gain that is worth a word, though it is not sure


def texts_for(prompts: Path | None, count: int) -> list[str]:
    """Distinct prompts of a file, or built-in ones; where there are more than `count`, from all of it."""
    from spectr.data.prompts import built_in, read_prompts

    found = list(dict.fromkeys(one.text for one in (built_in() if prompts is None else read_prompts(prompts))))
    return found if len(found) <= count else [found[at * len(found) // count] for at in range(count)]


def _table(tuner: Any, rows: int, chosen: int) -> Table:
    """What was measured with one number of rows, the fastest first."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    table.add_column("plan")
    for head in ("rounds", "tokens/s", "quartiles", "× plain", "interval", "chosen"):
        table.add_column(head, justify="right")
    for one in sorted(tuner.results()[rows], key=lambda one: -one.ratio):
        is_chosen, (low, high) = one.plan == chosen, one.quartiles
        table.add_row(
            str(tuner.plans[one.plan]), str(one.rounds), f"{one.rate:.1f}", f"{low:.1f} – {high:.1f}",
            f"{one.ratio:.2f}", f"{one.interval[0]:.2f} – {one.interval[1]:.2f}", "yes" if is_chosen else "",
            style="bold" if is_chosen else "",
        )  # fmt: skip
    return table


def _verdict(tuner: Any, rows: int, chosen: int) -> str:
    """The choice for one number of rows in a sentence."""
    from spectr.draft.profile import PLAIN
    from spectr.tune.halving import ROUNDS
    from spectr.tune.tuner import format_bytes

    found, which = tuner.results()[rows], format_bytes(rows)
    best = max(found, key=lambda one: one.ratio) if chosen == PLAIN else next(o for o in found if o.plan == chosen)
    low, high = best.interval
    figures = f"{tuner.plans[best.plan]}: {best.ratio:.2f} times plain decoding ({low:.2f} to {high:.2f})"
    if chosen != PLAIN:
        return f"{which}: {figures}"
    if min(one.rounds for one in found) < ROUNDS:
        return f"{which}: too little was measured to choose another plan than plain decoding"
    if best.ratio < 1 + _NOTABLE:
        return f"{which}: drafting does not pay here; plain decoding is chosen"
    return f"{which}: no plan is surely faster, so plain decoding is chosen; the best was {figures}"


def _rest(tuner: Any, *, interrupted: bool) -> str:
    """What became of the run, and how to go on with it."""
    where = "nothing was written; give --out FILE" if tuner.path is None else f"the profile is {tuner.path}"
    if tuner.finished:
        return f"everything is measured; {where}"
    why = "interrupted" if interrupted else "the time is over"
    again = f"{why}: {len(tuner.found)} measurements made, at most {tuner.missing} left; {where}"
    return again if tuner.path is None else f"{again}, and the same command goes on with it"


def tune(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Catalog name, hub id or folder.")] = "smollm2-135m",
    drafters: Annotated[
        str, typer.Option("--drafters", "--drafter", metavar="NAME,NAME,...", help="Drafters to try, as for generate.")
    ] = "auto,lookup",
    rules: Annotated[
        str,
        typer.Option(
            metavar="RULE,RULE,...", help="Lossless rules to try. Under race, the plan does not change texts."
        ),
    ] = "race",
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text, one prompt a line, or JSON with `prompts`; else built-in ones."),
    ] = None,
    texts: Annotated[int, typer.Option(min=1, metavar="N", help="Largest number of prompts to use.")] = 16,
    tokens: Annotated[int, typer.Option(min=8, metavar="N", help="Largest number of tokens of each text.")] = 48,
    temperature: Annotated[
        float | None, typer.Option(min=0, metavar="T", help="Temperature of all texts; by default the model's own.")
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...", help="Numbers of texts at once to tune for; by default 1, and on a GPU 1,4,16."
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0.01, metavar="M", help="Start no round after this; the same command continues.")
    ] = None,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, or auto.")] = "auto",
    dtype: DtypeFlag = "auto",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The profile, for load(..., plan=FILE) and --plan.")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Find the fastest plan on this machine by measuring. Plain decoding is one of them. A stopped run can continue."""
    many = None if rows is None else numbers("--rows", rows, int, 1)
    if out is not None:
        check_folder(out)
    from spectr.lm import load
    from spectr.tune.tuner import Tuner, Workload, plans_for

    wanted = texts_for(prompts, texts)
    lm = load(target, "none", progress=talk, device=device, dtype=dtype)
    plans = plans_for(lm, list(dict.fromkeys(drafters.split(","))), list(dict.fromkeys(rules.split(","))), talk)
    if many is None:
        many = (1,) if lm.opened.target.device.type == "cpu" else (1, 4, 16)
    settings = {} if temperature is None else {"temperature": temperature}
    tuner = Tuner(lm, plans, Workload(tuple(wanted), tokens, settings), many, out)
    tuner.resume()
    interrupted = False
    try:
        with progress_bar("tune", tuner.missing) as tick:
            tuner.run(minutes, talk, tick)
    except KeyboardInterrupt:
        interrupted = True
    profile = tuner.profile()
    if as_json:
        print_json(tuner.as_data())
    elif profile is not None:
        for choice in profile.choices:
            console().print(_table(tuner, choice.rows, choice.plan))
        for choice in profile.choices:
            typer.echo(_verdict(tuner, choice.rows, choice.plan))
    talk(_rest(tuner, interrupted=interrupted))
    if interrupted:
        raise typer.Exit(130)
