"""Measures tokens per target call in generation, for rules, trees and temperatures on the same prompts.

It only counts, so the machine does not matter; `spectr bench step` measures time.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from spectr.data.prompts import read_prompts
from spectr.draft import Plan
from spectr.draft.options import DraftOptions
from spectr.draft.plan import beam_for
from spectr.engine import Engine, Request, Result
from spectr.lm import LM, load
from spectr.pairing import pair
from spectr.policy import Policy
from spectr.verify import rule as named_rule

__all__ = ["Case", "Study", "run"]

_CHAIN = "chain"


@dataclass(frozen=True, slots=True)
class Case:
    """One combination of rule, number of nodes and temperature."""

    rule: str  # or "chain" for one draft
    nodes: int
    temperature: float

    def options(self) -> DraftOptions:
        """Return pruned trees for race and match, chains for couplings, and one chain for a single draft."""
        card = named_rule("optimal" if self.rule == _CHAIN else self.rule).card
        if self.rule == _CHAIN or not card.tree:
            return DraftOptions(drafts=1, length=min(8, self.nodes - 1))
        if Plan(siblings=card.draws or card.siblings[0]).prunes:
            drafts, length = beam_for(self.nodes)
            return DraftOptions(drafts=drafts, length=length, nodes=self.nodes)
        drafts = max(1, min(8, (self.nodes - 1) // 4))
        return DraftOptions(drafts=drafts, length=(self.nodes - 1) // drafts)


def _by_depth(results: Sequence[Result]) -> list[float]:
    deepest = max(len(result.stats.reached) for result in results)
    sums = [[sum(getattr(r.stats, n)[d : d + 1]) for r in results] for d in range(deepest) for n in ("kept", "reached")]
    kept, reached = sums[::2], sums[1::2]
    return [sum(k) / max(1, sum(r)) for k, r in zip(kept, reached, strict=True)]


def _sum(results: Sequence[Result], tokens: int) -> dict[str, Any]:
    steps = sum(result.stats.steps for result in results)
    return {
        "tokens": tokens,
        "steps": steps,
        "tokens_per_call": tokens / steps,
        "acceptance_by_depth": _by_depth(results),
        "drafted_per_call": sum(result.stats.drafted for result in results) / steps,
    }


def _measure(lm: LM, study: "Study", case: Case, requests: Sequence[Request]) -> dict[str, Any]:
    rule = named_rule("optimal" if case.rule == _CHAIN else case.rule)
    drafter, _, layers = study.drafter.partition(":")  # early_exit:4 uses the first four layers
    options = replace(case.options(), layers=int(layers)) if layers else case.options()
    paired = pair(drafter, lm.opened, rule.card, options)
    engine = Engine(lm.opened.target, paired, rule, lm.opened.stops)
    results = engine.generate([replace(request, policy=Policy(case.temperature)) for request in requests])
    return _sum(results, sum(len(result.tokens) for result in results))


@dataclass(frozen=True, slots=True)
class Study:
    """The combinations to compare, and the model and prompts."""

    model: str
    drafter: str
    prompts: Path
    rules: Sequence[str]
    nodes: Sequence[int]
    temperatures: Sequence[float]
    tokens: int = 96
    device: str = "auto"

    def cases(self) -> Iterator[Case]:
        """Yield all combinations; a single draft has a fixed number of nodes."""
        for temperature in self.temperatures:
            for rule in self.rules:
                for count in (9,) if rule == _CHAIN else self.nodes:
                    yield Case(rule, count, temperature)


def run(study: Study, progress: Callable[[str], None]) -> dict[str, Any]:
    """Measure every case on every prompt; prompt i has seed i."""
    cases, prompts = list(study.cases()), [one.text for one in read_prompts(study.prompts)]
    for case in cases:
        case.options()  # raises for an unknown rule before a model is loaded
    lm = load(study.model, "none", device=study.device, progress=progress)
    requests = [Request(lm.encode(prompt), at, study.tokens) for at, prompt in enumerate(prompts)]
    results = []
    for case in cases:
        row = {**asdict(case), **_measure(lm, study, case, requests)}
        results.append(row)
        progress(f"T={case.temperature:g} {case.rule} {case.nodes} nodes: {row['tokens_per_call']:.2f} tokens per call")
    net = lm.opened.target.model
    return {
        "what": "tokens per target call in generation",
        "model": study.model,
        "drafter": Path(study.drafter).name,
        "prompts": {"file": study.prompts.name, "count": len(prompts)},
        "tokens": study.tokens,
        "device": str(net.device),
        "dtype": str(net.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "results": results,
    }
