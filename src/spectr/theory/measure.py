"""Applies the theory to real text: measures the laws of a target and a drafter along generated text.

Per domain: total variation by depth, acceptance of K drafts with every coupling, expected and counted rejections,
tokens per call predicted from one set of texts and observed on another, ranks in the race. Over all texts: the effect
of over-acceptance. Closed forms are evaluated at every node, so only the choice of texts is random; errors are by the
jackknife over texts.
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
from spectr.draft.traits import DrafterTraits
from spectr.engine import Engine, Request
from spectr.errors import ArgumentError
from spectr.lm import LM, load
from spectr.pairing import pair
from spectr.policy import Policy
from spectr.theory.bias_frontier import AFTER, relaxed_test
from spectr.theory.estimate import Array
from spectr.theory.excess import CURVES, acceptance_curves
from spectr.theory.race import one_child
from spectr.theory.report import Counts, Findings, OverAccepting
from spectr.theory.watch import Nodes, Recorder, VisitedNodes, watch
from spectr.theory.yin_relaxed import over_accepting_rule
from spectr.transport.laws import total_variation
from spectr.types import Drafter
from spectr.verify import Rule
from spectr.verify import rule as named_rule

__all__ = ["MOST_DRAFTS", "LoadedPair", "RecordLaws", "Study", "measure", "record_nothing", "record_ranks"]

MOST_DRAFTS = 16
_ROWS = 16  # texts generated at once
_LAWLESS = ("none", "lookup")


@dataclass(frozen=True, slots=True)
class Study:
    """The settings of a measurement."""

    target: str
    drafter: str = "early_exit"
    prompts: Sequence[Prompt] = field(default_factory=built_in)
    source: str = "built in"  # the origin of the prompts, for the record
    layers: int | None = None  # layers of early_exit
    length: int = 4  # tokens of a draft
    tokens: int = 48  # tokens of a text
    temperature: float = 1.0
    contexts: int = 64  # positions in each domain for acceptance by K
    nodes: Sequence[int] = (16,)  # sizes of pruned trees
    epsilons: Sequence[float] = (0.0, 0.1)
    seed: int = 0
    device: str = "auto"

    def check(self) -> None:
        """Refuse settings that cannot be measured, before a model is loaded."""
        if not self.prompts:
            raise ArgumentError("prompts must not be empty")
        for name, least in (("length", 1), ("tokens", 1), ("contexts", 1)):
            whole(name, getattr(self, name), least)
        for count in self.nodes:
            whole("nodes", count, 2)
        if not 0 < self.temperature < float("inf"):
            raise ArgumentError(
                f"temperature must be above 0, got {self.temperature}: greedy distributions are point masses, for "
                "which spectr bench acceptance counts accepted drafts"
            )
        for epsilon in self.epsilons:
            over_accepting_rule(epsilon, "opt")
        if self.drafter in _LAWLESS or ("+" in self.drafter and not Path(self.drafter).exists()):
            raise ArgumentError(_lawless(self.drafter))

    @property
    def domains(self) -> list[str]:
        """The domains of the prompts, in order."""
        return list(dict.fromkeys(prompt.domain for prompt in self.prompts))


def _lawless(name: str) -> str:
    return (
        f"theory measures distributions, and drafter {name!r} proposes tokens without one; use ngram, early_exit, "
        "random, a model's name or folder, or the folder of a trained head"
    )


@dataclass(frozen=True, slots=True)
class LoadedPair:
    """A loaded target and drafter, and the requests for them."""

    study: Study
    lm: LM
    drafter: Drafter

    @classmethod
    def ready(cls, study: Study, progress: Callable[[str], None]) -> "LoadedPair":
        lm = load(study.target, "none", device=study.device, progress=progress)
        options = DraftOptions(drafts=1, length=study.length, layers=study.layers)
        drafter = pair(study.drafter, lm.opened, named_rule("speculative").card, options)
        if not drafter.gives_laws or DrafterTraits(drafter).plan is None:
            raise ArgumentError(_lawless(study.drafter))
        return cls(study, lm, drafter)

    def requests(self, shift: int) -> list[Request]:
        """Return a request for each prompt; another shift gives other texts."""
        study, start, policy = self.study, self.lm.opened.start, Policy(self.study.temperature)
        found = []
        for at, prompt in enumerate(study.prompts):
            tokens, seed = self.lm.encode(prompt.text), study.seed + shift * len(study.prompts) + at
            source = None if start is None else tokens
            found.append(Request(tokens if start is None else start, seed, study.tokens, policy, source=source))
        return found

    def engine(self, rule: Rule, plan: Plan) -> Engine:
        return Engine(self.lm.opened.target, replanned(self.drafter, plan), rule, self.lm.opened.stops, rows=_ROWS)

    def watched(self, rule: Rule, siblings: str, shift: int, recorder: Recorder) -> Nodes:
        """Observe a run on chains."""
        plan = Plan(siblings, tree=(1,) * self.study.length)  # type: ignore[arg-type]
        return watch(self.engine(rule, plan), self.requests(shift), recorder)

    def counted(self, nodes: int, shift: int) -> Counts:
        """Count tokens and calls of a run of the race on pruned trees."""
        beam, depth = beam_for(nodes)
        heads = DrafterTraits(self.drafter).heads  # parallel heads have a maximum depth
        reach = depth if heads is None else heads.deepest or depth
        engine = self.engine(named_rule("race"), Plan("race", beam, min(depth, reach), nodes))
        stats = [result.stats for result in engine.generate(self.requests(shift))]
        return Counts(*(np.array([float(getattr(s, name)) for s in stats]) for name in ("emitted", "steps")))


def record_nothing(_: VisitedNodes) -> Mapping[str, Tensor]:
    return {}


class RecordLaws:
    """Records total variation at every node, and acceptance by K at the nodes of every `every`-th call."""

    def __init__(self, every: int) -> None:
        self.every, self.call = every, 0

    def __call__(self, seen: VisitedNodes) -> Mapping[str, Tensor]:
        gap = total_variation(seen.target, seen.draft)
        curves = torch.full((len(gap), len(CURVES) * MOST_DRAFTS), torch.nan, dtype=torch.float64, device=gap.device)
        if self.call % self.every == 0 and bool(seen.judged.any()):
            found = acceptance_curves(seen.target[seen.judged], seen.draft[seen.judged], MOST_DRAFTS)
            curves[seen.judged] = torch.cat([found[name] for name in CURVES], -1)
        self.call += 1
        return {"gap": gap, "accept": 1 - gap, "curves": curves}


def record_ranks(seen: VisitedNodes) -> Mapping[str, Tensor]:
    """Return the acceptance of one child, and the rank of the winner in the drafter's race."""
    drafted = seen.noisy(seen.draft.double().log())
    place = (drafted > drafted.gather(-1, seen.token[:, None])).sum(-1)
    return {"accept": one_child(seen.target, seen.draft), "rank": place}


class _OverAcceptance:
    """Records rejection rate and bias of a relaxed test at every node, and the target's log-probability of the
    output."""

    def __init__(self, epsilon: float, after: str) -> None:
        self.epsilon, self.decode = epsilon, AFTER[after]

    def __call__(self, seen: VisitedNodes) -> Mapping[str, Tensor]:
        target, draft = (law.double() / law.double().sum(-1, keepdim=True) for law in (seen.target, seen.draft))
        found = self.decode(target, draft, relaxed_test(target, draft, self.epsilon))
        score = target.gather(-1, seen.token[:, None]).squeeze(-1).log()
        return {"rejected": found.rejected, "bias": found.bias, "score": score}


def _stride(study: Study) -> int:
    """Return the distance between calls whose nodes are used for acceptance by K; a call visits about one node per
    text."""
    nodes = len(study.prompts) * study.tokens
    return max(1, nodes // (study.contexts * len(study.domains)))


def _findings(bench: LoadedPair, progress: Callable[[str], None]) -> Findings:
    """Run everything: laws and ranks on one set of texts, counts on another."""
    study, chain, race = bench.study, named_rule("speculative"), named_rule("race")
    progress("one draft: laws along the text")
    laws = bench.watched(chain, "iid", 0, RecordLaws(_stride(study)))
    progress("one draft: counts on other texts")
    counts = bench.watched(chain, "iid", 1, record_nothing)
    progress("race: laws and ranks along the text")
    ranks = bench.watched(race, "race", 0, record_ranks)
    progress("race: counts on other texts")
    raced = bench.watched(race, "race", 1, record_nothing)
    trees = {}
    for nodes in study.nodes:
        progress(f"race: trees of {nodes} nodes, pruned by the noise")
        trees[nodes] = bench.counted(nodes, 1)
    return Findings(study.domains, _domain_of(study), (laws, counts), (ranks, raced), trees)


def _domain_of(study: Study) -> Array:
    return np.array([study.domains.index(prompt.domain) for prompt in study.prompts], dtype=np.float64)


def _over_accepting(bench: LoadedPair, progress: Callable[[str], None]) -> list[OverAccepting]:
    found = []
    for epsilon in bench.study.epsilons:
        for after in AFTER:
            progress(f"Decoding-{after.upper()} at ε = {epsilon:g}")
            nodes = bench.watched(over_accepting_rule(epsilon, after), "iid", 2, _OverAcceptance(epsilon, after))
            found.append(OverAccepting(epsilon, after, nodes))
    return found


def measure(study: Study, progress: Callable[[str], None]) -> dict[str, Any]:
    """Run all measurements and return JSON data. The predictions of [leviathan2023], [sun2023spectr], [yin2024],
    [daliri2024] and [kobus2025] are the functions in the rest of this folder."""
    study.check()
    bench = LoadedPair.ready(study, progress)
    findings, over_accepting = _findings(bench, progress), _over_accepting(bench, progress)
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
        "domains": findings.as_data(bench.lm.opened.target.vocabulary),
        "lossy": [one.as_data() for one in over_accepting],
    }
