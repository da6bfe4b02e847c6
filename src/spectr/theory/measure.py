"""Theory on real text: the laws of a target and a drafter along what they generate, and what the theorems make of them.

Per domain: total variation by depth, acceptance of K drafts under every coupling, rejections expected and counted,
tokens per call predicted from one set of texts and observed on another, ranks in the race. Over all texts: what
over-acceptance does. Closed forms are taken at every node, so what is left to chance is which texts came up; errors
are by leaving out one text after the other.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spectr.checks import whole
from spectr.data.prompts import Prompt, built_in
from spectr.draft.adaptive import replanned
from spectr.draft.options import DraftOptions
from spectr.draft.plan import Plan, beam_for
from spectr.engine import Engine, Request
from spectr.errors import ArgumentError
from spectr.lm import LM, load
from spectr.pairing import pair
from spectr.policy import Policy
from spectr.theory.bias_frontier import AFTER, relaxed_test
from spectr.theory.estimate import Array
from spectr.theory.excess import CURVES, acceptance_curves
from spectr.theory.race import one_child
from spectr.theory.report import Counts, Eased, Findings
from spectr.theory.watch import Look, Nodes, Seen, watch
from spectr.theory.yin_relaxed import eased_rule
from spectr.transport.laws import total_variation
from spectr.types import Drafter
from spectr.verify import Rule
from spectr.verify import rule as named_rule

__all__ = ["MOST_DRAFTS", "Study", "measure"]

MOST_DRAFTS = 16
_ROWS = 16  # texts generated at once
_LAWLESS = ("none", "lookup")


@dataclass(frozen=True, slots=True)
class Study:
    """What is measured, and on what."""

    target: str
    drafter: str = "early_exit"
    prompts: Sequence[Prompt] = field(default_factory=built_in)
    source: str = "built in"  # where the prompts come from, for the record
    layers: int | None = None  # of early_exit
    length: int = 4  # of a draft
    tokens: int = 48  # of a text
    temperature: float = 1.0
    contexts: int = 64  # in each domain, for acceptance against K
    nodes: Sequence[int] = (16,)  # of pruned trees
    epsilons: Sequence[float] = (0.0, 0.1)
    seed: int = 0
    device: str = "auto"

    def check(self) -> None:
        """Refuse what cannot be measured, before anything is loaded."""
        if not self.prompts:
            raise ArgumentError("prompts must not be empty")
        for name, least in (("length", 1), ("tokens", 1), ("contexts", 1)):
            whole(name, getattr(self, name), least)
        for count in self.nodes:
            whole("nodes", count, 2)
        if not 0 < self.temperature < float("inf"):
            raise ArgumentError(
                f"temperature must be above 0, got {self.temperature}: greedy laws are points, and what is accepted of "
                "points is counted by spectr bench acceptance"
            )
        for epsilon in self.epsilons:
            eased_rule(epsilon, "opt")
        if self.drafter in _LAWLESS or ("+" in self.drafter and not Path(self.drafter).exists()):
            raise ArgumentError(_lawless(self.drafter))

    @property
    def domains(self) -> list[str]:
        """In the order they come up."""
        return list(dict.fromkeys(prompt.domain for prompt in self.prompts))


def _lawless(name: str) -> str:
    return (
        f"theory measures laws, and drafter {name!r} proposes tokens without one; use ngram, early_exit, random, a "
        "model's name or folder, or the folder of a trained head"
    )


@dataclass(frozen=True, slots=True)
class _Bench:
    """A target and a drafter that are ready, and what they are asked."""

    study: Study
    lm: LM
    drafter: Drafter

    @classmethod
    def ready(cls, study: Study, progress: Callable[[str], None]) -> "_Bench":
        lm = load(study.target, "none", device=study.device, progress=progress)
        options = DraftOptions(drafts=1, length=study.length, layers=study.layers)
        made = pair(study.drafter, lm.opened, named_rule("speculative").card, options)
        if not made.gives_laws or not hasattr(made, "plan"):
            raise ArgumentError(_lawless(study.drafter))
        return cls(study, lm, made)

    def requests(self, shift: int) -> list[Request]:
        """One for each prompt; another shift gives other texts."""
        study, start, policy = self.study, self.lm.opened.start, Policy(self.study.temperature)
        found = []
        for at, prompt in enumerate(study.prompts):
            tokens, seed = self.lm.encode(prompt.text), study.seed + shift * len(study.prompts) + at
            source = None if start is None else tokens
            found.append(Request(tokens if start is None else start, seed, study.tokens, policy, source=source))
        return found

    def engine(self, rule: Rule, plan: Plan) -> Engine:
        return Engine(self.lm.opened.target, replanned(self.drafter, plan), rule, self.lm.opened.stops, rows=_ROWS)

    def watched(self, rule: Rule, siblings: str, shift: int, look: Look) -> Nodes:
        """A run on chains."""
        plan = Plan(siblings, tree=(1,) * self.study.length)  # type: ignore[arg-type]
        return watch(self.engine(rule, plan), self.requests(shift), look)

    def counted(self, nodes: int, shift: int) -> Counts:
        """A run of the race on pruned trees: nothing but counts."""
        beam, depth = beam_for(nodes)
        reach = getattr(getattr(self.drafter, "heads", None), "deepest", None) or depth  # parallel heads end somewhere
        engine = self.engine(named_rule("race"), Plan("race", beam, min(depth, reach), nodes))
        stats = [result.stats for result in engine.generate(self.requests(shift))]
        return Counts(*(np.array([float(getattr(s, name)) for s in stats]) for name in ("emitted", "steps")))


def _nothing(_: Seen) -> Mapping[str, Tensor]:
    return {}


class _Laws:
    """Total variation at every node, and acceptance against K at the nodes of some calls: as many as make up the
    contexts asked for, spread over the whole of the text."""

    def __init__(self, every: int) -> None:
        self.every, self.call = every, 0

    def __call__(self, seen: Seen) -> Mapping[str, Tensor]:
        gap = total_variation(seen.target, seen.draft)
        curves = torch.full((len(gap), len(CURVES) * MOST_DRAFTS), torch.nan, dtype=torch.float64, device=gap.device)
        if self.call % self.every == 0 and bool(seen.judged.any()):
            found = acceptance_curves(seen.target[seen.judged], seen.draft[seen.judged], MOST_DRAFTS)
            curves[seen.judged] = torch.cat([found[name] for name in CURVES], -1)
        self.call += 1
        return {"gap": gap, "accept": 1 - gap, "curves": curves}


def _ranks(seen: Seen) -> Mapping[str, Tensor]:
    """The chance of one child, and the place of what won in the drafter's race."""
    drafted = seen.noisy(seen.draft.double().log())
    place = (drafted > drafted.gather(-1, seen.token[:, None])).sum(-1)
    return {"accept": one_child(seen.target, seen.draft), "rank": place}


class _Ease:
    """What an eased test does at every node, and how the target likes what came out."""

    def __init__(self, epsilon: float, after: str) -> None:
        self.epsilon, self.decode = epsilon, AFTER[after]

    def __call__(self, seen: Seen) -> Mapping[str, Tensor]:
        target, draft = (law.double() / law.double().sum(-1, keepdim=True) for law in (seen.target, seen.draft))
        found = self.decode(target, draft, relaxed_test(target, draft, self.epsilon))
        score = target.gather(-1, seen.token[:, None]).squeeze(-1).log()
        return {"rejected": found.rejected, "bias": found.bias, "score": score}


def _stride(study: Study) -> int:
    """Calls between those whose contexts are taken: a call looks at a node or two of every text."""
    nodes = len(study.prompts) * study.tokens
    return max(1, nodes // (study.contexts * len(study.domains)))


def _findings(bench: _Bench, progress: Callable[[str], None]) -> Findings:
    """All runs: laws and ranks on one set of texts, counts on another."""
    study, chain, race = bench.study, named_rule("speculative"), named_rule("race")
    progress("one draft: laws along the text")
    laws = bench.watched(chain, "iid", 0, _Laws(_stride(study)))
    progress("one draft: counts on other texts")
    counts = bench.watched(chain, "iid", 1, _nothing)
    progress("race: laws and ranks along the text")
    ranks = bench.watched(race, "race", 0, _ranks)
    progress("race: counts on other texts")
    raced = bench.watched(race, "race", 1, _nothing)
    trees = {}
    for nodes in study.nodes:
        progress(f"race: trees of {nodes} nodes, pruned by the noise")
        trees[nodes] = bench.counted(nodes, 1)
    return Findings(study.domains, _domain_of(study), (laws, counts), (ranks, raced), trees)


def _domain_of(study: Study) -> Array:
    return np.array([study.domains.index(prompt.domain) for prompt in study.prompts], dtype=np.float64)


def _eased(bench: _Bench, progress: Callable[[str], None]) -> list[Eased]:
    found = []
    for epsilon in bench.study.epsilons:
        for after in AFTER:
            progress(f"Decoding-{after.upper()} at ε = {epsilon:g}")
            nodes = bench.watched(eased_rule(epsilon, after), "iid", 2, _Ease(epsilon, after))
            found.append(Eased(epsilon, after, nodes))
    return found


def measure(study: Study, progress: Callable[[str], None]) -> dict[str, Any]:
    """Run it all; plain data comes out. [leviathan2023], [sun2023spectr], [yin2024], [daliri2024] and [kobus2025]
    say what should, function by function, in the rest of this folder."""
    study.check()
    bench = _Bench.ready(study, progress)
    findings, eased = _findings(bench, progress), _eased(bench, progress)
    net = bench.lm.opened.target.model
    return {
        "what": "laws of a target and a drafter along generated text, and what theory makes of them",
        "target": Path(study.target).name,
        "drafter": Path(study.drafter).name,
        "kind_of_drafter": bench.drafter.name,
        "layers": study.layers,
        "prompts": {"source": study.source, "count": len(study.prompts)},
        "temperature": study.temperature,
        "length": study.length,
        "tokens": study.tokens,
        "seed": study.seed,
        "device": str(net.device),
        "dtype": str(net.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "vocabulary": bench.lm.opened.target.vocabulary,
        "domains": findings.to_json(bench.lm.opened.target.vocabulary),
        "lossy": [one.to_json() for one in eased],
    }
