"""`python -m benchmarks.witness`: measures the overhead of a witness for several shares of checked steps.

One engine for each share, and one without a witness, generate the same texts in turns; the median of each is taken.
Time is also measured as processor time of the whole process, including the checks, because other processes disturb it
less.
"""

import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

import spectr
from benchmarks.command import command_line, run_command
from spectr.audit.witness import Witness
from spectr.bench.machine import hardware, versions
from spectr.cli.flags import ModelFlag
from spectr.cli.output import check_folder, talk
from spectr.data.prompts import read_prompts
from spectr.engine import Engine, Request
from spectr.policy import Policy

__all__ = ["witness"]

_MODULE = "benchmarks.witness"
_POLICIES = (Policy(), Policy(0.7, top_p=0.9), Policy(0.8, top_k=50, repetition_penalty=1.1), Policy(0))


def _requests(lm: spectr.LM, prompts: Path, rows: int, tokens: int) -> list[Request]:
    """Return requests with several prompts and all policies in turn."""
    texts = [lm.encode(prompt.text) for prompt in read_prompts(prompts)[:rows]]
    return [Request(text, row, tokens, _POLICIES[row % len(_POLICIES)]) for row, text in enumerate(texts)]


Speeds = tuple[float, float]
"""Tokens per second, and tokens per second of processor time."""


def _speeds(engine: Engine, requests: Sequence[Request]) -> Speeds:
    start, busy = time.perf_counter(), time.process_time()
    tokens = sum(len(result.tokens) for result in engine.generate(requests))
    witness = engine.parts.witness
    if isinstance(witness, Witness):
        witness.drain()
    return tokens / (time.perf_counter() - start), tokens / (time.process_time() - busy)


def _measure(engines: dict[str, Engine], requests: Sequence[Request], rounds: int) -> dict[str, list[Speeds]]:
    """Return the speeds of every round; the order of the engines rotates, and the first round is the warm-up."""
    names, found = list(engines), {name: list[Speeds]() for name in engines}
    for turn in range(rounds + 1):
        for name in names[turn % len(names) :] + names[: turn % len(names)]:
            found[name].append(_speeds(engines[name], requests))
        talk(f"round {turn}: " + ", ".join(f"{name} {each[-1][1]:.2f}" for name, each in found.items()))
    return {name: each[1:] for name, each in found.items()}


def witness(
    model: ModelFlag = "smollm2-135m",
    drafter: Annotated[str, typer.Option("--drafter", metavar="NAME", help="Drafter, as in spectr.load.")] = "auto",
    shares: Annotated[str, typer.Option(metavar="S,S,...", help="Shares of steps to check.")] = "0,0.01,0.1",
    prompts: Annotated[
        Path, typer.Option(metavar="FILE", help="Prompts: a text file with one per line, or JSON with `prompts`.")
    ] = Path("benchmarks/heldout.json"),
    rows: Annotated[int, typer.Option(min=1, metavar="N", help="Batch size.")] = 4,
    tokens: Annotated[int, typer.Option(min=2, metavar="N", help="Tokens per text.")] = 48,
    rounds: Annotated[int, typer.Option(min=1, metavar="N", help="Rounds of which the median is taken.")] = 9,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The result file.")] = Path("spectr-witness.json"),
) -> None:
    """Compare the speed of an engine with a witness to the same engine without one."""
    check_folder(out)
    lm = spectr.load(model, drafter)
    witnesses = {f"share {share}": Witness(float(share), seed=1) for share in shares.split(",")}
    engines = {name: lm.engine.with_parts(witness=one) for name, one in witnesses.items()}
    engines = {"no witness": lm.engine.with_parts(), **engines}
    speeds = _measure(engines, _requests(lm, prompts, rows, tokens), rounds)
    plain = [statistics.median(column) for column in zip(*speeds["no witness"], strict=True)]
    found: dict[str, Any] = {"command": command_line(_MODULE), "rows": rows, "tokens": tokens}
    found |= {"hardware": hardware(lm.opened.target.device), "versions": versions(), "engines": {}}
    for name, each in speeds.items():
        one = witnesses.get(name)
        middle = [statistics.median(column) for column in zip(*each, strict=True)]
        shares_of_plain = [own / other for own, other in zip(middle, plain, strict=True)]
        found["engines"][name] = {
            "tokens_a_second": middle[0], "tokens_a_processor_second": middle[1], "to_no_witness": shares_of_plain,
            "rounds": each, "witness": None if one is None else one.as_data(),
        }  # fmt: skip
        print(f"{name:12} {middle[0]:7.2f} tokens per second, {middle[1]:7.2f} per second of processor time: "
              f"{shares_of_plain[0]:.3f} and {shares_of_plain[1]:.3f} of the speed without a witness")  # fmt: skip
    out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    run_command(_MODULE, witness)
