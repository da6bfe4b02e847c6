"""Formats cards, comparisons and timings as tables for a terminal."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from spectr.cli.explained import Explained
from spectr.data.papers import PAPERS
from spectr.theory import COLUMNS, Comparison
from spectr.types import SIBLINGS
from spectr.verify import Card, Rule

__all__ = [
    "acceptance_table",
    "bench_table",
    "comparison_heading",
    "comparison_reading",
    "comparison_table",
    "cpu_table",
    "rule_page",
    "rules_table",
    "step_table",
    "summaries_table",
]

_BEST = "bold green"
_SAME = 5e-5  # values this close are printed alike


def _table(*columns: str) -> Table:
    return Table(*columns, box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False)


def rules_table(cards: Iterable[Card]) -> Table:
    """Return a table of what each rule is valid for and requires, with a dot for every kind of siblings."""
    table = _table("rule", "law", "drafts")
    table.padding = (0, 1, 0, 0)
    for siblings in SIBLINGS:
        table.add_column(siblings.replace("without_replacement", "w/o\nrepl."), justify="center")
    table.add_column("draft\nlaws")
    table.add_column("graph")
    for card in cards:
        table.add_row(
            Text(card.name, "bold"),
            Text("lossless", "green") if card.lossless else Text("LOSSY", "bold red"),
            "trees" if card.tree else "chains",
            *("●" if siblings in card.siblings else "·" for siblings in SIBLINGS),
            "needed" if card.needs_laws else "–",
            "yes" if card.capturable else "no",
        )
    return table


def _papers(card: Card) -> str:
    return "; ".join(PAPERS[key].short if key in PAPERS else key for key in card.papers)


def summaries_table(cards: Iterable[Card]) -> Table:
    """Return a table of what each rule does, and its papers."""
    table = _table("rule", "what it does", "papers")
    table.columns[0].no_wrap = True
    for card in cards:
        table.add_row(Text(card.name, "bold"), card.summary, Text(_papers(card), "dim"))
    return table


_DRAWN = {
    "iid": "independent draws from the draft distribution",
    "hybrid": "its likeliest few tokens, and independent draws from the rest",
    "without_replacement": "draws that never repeat a token",
    "fixed": "tokens chosen without randomness, such as the top k",
    "race": "the best tokens by the noise that drafter and target share",
}


def rule_page(rule: Rule, explained: Explained | None) -> Table:
    """Return everything about one rule, one property per row."""
    card = rule.card
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column()
    lossless = "yes: the text has exactly the target's distribution"
    lossy = f"NO: each token may be off by up to {rule.bias_bound:g} in total variation"
    table.add_row("rule", card.name)
    table.add_row("what it does", card.summary if explained is None else explained.words)
    table.add_row("lossless", lossless if card.lossless else Text(lossy, "bold red"))
    table.add_row("drafts", "trees of drafts" if card.tree else "one chain of drafts; no trees")
    table.add_row("children", "\n".join(f"{name}: {_DRAWN[name]}" for name in card.siblings))
    table.add_row("draft law", "needed: the drafter must return its probabilities" if card.needs_laws else "not needed")
    table.add_row("CUDA graphs", "its steps can be captured" if card.capturable else "its steps cannot be captured")
    if explained is not None:
        table.add_row("cost per node", explained.cost)
    table.add_row("papers", f"{_papers(card)} (BibTeX: spectr cite {card.name})")
    if explained is not None:
        table.add_row("example", f'spectr generate "Why is the sky blue?" --rule {card.name} {explained.flags}')
    return table


def comparison_heading(found: Comparison) -> Text:
    """Return the name of the family and a description of its distributions."""
    return Text.assemble((found.family.name, "bold"), ("  " + found.family.note, "dim"))


def _cell(value: float | None, best: float | None) -> Text:
    if value is None:
        return Text("–")
    return Text(f"{value:.4f}", _BEST if best is not None and value > best - _SAME else "")


def comparison_table(found: Comparison) -> Table:
    """Return a table with a row per rule and a column per K; the best that sampled drafts reach is marked."""
    table = _table("rule (all lossless)", "siblings")
    for k in found.ks:
        table.add_column(f"K = {k}", justify="right", no_wrap=True)
    for name, values in found.acceptance.items():
        column = COLUMNS[name]
        best = [found.best(at) if column.sampled else None for at in range(len(values))]
        cells = (_cell(value, top) for value, top in zip(values, best, strict=True))
        table.add_row(column.label, column.siblings, *cells)
    return table


def _widest(found: Comparison) -> int:
    """Return the index of the K where the rules for iid drafts are furthest apart."""
    optimum, worst = found.acceptance["optimum"], found.acceptance["recursive"]
    gaps = [(high or 0.0) - (low or 0.0) for high, low in zip(optimum, worst, strict=True)]
    return gaps.index(max(gaps))


def comparison_reading(found: Comparison) -> Text:
    """Return one line that summarises the table."""
    at = _widest(found)
    values = {name: row[at] or 0.0 for name, row in found.acceptance.items()}
    best = max(values, key=lambda name: round(values[name], 4))
    highest = f"highest: {COLUMNS[best].label}, {values[best]:.4f}"
    if not values["optimum"]:
        return Text(f"The drafter's distribution shares no token with the target's; {highest}.", "italic")
    shares = [
        f"{COLUMNS[name].label} {values[name] / values['optimum']:.1%}"
        for name in ("kseq", "kseq_plus", "race")
        if found.acceptance[name][at] is not None
    ]
    return Text(f"At K = {found.ks[at]}, of what iid drafts allow: {', '.join(shares)}; {highest}.", "italic")


def bench_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with one timing per row; the ratio is to a softmax of the same logits."""
    table = _table("rule", "mode")
    for name in ("vocabulary", "children", "ms", "softmax ms", "ratio"):
        table.add_column(name, justify="right")
    for row in results:
        table.add_row(
            Text(str(row["rule"]), "bold"),
            str(row["mode"]),
            f"{row['vocabulary']:,}",
            str(row["children"]),
            f"{row['milliseconds']:.3f}",
            f"{row['softmax_milliseconds']:.3f}",
            f"{row['ratio']:.2f}",
        )
    return table


def step_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table with one method per row, against transformers' plain sampling: over all prompts, and the worst."""
    table = _table("way")
    for name in ("ms per token", "× transformers", "least of a prompt", "tokens per call", "Python ms per step"):
        table.add_column(name, justify="right")
    keys = ("speedup", "least_speedup", "tokens_per_call", "python_ms_per_step")
    for name, row in results.items():
        more = [f"{row[key]:.2f}" if key in row else "" for key in keys]
        table.add_row(Text(name, "bold"), f"{row['ms_per_token']:.1f}", *more)
    return table


def cpu_table(results: Mapping[str, Mapping[str, Any]]) -> Table:
    """Return a table with one method per row, against llama.cpp and transformers on a CPU."""
    table = _table("way")
    keys = {
        "tok/s": "tokens_per_second", "× llama.cpp": "ratio_to_llama.cpp", "× transformers": "ratio_to_transformers",
        "first token ms": "first_token_ms", "prefill tok/s": "prefill_tokens_per_second",
        "prefill × llama.cpp": "prefill_ratio_to_llama.cpp",
    }  # fmt: skip
    for name in keys:
        table.add_column(name, justify="right")
    for way, row in results.items():
        cells = (f"{row[key]:.2f}" if "×" in name else f"{row[key]:.1f}" for name, key in keys.items() if key in row)
        found = iter(cells)
        table.add_row(Text(way, "bold"), *(next(found) if key in row else "" for key in keys.values()))
    return table


def acceptance_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return a table with one combination of rule, temperature and tree size per row."""
    table = _table("rule")
    for name in ("T", "nodes", "tokens per call", "acceptance by depth"):
        table.add_column(name, justify="right")
    for row in results:
        by_depth = " ".join(f"{value:.2f}" for value in row["acceptance_by_depth"])
        numbers = (f"{row['temperature']:g}", str(row["nodes"]), f"{row['tokens_per_call']:.2f}", by_depth)
        table.add_row(Text(str(row["rule"]), "bold"), *numbers)
    return table
