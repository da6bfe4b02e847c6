"""Compares decoding on a CPU by transformers, spectr without and with drafts, and llama.cpp, on one model file.

Every prompt is decoded by every method before the next prompt begins, so that a temporary load of the machine affects
all of them, and ratios are taken prompt by prompt.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Protocol

import torch

from spectr.bench.journal import Journal
from spectr.bench.machine import hardware, load, versions
from spectr.draft.traits import DrafterTraits
from spectr.engine import Request
from spectr.errors import ArgumentError, MissingExtraError
from spectr.lm import LM
from spectr.lm import load as load_lm
from spectr.models.baselines import TransformersBaseline
from spectr.models.catalog import CATALOG, pull
from spectr.models.packed import packed_bytes
from spectr.policy import Policy

__all__ = ["WAYS", "CpuTrial", "run", "summarise"]

WAYS = ("transformers", "spectr plain", "spectr default", "llama.cpp")
_PREFILL = 512  # tokens of the long prompt
_AGAINST = ("llama.cpp", "transformers")
Say = Callable[[str], None]


class Decoder(Protocol):
    """A method of decoding."""

    def __call__(self, ids: list[int], tokens: int, seed: int) -> int:
        """Prefill the prompt, decode `tokens` tokens, and return their number."""
        ...


@dataclass(frozen=True, slots=True)
class CpuTrial:
    """Settings of the comparison."""

    model: str
    out: Path
    prompts: Sequence[str]
    ways: tuple[str, ...] = WAYS
    tokens: int = 128
    rounds: int = 3
    threads: int | None = None
    command: str = ""


def _spectr(lm: LM) -> Decoder:
    """Return a decoder of one row without the prefix cache."""
    engine = lm.engine.with_parts(rows=1, reuses_prefixes=False)

    def decode(ids: list[int], tokens: int, seed: int) -> int:
        return len(engine.generate([Request(ids, seed, tokens, Policy(min_new_tokens=tokens))])[0].tokens)

    return decode


def _transformers(lm: LM) -> Decoder:
    baseline = TransformersBaseline(lm.opened.target.model, lm.opened.stops)

    def decode(ids: list[int], tokens: int, seed: int) -> int:
        settings = {"temperature": 1.0, "max_new_tokens": tokens, "min_new_tokens": tokens}
        return len(baseline.write(ids, seed, settings).tokens)

    return decode


def _llama_cpp(path: str, threads: int, context: int) -> Decoder:
    """Return a decoder with llama.cpp by way of xllamacpp: same file and threads, temperature 1, no filters, no
    cache."""
    if find_spec("xllamacpp") is None:
        raise MissingExtraError("xllamacpp", "bench", "comparing with llama.cpp")
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.n_ctx, params.n_parallel, params.verbosity, params.cache_prompt = (
        path,
        context,
        1,
        0,
        False,
    )
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
    server = xllamacpp.Server(params)

    def decode(ids: list[int], tokens: int, seed: int) -> int:
        request = {
            "prompt": ids, "n_predict": tokens, "seed": seed, "temperature": 1.0, "top_k": 0, "top_p": 1.0,
            "min_p": 0.0, "cache_prompt": False, "ignore_eos": True,
        }  # fmt: skip
        return int(server.handle_completions(request)["timings"]["predicted_n"])

    return decode


def _opened(trial: CpuTrial, threads: int, say: Say) -> tuple[dict[str, Decoder], LM, LM]:
    """Return the requested decoders, and spectr without and with drafts."""
    path = str(pull(trial.model, say)) if trial.model in CATALOG else trial.model
    plain = load_lm(path, "none", device="cpu", progress=say)
    default = load_lm(plain.opened.target.model, tokenizer=plain.tokenizer)
    context = min(plain.opened.target.context, 4096)
    makers: dict[str, Callable[[], Decoder]] = {
        "transformers": lambda: _transformers(plain),
        "spectr plain": lambda: _spectr(plain),
        "spectr default": lambda: _spectr(default),
        "llama.cpp": lambda: _llama_cpp(path, threads, context),
    }
    if "llama.cpp" in trial.ways and not path.endswith(".gguf"):
        raise ArgumentError(f"llama.cpp runs GGUF files, and {trial.model!r} is not one; leave it out of --ways")
    return {name: makers[name]() for name in trial.ways}, plain, default


def _timed(way: Decoder, ids: list[int], tokens: int, seed: int) -> tuple[float, int]:
    start = time.perf_counter()
    count = way(ids, tokens, seed)
    return time.perf_counter() - start, count


def _measured(way: Decoder, ids: list[int], tokens: int, seed: int) -> dict[str, float]:
    """Return the seconds to the first token, and the tokens per second after it."""
    first, _ = _timed(way, ids, 1, seed)
    whole, count = _timed(way, ids, tokens, seed)
    return {"first": first, "whole": whole, "tokens": count, "rate": (count - 1) / max(whole - first, 1e-9)}


def _cells(trial: CpuTrial, ways: Mapping[str, Decoder], lm: LM, journal: Journal, say: Say) -> None:
    """Measure the cells that the journal lacks: every method on every prompt, then on a long one, round by round."""
    texts = [lm.encode(prompt) for prompt in trial.prompts]
    long = (texts[0] * (1 + _PREFILL // len(texts[0])))[:_PREFILL]
    for name, way in ways.items():
        say(f"warming up {name}")
        _timed(way, texts[0], 16, 0)
    for turn in range(trial.rounds):
        for number, ids in enumerate([*texts, long]):
            for name, way in ways.items():
                cell = f"{turn} {number} {name}"
                if cell in journal.cells:
                    continue
                is_long = number == len(texts)
                found = (
                    {"prefill": _timed(way, ids, 1, turn)[0]} if is_long else _measured(way, ids, trial.tokens, turn)
                )
                journal.add(cell, {"way": name, "prompt": number, "round": turn, "load": load(), **found})
        say(f"round {turn + 1} of {trial.rounds}")


def summarise(cells: Sequence[Mapping[str, Any]], ways: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return medians of each method, and medians of its ratios to others in the same round on the same prompt."""

    def of(name: str, key: str) -> dict[tuple[int, int], float]:
        return {(c["round"], c["prompt"]): c[key] for c in cells if c["way"] == name and key in c}

    found: dict[str, dict[str, float]] = {}
    for name in ways:
        rate, prefill = of(name, "rate"), of(name, "prefill")
        if not rate or not prefill:
            continue
        row = {
            "tokens_per_second": statistics.median(rate.values()),
            "first_token_ms": 1e3 * statistics.median(of(name, "first").values()),
            "prefill_tokens_per_second": _PREFILL / statistics.median(prefill.values()),
        }
        for other in (one for one in _AGAINST if one in ways and one != name):
            theirs, long = of(other, "rate"), of(other, "prefill")
            both, both_long = rate.keys() & theirs.keys(), prefill.keys() & long.keys()
            if both and both_long:
                row[f"ratio_to_{other}"] = statistics.median(rate[key] / theirs[key] for key in both)
                row[f"prefill_ratio_to_{other}"] = statistics.median(long[key] / prefill[key] for key in both_long)
        found[name] = row
    return found


def _memory(plain: LM, default: LM) -> dict[str, Any]:
    """Return the bytes of the packed weights of target and head, and of the cache of one row of 1,024 tokens."""
    head = getattr(DrafterTraits(default.engine.drafter).head, "model", None)
    return {
        "target": packed_bytes(plain.opened.target.model),
        "head": {} if head is None else packed_bytes(head),
        "cache_of_1024_tokens": plain.opened.target.cache_bytes(1, 1024),
    }


def run(trial: CpuTrial, say: Say) -> dict[str, Any]:
    """Run the comparison; cells that an interrupted run has measured are not measured again."""
    for name in trial.ways:
        if name not in WAYS:
            raise ArgumentError(f"ways must be among {', '.join(WAYS)}, got {name!r}")
    threads = trial.threads or torch.get_num_threads()
    torch.set_num_threads(threads)
    head = {
        "model": trial.model, "ways": trial.ways, "tokens": trial.tokens, "rounds": trial.rounds, "threads": threads,
        "prompts": list(trial.prompts), "prefill": _PREFILL, "temperature": 1.0,
        "hardware": hardware(torch.device("cpu")), "versions": versions(),
    }  # fmt: skip
    journal = Journal(trial.out, head)
    try:
        ways, plain, default = _opened(trial, threads, say)
        _cells(trial, ways, plain, journal, say)
        results = summarise(list(journal.cells.values()), trial.ways)
        found = {"command": trial.command, "results": results, "memory": _memory(plain, default)}
        journal.finish(found)
    finally:
        journal.close()
    return {"head": head, **found}
