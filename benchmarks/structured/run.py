"""Runs one part for each layout and temperature, and one for the time of a grammar walk."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.order import BaseOrder
from benchmarks.record import Circumstances, Found, Record, chosen, measure
from benchmarks.structured.tasks import TASKS
from spectr.bench.tables import Cells
from spectr.grammar import Grammar, GrammarWalk
from spectr.lm import LM, load

__all__ = ["WAYS", "Order", "run", "tables"]

WAYS = {
    "plain": ("none", False), "forced": ("none", True), "drafter": ("auto", False), "drafter, forced": ("auto", True),
}  # fmt: skip
"""The name of each way, its drafter, and whether forced text is drafted."""
_PARTS = {
    f"{layout}, {heat}": (layout, temperature)
    for layout, (heat, temperature) in product(("line", "any"), (("greedy", 0.0), ("sampled", 1.0)))
}


@dataclass(frozen=True, slots=True)
class Order(BaseOrder):
    """The settings of a run: what to measure, and where to write the result."""

    tokens: int = 128  # maximum per text
    seeds: int = 4  # texts per task

    def about(self) -> Found:
        """Return the description that all parts of a result file must share."""
        what = "JSON under schemas: plain masked decoding, forced text, a drafter, and both"
        return {"what": what, "model": Path(self.model).name, "drafter": Path(self.drafter).name}


def run(order: Order, say: Callable[[str], None]) -> Found:
    """Measure the parts that are missing, and return all results."""
    record = Record(order.out, order.about(), "benchmarks.structured")
    names = [name for name in chosen([*_PARTS, "walk"], order.only) if order.again or not record.is_done(name)]
    say(f"to measure: {', '.join(names)}" if names else "everything is measured already")
    if names:
        models = _models(order)
        settings = {"tokens": order.tokens, "seeds": order.seeds, "threads": torch.get_num_threads()}
        how = Circumstances(order.command, models["plain"].engine.target.device, settings)
        for name in names:
            part = partial(_walks, models["plain"]) if name == "walk" else partial(_texts, order, models, *_PARTS[name])
            measure(name, part, how, record, say)
    return record.data


def _models(order: Order) -> dict[str, LM]:
    """Return one model for each way; they share the weights."""
    first = load(order.model, "none")
    drafting = load(first.opened.target.model, order.drafter, tokenizer=first.tokenizer)
    found = {}
    for way, (drafter, forced) in WAYS.items():
        base = first if drafter == "none" else drafting
        found[way] = LM(base.engine.with_parts(forced_text=forced), base.opened)
    return found


def _texts(order: Order, models: dict[str, LM], layout: Any, temperature: float) -> Iterator[Found]:
    """Generate the text of every task and seed in all ways, one after the other."""
    rows: dict[str, Found] = {way: {"tokens": 0, "calls": 0, "drafted": 0, "seconds": 0.0} for way in WAYS}
    differing = 0  # texts that are not the same in all ways, because rounding decides near-ties
    left = [(task, seed) for seed in range(order.seeds) for task in TASKS]
    while left:
        task, seed = left.pop(0)
        prompt, schema = TASKS[task]
        texts = dict[str, list[int]]()
        for way, lm in models.items():
            compiled = lm.compile_grammar(Grammar.json_schema(schema, layout=layout))
            start = time.perf_counter()
            out = lm.generate(prompt, order.tokens, seed, temperature=temperature, grammar=compiled)
            texts[way] = out.tokens
            for name, value in _counted(out.stats, time.perf_counter() - start).items():
                rows[way][name] += value
        differing += any(tokens != texts["plain"] for tokens in texts.values())
        yield {"rows": rows, "differing": differing, "left": len(left)}


def _counted(stats: Any, seconds: float) -> Found:
    return {"tokens": stats.emitted, "calls": stats.steps, "drafted": stats.drafted, "seconds": seconds}


def _walks(lm: LM) -> Iterator[Found]:
    """Time one walk of the grammar, inside and outside of a string, for trees of several sizes."""
    compiled = lm.compile_grammar(Grammar.json_schema(TASKS["person"][1]))
    starts = {"a key": '{"na', "a string": '{"name": "An'}
    rows = []
    for place, nodes in product(starts, (1, 8, 64)):
        walk = compiled.walk(lm.tokenizer(starts[place], add_special_tokens=False)["input_ids"])
        rows.append({"place": place, "nodes": nodes, "microseconds": _walk_time(walk, _paths(walk, nodes))})
        yield {"rows": rows, "vocabulary": compiled.vocabulary.size, "left": 6 - len(rows)}


def _paths(walk: GrammarWalk, nodes: int) -> list[list[int]]:
    """Return the paths of a tree that the grammar admits: four chains of allowed tokens."""
    paths: list[list[int]] = [[]]
    while len(paths) < nodes:
        before = paths[-4] if len(paths) > 4 else []
        open_ = torch.nonzero(walk.masks([before])[0])[:, 0].tolist()
        word = open_[(7 * len(paths)) % len(open_)] if open_ else 0
        bits = int(walk.masks([before])[0, word]) & 0xFFFFFFFF
        paths.append([*before, 32 * word + (bits & -bits).bit_length() - 1])
    return paths


def _walk_time(walk: GrammarWalk, paths: list[list[int]], rounds: int = 50) -> float:
    walk.masks(paths)
    start = time.perf_counter()
    for _ in range(rounds):
        walk.masks(paths)
    return (time.perf_counter() - start) / rounds * 1e6


def tables(found: Found) -> Iterator[tuple[str, Cells]]:
    """Return the results as titled tables."""
    for name, part in found["parts"].items():
        if "rows" not in part:
            continue
        if name == "walk":
            cells = [[row["place"], str(row["nodes"]), f"{row['microseconds']:.0f}"] for row in part["rows"]]
            yield f"one walk, {part['vocabulary']} tokens", (["in", "nodes", "µs"], cells)
            continue
        plain = part["rows"]["plain"]
        cells = [
            [way, f"{row['tokens'] / row['calls']:.2f}", f"{row['drafted'] / row['calls']:.2f}",
             f"{row['tokens'] / row['seconds']:.1f}", f"{plain['seconds'] / row['seconds']:.2f}"]
            for way, row in part["rows"].items()
        ]  # fmt: skip
        title = f"{name}: {plain['tokens']} tokens, {part['differing']} texts differ"
        yield title, (["way", "tokens per call", "drafted", "tokens/s", "× plain"], cells)
