"""`spectr tune`: which way to decode is fastest here, and a profile that says so."""

import json
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from spectr.cli.output import JsonFlag, check_folder, console, numbers, print_json, progress_bar, talk, write_text
from spectr.errors import ArgumentError

if TYPE_CHECKING:
    from spectr.tune.ways import Bench

__all__ = ["texts_for", "tune"]


def texts_for(prompts: Path | None, count: int) -> list[str]:
    """Distinct prompts of a file, or built-in ones; where there are more than `count`, from all of it."""
    from spectr.theory.prompts import BUILT_IN, read_prompts

    found = list(dict.fromkeys(one.text for one in (BUILT_IN if prompts is None else read_prompts(prompts))))
    return found if len(found) <= count else [found[at * len(found) // count] for at in range(count)]


def _row(one: Mapping[str, Any], plain: float) -> tuple[str, ...]:
    predicted, measured = one["predicted"], one["measured"]
    return (
        one["name"],
        f"{predicted['block_efficiency']:.2f}",
        f"{measured['block_efficiency']:.2f}",
        f"{predicted['tokens_per_second']:.1f}",
        f"{measured['tokens_per_second']:.1f}",
        f"{measured['tokens_per_second'] / plain:.2f}",
    )


def _table(measured: Sequence[Mapping[str, Any]], chosen: Mapping[str, Any]) -> Table:
    """What was measured for one number of rows, plain decoding first."""
    heads = ("way", "tokens per call", "observed", "tokens/s predicted", "measured", "times plain")
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for at, head in enumerate(heads):
        table.add_column(head, justify="right" if at else "left")
    plain = measured[0]["measured"]["tokens_per_second"]
    for one in measured:
        table.add_row(*_row(one, plain), style="bold" if one["way"] == chosen["way"] else "")
    return table


def _show(data: Mapping[str, Any]) -> None:
    for chosen in data["chosen"]:
        rows = chosen["rows"]
        console().print(_table([one for one in data["measured"] if one["rows"] == rows], chosen))
        many = "" if len(data["chosen"]) == 1 else f"{rows} rows: "
        typer.echo(f"{many}{chosen['name']}: {chosen['times_plain']:.2f} times plain decoding")
    for case in data.get("auto", ()):
        stretch = "" if case["worst_stretch"] is None else f", {case['worst_stretch']:+.1%} on its worst stretch"
        typer.echo(f"plan=auto, {case['case']}: {case['longer_than_plain']:+.1%} against plain decoding{stretch}")
    if grid := data.get("grid"):
        typer.echo(f"{grid['ratio_to_best']:.3f} of {grid['best']}, the fastest of {grid['plans']} plans that were run")


def _pairs_in(path: Path) -> list[dict[str, Any]]:
    """Comparisons that a file holds already."""
    try:
        found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["pairs"] if path.is_file() else []
    except (KeyError, TypeError, ValueError) as error:
        raise ArgumentError(f"--grid must be a new file, or one that spectr tune wrote: {path}: {error}") from None
    return found


def _add_pair(path: Path, data: Mapping[str, Any]) -> None:
    """Into a file of comparisons, in the place of an older one of the same pair."""
    names = ", ".join(Path(name).name for name in data["drafters"])
    entry = {"pair": f"{Path(data['target']).name} with {names}", "command": f"spectr {shlex.join(sys.argv[1:])}"}
    left = ("what", "menu", "choices", "fingerprint", "chosen")
    entry |= {name: value for name, value in data.items() if name not in left}
    kept = [one for one in _pairs_in(path) if one["pair"] != entry["pair"]]
    what = "the planner's choice against every plan of a grid; one entry for each pair of target and drafter"
    write_text(path, json.dumps({"what": what, "pairs": [*kept, entry]}, indent=1, ensure_ascii=False) + "\n")


def _bench(target: str, drafters: str, rules: str, temperature: float, loading: Mapping[str, Any]) -> "Bench":
    """Everything loaded that will be tried."""
    from spectr.lm import load
    from spectr.tune.ways import Bench, reach_for

    lm = load(target, "none", progress=talk, **loading)
    reach = reach_for(lm.opened.target.device)
    if temperature == 0:  # no noise to weigh
        reach = replace(reach, spreads=(1.0,))
    names, made = (tuple(dict.fromkeys(text.split(","))) for text in (drafters, rules))
    return Bench(lm, names, made, reach)


def tune(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Catalog name, hub id or folder.")] = "smollm2-135m",
    drafter: Annotated[
        str, typer.Option("--drafter", metavar="NAME,NAME,...", help="What may draft, as for generate.")
    ] = "auto",
    rules: Annotated[
        str, typer.Option(metavar="RULE,RULE,...", help="Lossless ones. With race alone, texts keep to their seeds.")
    ] = "race,optimal,hybrid,path_block",
    prompts: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text, one prompt a line, or JSON with `prompts`; else built-in ones."),
    ] = None,
    texts: Annotated[int, typer.Option(min=1, metavar="N", help="Most prompts to use.")] = 8,
    tokens: Annotated[int, typer.Option(min=8, metavar="N", help="Most tokens of each text.")] = 48,
    temperature: Annotated[float, typer.Option(min=0, metavar="T", help="Of all texts.")] = 1.0,
    rows: Annotated[str, typer.Option(metavar="N,N,...", help="Texts at a time, each tuned for.")] = "1",
    repeats: Annotated[int, typer.Option(min=1, metavar="N", help="Times each text is timed.")] = 2,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, or auto.")] = "auto",
    dtype: Annotated[str, typer.Option("--dtype", metavar="DTYPE", help="float32, bfloat16, ... or auto.")] = "float32",
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The profile, for load(..., plan=FILE) and --plan.")
    ] = None,
    grid: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Also run every plan of a grid, and add to this file how the choice fares."),
    ] = None,
    auto: Annotated[
        bool, typer.Option("--auto", help="Also run plan=auto where drafts are worth little, against plain decoding.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Find the fastest way to decode on this machine: costs, acceptance, then measured speeds; plain decoding too."""
    for path in (out, grid):
        if path is not None:
            check_folder(path)
    if grid is not None:
        _pairs_in(grid)  # refused now, not after the work
    from spectr.tune.grid import against_grid
    from spectr.tune.live import live
    from spectr.tune.planner import tune as run
    from spectr.tune.progress import Progress
    from spectr.tune.report import as_data
    from spectr.tune.study import Study

    many, wanted = numbers("--rows", rows, int, 1), texts_for(prompts, texts)
    bench = _bench(target, drafter, rules, temperature, {"device": device, "dtype": dtype})
    lm, progress = bench.lm, Progress(talk, progress_bar)
    encoded = tuple(dict.fromkeys(tuple(lm.encode(text)) for text in wanted))
    study = Study(encoded, tokens, temperature, many, repeats, lm.opened.start)
    found = run(bench, study, progress)
    data = as_data(bench, study, found, target)
    if out is not None:
        write_text(out, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    if auto:
        data["auto"] = live(lm, bench.drafters[0], 4 * tokens, progress)
    if grid is not None:
        data["grid"] = against_grid(bench, study, found[0], progress).as_data()
        _add_pair(grid, data)
    if as_json:
        print_json(data)
    else:
        _show(data)
