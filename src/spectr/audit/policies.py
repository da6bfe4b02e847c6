"""Compares the policy with its reference, at every node of random trees and through enumerated steps.

On trees: rows have prompts and texts of different lengths, paths repeat tokens, and logits may tie. The distribution of
`PolicyRows` at each node is compared with that of `ReferencePolicy` for the node's whole text, also with a different
policy in every row. In steps: the policy is applied to drafts and target in the loop, and the output distribution is
enumerated.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spectr.audit.exact import Loop, Shaping, enumerate_pairs
from spectr.audit.proofs import ROUNDING
from spectr.audit.reference_policy import ReferencePolicy
from spectr.audit.report import Case, Claim, Finding, Level
from spectr.audit.toys import RandomModel
from spectr.policy import History, Past, Policy, PolicyRows
from spectr.threads import one_thread
from spectr.transport.laws import law_of
from spectr.trees import Growth, Shape
from spectr.verify import rule

__all__ = ["POLICIES", "policy_cases", "step_case", "tree_case"]

_SECTION = "policy"
_STOPS = frozenset({2})
_VOCABULARY = 9  # tokens on the trees; enumerated steps have 3
_NODES, _DEPTH, _ROWS = 14, 4, 60


def _alternates(text: list[int]) -> list[int] | None:
    """A hook that forbids repeating the last token after an odd number of tokens, and allows all after an even
    number."""
    return None if len(text) % 2 == 0 else [token for token in range(3) if token != text[-1]]


def _no_stop(text: list[int]) -> list[int] | None:
    """A hook that forbids token 2 after an odd number of tokens."""
    return [0, 1] if len(text) % 2 else None


def _leans(ids: Tensor, scores: Tensor) -> Tensor:
    """A processor that depends on the length of a text, on its first token and on its last."""
    tokens = torch.arange(scores.shape[-1])
    return scores + 0.3 * (ids[:, -1:] - tokens).abs() - 0.2 * ids[:, :1] * (tokens == ids.shape[1] % 3)


_WORDS = [[0, 0], [1, 1, 1], [0, 1, 0]]

POLICIES: dict[str, Policy] = {
    "no setting": Policy(),
    "temperature": Policy(0.6),
    "greedy": Policy(0),
    "top_k": Policy(top_k=2),
    "top_p": Policy(top_p=0.7),
    "min_p": Policy(min_p=0.4),
    "typical_p": Policy(typical_p=0.6),
    "temperature and every filter": Policy(1.4, top_k=7, top_p=0.93, min_p=0.06, typical_p=0.9),
    "repetition_penalty": Policy(repetition_penalty=1.7),
    "repetition_penalty below 1": Policy(repetition_penalty=0.6),
    "presence_penalty": Policy(presence_penalty=0.9),
    "frequency_penalty": Policy(frequency_penalty=0.5),
    "negative penalties": Policy(presence_penalty=-0.7, frequency_penalty=-0.2),
    "logit_bias": Policy(logit_bias={1: 0.8, 2: -1.5}),
    "logit_bias of minus infinity": Policy(logit_bias={0: -math.inf, 1: 0.4}),
    "bad_words of one token": Policy(bad_words=[[1]]),
    "bad_words": Policy(bad_words=_WORDS),
    "min_new_tokens": Policy(min_new_tokens=2),
    "min_length": Policy(min_length=5),
    "suppress_tokens": Policy(suppress_tokens=[1]),
    "begin_suppress_tokens": Policy(begin_suppress_tokens=[0, 2]),
    "forced_eos_token_id": Policy(forced_eos_token_id=2),
    "no_repeat_ngram_size of 2": Policy(no_repeat_ngram_size=2),
    "no_repeat_ngram_size of 3": Policy(no_repeat_ngram_size=3),
    "epsilon_cutoff": Policy(epsilon_cutoff=0.15),
    "eta_cutoff": Policy(eta_cutoff=0.2),
    "allowed": Policy(allowed=_alternates),
    "processors": Policy(processors=[_leans]),
    "greedy with penalties": Policy(0, repetition_penalty=1.4, frequency_penalty=0.6, bad_words=_WORDS),
    "everything at once": Policy(
        0.8, top_k=8, top_p=0.95, min_p=0.02, typical_p=0.97, repetition_penalty=1.3, presence_penalty=0.3,
        frequency_penalty=0.2, logit_bias={1: 0.5}, bad_words=_WORDS, min_new_tokens=3, processors=[_leans],
        allowed=_no_stop, epsilon_cutoff=0.01, eta_cutoff=0.01, begin_suppress_tokens=[2], forced_eos_token_id=[1, 2],
    ),
}  # fmt: skip
"""Every setting alone, and several together. The tokens they name exist in every vocabulary used here."""


@dataclass(frozen=True, slots=True)
class _Forest:
    """Random trees below texts of different lengths."""

    prompts: list[list[int]]
    answers: list[list[int]]
    limits: list[int]  # maximum number of generated tokens of each row
    paths: Tensor  # (B, N, D), padded with -1
    logits: Tensor  # (B, N, V) float64

    @classmethod
    def random(cls, seed: int) -> "_Forest":
        """Draw a forest; half of the rows have tied logits, and few distinct tokens make paths repeat them."""
        draw = np.random.default_rng(seed)
        prompts = [draw.integers(0, 4, draw.integers(1, 6)).tolist() for _ in range(_ROWS)]
        answers = [[t for t in draw.integers(0, 5, draw.integers(0, 5)).tolist() if t not in _STOPS] for _ in prompts]
        limits = [len(answer) + int(draw.integers(1, 6)) for answer in answers]
        paths = torch.full((_ROWS, _NODES, _DEPTH), -1)
        for row in range(_ROWS):
            known: list[list[int]] = [[]]
            for node in range(1, _NODES):
                above = known[int(draw.integers(0, node))]
                path = [*above, int(draw.integers(0, 4))] if len(above) < _DEPTH else [int(draw.integers(0, 4))]
                known.append(path)
                paths[row, node, : len(path)] = torch.tensor(path)
        logits = 1.5 * draw.standard_normal((_ROWS, _NODES, _VOCABULARY))
        logits[::2] = np.round(logits[::2] * 2) / 2
        return cls(prompts, answers, limits, paths, torch.from_numpy(logits))

    def past(self) -> Past:
        """Return the history and paths in the form that the policy takes."""
        history = History.of(self.prompts, _VOCABULARY, stops=_STOPS, limits=self.limits)
        history.commit(self.answers)
        return Past(history, self.paths)


def _reference_laws(policies: Sequence[Policy], forest: _Forest) -> Iterator[tuple[int, int, list[float]]]:
    """Yield (row, node, law) for the nodes that a text can reach.

    Below an excluded token, after a stop token or beyond the limit no distribution is defined."""
    for row, (prompt, answer) in enumerate(zip(forest.prompts, forest.answers, strict=True)):
        reference = ReferencePolicy(policies[row], _STOPS, forest.limits[row])
        laws: dict[tuple[int, ...], list[float]] = {}
        for node, padded in sorted(enumerate(forest.paths[row].tolist()), key=lambda pair: -pair[1].count(-1)):
            path = tuple(token for token in padded if token >= 0)
            above = laws.get(path[:-1])
            if path and (path[-1] in _STOPS or above is None or above[path[-1]] == 0):
                continue
            if len(answer) + len(path) < forest.limits[row]:
                law = reference.law(forest.logits[row, node].tolist(), prompt, [*answer, *path])
                laws.setdefault(path, law)
                yield row, node, law


def _tree_run(
    name: str, policies: Sequence[Policy], computed: type[PolicyRows], claim: Claim, _: Level
) -> Sequence[Finding]:
    forest, worst, looked = _Forest.random(len(name)), 0.0, 0
    found = law_of(computed.of(policies, _VOCABULARY)(forest.logits, forest.past()))
    for row, node, law in _reference_laws(policies, forest):
        distance = (found[row, node] - torch.tensor(law, dtype=torch.float64)).abs().sum() / 2
        worst, looked = max(worst, float(distance)), looked + 1
    measured = f"{looked} nodes of random trees: total variation at most {worst:.1e}"
    details: dict[str, Any] = {"nodes": looked, "total_variation": worst, "tolerance": ROUNDING}
    return [Finding(_SECTION, name, worst < ROUNDING, measured, details, claim)]


def tree_case(
    name: str,
    policies: Sequence[Policy],
    computed: type[PolicyRows] = PolicyRows,
    claim: Claim = "lossless",
) -> Case:
    """Compare the laws at the nodes of random trees with the reference; the policies take turns over the rows."""
    each = [policies[row % len(policies)] for row in range(_ROWS)]
    return Case(_SECTION, name, partial(_tree_run, name, each, computed, claim))


@dataclass(frozen=True, slots=True)
class _Shaped:
    """The law of a model under the reference policy, after the prompt of a `Shaping`."""

    model: RandomModel
    shaping: Shaping

    def __call__(self, text: tuple[int, ...]) -> Tensor:
        reference = ReferencePolicy(self.shaping.policy, self.shaping.stops, self.shaping.limit)
        logits = [math.log(p) + self.shaping.shift for p in self.model(text).tolist()]
        return torch.tensor(reference.law(logits, self.shaping.prompt, text), dtype=torch.float64)


def _step_run(name: str, policy: Policy, computed: type[PolicyRows], claim: Claim, _: Level) -> Sequence[Finding]:
    shaping = Shaping(policy, (0, 1, 1), _STOPS, limit=5, computed=computed)
    target, draft = RandomModel(31, 3), RandomModel(32, 3)
    distances = {}
    with one_thread():
        for made, widths in (("optimal", (2, 1)), ("match", (2,)), ("block", (1, 1))):
            growth = Growth(Shape.branching(widths))
            (law,) = enumerate_pairs(rule(made), [(target, draft)], growth, Loop(2, shaping=shaping))
            distances[made] = law.total_variation(_Shaped(target, shaping))
    listed = ", ".join(f"{distance:.1e} ({made})" for made, distance in distances.items())
    details = {"total_variation": distances, "steps": 2, "tolerance": ROUNDING}
    holds = max(distances.values()) < ROUNDING
    return [Finding(_SECTION, name, holds, f"two steps, enumerated: total variation {listed}", details, claim)]


def step_case(
    name: str,
    policy: Policy,
    computed: type[PolicyRows] = PolicyRows,
    claim: Claim = "lossless",
) -> Case:
    """Return the case of two enumerated steps in which the policy applies to drafts and target."""
    return Case(_SECTION, name, partial(_step_run, name, policy, computed, claim))


def policy_cases() -> list[Case]:
    """Return cases of every policy on trees, of all of them in one batch, and of those that depend on the text in
    steps."""
    trees = [tree_case(f"{name}, trees", [policy]) for name, policy in POLICIES.items()]
    trees.append(tree_case("another policy in every row, trees", list(POLICIES.values())))
    remember = {name: policy for name, policy in POLICIES.items() if policy.remembers}
    return [*trees, *(step_case(f"{name}, steps", policy) for name, policy in remember.items())]
