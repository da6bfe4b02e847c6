"""`spectr theory`: predicts what speculation should give, and measures it on real text."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table
from rich.text import Text

from spectr.cli.flags import DrafterFlag
from spectr.cli.moved import add_moved
from spectr.cli.output import JsonFlag, check_folder, console, numbers, print_json, talk, write_text
from spectr.errors import ArgumentError

if TYPE_CHECKING:
    from spectr.theory import Prediction

__all__ = ["app"]

app = typer.Typer(
    help="Predict what speculation should give, and measure it.", no_args_is_help=True, rich_markup_mode=None
)


@app.callback()
def _theory() -> None:
    """Predict what speculation should give, and measure it on real text."""


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)
    for at, column in enumerate(columns):
        table.add_column(column, justify="right" if at and column != "domain" else "left")
    return table


def _predicted(alpha: float | None, depths: str | None, cost: float, longest: int) -> "Prediction":
    from spectr.theory import predict, predict_by_depth

    if (alpha is None) == (depths is None):
        raise ArgumentError("give --alpha for one acceptance everywhere, or --by-depth for one at each depth")
    if depths is not None:
        return predict_by_depth(_fractions(depths), cost)
    assert alpha is not None
    return predict(alpha, cost, longest)


def _fractions(text: str) -> list[float]:
    """Parse one number per depth, in order; numbers may repeat."""
    try:
        return [float(word) for word in text.split(",")]
    except ValueError:
        raise ArgumentError(f"--by-depth takes numbers with commas between them, got {text!r}") from None


def _sentence(found: "Prediction", what: str, cost: float, longest: int) -> str:
    if found.gamma == 0:
        return f"do not speculate: {what} does not pay for drafts that cost {cost:g} of a target call"
    bound = ", the longest considered" if found.gamma == longest else ""
    return (
        f"draft {found.gamma} token{'s' * (found.gamma > 1)} at a time (gamma = {found.gamma}{bound}): "
        f"{found.speedup:.2f} times as fast as plain decoding, "
        f"{found.expected_tokens:.2f} tokens per target call ({what}, a draft costs {cost:g} of a target call)"
    )


@app.command("predict")
def predict_length(
    cost: Annotated[float, typer.Option(metavar="C", help="Cost of one drafted token, in target calls.")],
    alpha: Annotated[float | None, typer.Option(metavar="A", help="Acceptance rate of a drafted token.")] = None,
    by_depth: Annotated[
        str | None, typer.Option(metavar="A,A,...", help="Acceptance rate at each depth, in place of --alpha.")
    ] = None,
    operation_cost: Annotated[
        float | None, typer.Option(metavar="C", help="Ratio of the drafter's operations per token to the target's.")
    ] = None,
    longest: Annotated[int, typer.Option(min=0, metavar="N", help="Longest draft to consider.")] = 1000,
    as_json: JsonFlag = False,
) -> None:
    """Compute how long drafts should be, and how much faster they make decoding."""
    from spectr.theory import operations

    found = _predicted(alpha, by_depth, cost, longest)
    more: dict[str, float] = {}
    if operation_cost is not None:
        if alpha is None:
            raise ArgumentError("--operation-cost goes with --alpha: the count of operations is for one acceptance")
        more = {"operations": operations(alpha, operation_cost, found.gamma)}
    if as_json:
        print_json({**found.as_data(), **more})
        return
    what = f"acceptance {alpha:g}" if alpha is not None else f"acceptance {by_depth} by depth"
    extra = f"; {more['operations']:.2f} times the operations" if more else ""
    typer.echo(_sentence(found, what, cost, longest if alpha is not None else -1) + extra)


add_moved(app, "theory figures", "benchmarks.figures")


def _shown(one: Mapping[str, Any], digits: int = 3) -> str:
    """Format a value and its standard error."""
    error = "" if one["error"] is None else f" ±{one['error']:.{digits}f}"
    return f"{one['value']:.{digits}f}{error}"


def _off(value: float | None) -> str:
    return "–" if value is None else f"{value:+.1f}"


def _gaps(domains: Mapping[str, Any]) -> Table:
    table = _table("domain", "texts", "judged", "TV by depth", "rejections expected", "counted", "off")
    for name, found in domains.items():
        one, rejections = found["one_draft"], found["one_draft"]["rejections"]
        by_depth = " ".join(f"{gap['value']:.2f}" for gap in one["total_variation_by_depth"])
        counts = (f"{rejections['expected']:.1f} ±{rejections['error']:.1f}", f"{rejections['counted']:.0f}")
        table.add_row(name, str(found["texts"]), str(found["judged"]), by_depth, *counts, _off(rejections["deviation"]))
    return table


_SHOWN_KS = (1, 2, 4, 8, 16)


def _acceptance(domains: Mapping[str, Any]) -> Table:
    """Return a table of every coupling on all texts, and of the best one in each domain."""
    table = _table("acceptance of K drafts", "domain", *(f"K = {k}" for k in _SHOWN_KS))
    ways = ("optimal", "kseq_plus", "kseq", "recursive", "match")
    for name, domain in [
        *((way, "all") for way in ways),
        *(("optimal", domain) for domain in domains if domain != "all"),
    ]:
        curve = domains[domain]["one_draft"]["acceptance_by_drafts"][name]
        table.add_row(name, domain, *(_shown(curve[k - 1]) for k in _SHOWN_KS))
    for domain, found in domains.items():
        curve = found["race"]["acceptance_by_children"]
        table.add_row("race, counted", domain, *(_shown(curve[k - 1]) for k in _SHOWN_KS))
    return table


def _efficiency(domains: Mapping[str, Any]) -> Table:
    table = _table("tokens per call", "domain", "predicted", "observed on other texts", "off", "capped geometric")
    for way in ("one_draft", "race"):
        for domain, found in domains.items():
            tokens = found[way]["tokens_per_call"]
            capped = f"{found[way]['capped_geometric']:.3f}" if way == "one_draft" else ""
            row = (_shown(tokens["predicted"]), _shown(tokens["observed"]), _off(tokens["deviation"]), capped)
            table.add_row(way.replace("_", " "), domain, *row)
    return table


def _trees(domains: Mapping[str, Any]) -> Table:
    table = _table(
        "race, domain", "H of the rank", "nodes", "pruned tree", "best static", "rank bound", "entropy bound"
    )
    for domain, found in domains.items():
        for tree in found["race"]["trees"]:
            known = (f"{tree[name]:.2f}" for name in ("best_static", "rank_bound", "entropy_bound"))
            entropy = f"{found['race']['rank_entropy']:.2f} nats"
            table.add_row(domain, entropy, str(tree["nodes"]), _shown(tree["observed"]), *known)
    return table


def _lossy(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = _table(
        "LOSSY", "ε", "rejected", "expected", "bias of a token", "log-likelihood per token", "tokens per call"
    )
    for row in rows:
        names = ("rejected", "expected", "bias", "score", "tokens_per_call")
        table.add_row(f"Decoding-{row['after'].upper()}", f"{row['epsilon']:g}", *(_shown(row[name]) for name in names))
    return table


def _print_measured(found: Mapping[str, Any]) -> None:
    domains, out = found["domains"], console()
    tables = (_gaps(domains), _acceptance(domains), _efficiency(domains), _trees(domains), _lossy(found["lossy"]))
    for table in tables:
        if table.row_count:
            out.print(table, "", sep="\n")
    note = "± is one standard error (jackknife over texts); off is in standard errors."
    out.print(Text(note, "italic"))


def _listed(flag: str, text: str, kind: type[Any], least: Any) -> tuple[Any, ...]:
    """Parse numbers; an empty text means none."""
    return numbers(flag, text, kind, least) if text else ()


@app.command("measure")
def measure_laws(
    target: Annotated[str, typer.Argument(metavar="TARGET", help="Catalog name, hub id or folder.")] = "smollm2-135m",
    drafter: DrafterFlag = "early_exit",
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="JSON with `prompts` of text and kind, or one prompt per line. [default: built-in]"
        ),
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, metavar="N", help="Number of layers of early_exit.")] = None,
    length: Annotated[int, typer.Option(min=1, metavar="L", help="Number of tokens in a draft.")] = 4,
    tokens: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of tokens of each text.")] = 48,
    temperature: Annotated[float, typer.Option(metavar="T", help="Temperature, above 0.")] = 1.0,
    contexts: Annotated[int, typer.Option(min=1, metavar="N", help="Positions per domain for acceptance by K.")] = 64,
    nodes: Annotated[
        str, typer.Option(metavar="N,N,...", help="Sizes of the race's pruned trees; empty: none.")
    ] = "16",
    epsilons: Annotated[
        str, typer.Option(metavar="E,E,...", help="Relaxations of the test for Decoding-OPT and -UNO; empty: none.")
    ] = "0,0.1",
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the texts.")] = 0,
    device: Annotated[str, typer.Option("--device", metavar="DEVICE", help="cpu, cuda, or auto.")] = "auto",
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write the JSON to a file.")] = None,
    as_json: JsonFlag = False,
) -> None:
    """Measure a target and a drafter on real text, and compare with the predictions of theory, per domain."""
    from spectr.data.prompts import built_in, read_prompts
    from spectr.theory.measure import Study, measure

    if out is not None:
        check_folder(out)
    study = Study(
        target, drafter, built_in() if prompts is None else read_prompts(prompts),
        "built in" if prompts is None else prompts.name, layers, length, tokens, temperature, contexts,
        _listed("--nodes", nodes, int, 2), _listed("--epsilons", epsilons, float, 0.0), seed, device,
    )  # fmt: skip
    found = measure(study, talk)
    if out is not None:
        write_text(out, json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    if as_json:
        print_json(found)
    else:
        _print_measured(found)
