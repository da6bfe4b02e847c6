"""Prepares a model for many samples: its likeliest tokens after a prompt, its logits on them, and engines on those.

The audited distribution is the model's, conditioned on these tokens. Everything else is the code that generates text.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from spectr.audit.reference_policy import ReferencePolicy
from spectr.audit.replay import Bent, Replay, RowsAfter, TreeRows, Words
from spectr.audit.samplers import EngineSampler, reference_laws
from spectr.audit.texts import TextLaw
from spectr.audit.toys import RandomModel
from spectr.draft import Plan
from spectr.draft import drafter as named_drafter
from spectr.draft.mixed import Mixed
from spectr.draft.options import DraftOptions
from spectr.draft.traits import DrafterTraits, is_drafter
from spectr.engine import Engine, Request
from spectr.errors import ArgumentError, MismatchError
from spectr.pairing import pair
from spectr.policy import Policy, PolicyRows
from spectr.types import Drafter, TreeModel
from spectr.verify import Card, Rule

if TYPE_CHECKING:
    from spectr.models.hf import OpenedModel

__all__ = ["NOISY", "Setup", "noise", "plan_for", "real_setup", "toy_setup", "wide_setup"]

NOISY = "noisy"
"""The default drafter of an audit: the target's own logits with noise, which is often right and often wrong."""

_NOISE = 1.0
_SLACK = 1e-6  # float32 may move a token across the limit of a filter by this much
_SHOWN = 8  # tokens of the prompt that drafters and penalties use


def plan_for(card: Card, drafts: int = 2, length: int = 3) -> Plan:
    """Return a plan of `drafts` chains with the siblings that the rule prefers; one chain if it accepts no trees."""
    return Plan(card.draws or card.siblings[0], tree=(drafts if card.tree else 1, *(1,) * (length - 1)))


def noise(logits: Tensor, texts: Sequence[Words]) -> Tensor:
    """Add noise that is a function of the text."""
    noise = [np.random.default_rng([len(text), *text]).standard_normal(logits.shape[-1]) for text in texts]
    return logits + _NOISE * torch.from_numpy(np.stack(noise)).float()


@dataclass(frozen=True, slots=True)
class Setup:
    """A target of few tokens with logits to replay, its prompt, policy and stop tokens."""

    name: str
    rows: RowsAfter
    vocabulary: int
    prompt: Words
    policy: Policy
    stops: frozenset[int] = frozenset()
    ids: Tensor | None = None  # the real model's ids of the tokens
    original: Sequence[int] = ()  # the prompt in the real model's tokens
    opened: "OpenedModel | None" = None
    drafts: int = 2  # chains of the noisy drafter
    length: int = 3  # tokens of each
    memory: int = 2  # tokens after the prompt that rows depend on
    computed: type[PolicyRows] = PolicyRows  # the implementation of policies; faults are planted there

    def model(self, rows: RowsAfter | None = None) -> Replay:
        """Return the target, or another model of the same tokens."""
        return Replay(self.rows if rows is None else rows, self.vocabulary, [self.prompt], self.memory)

    def under(self, policy: Policy) -> "Setup":
        """Return the setup with another policy."""
        return replace(self, policy=policy)

    def law(self, length: int = 5) -> TextLaw:
        """Return the exact law of short texts under the reference policy: the model's for three tokens, then the
        replay's."""
        reference = ReferencePolicy(self.policy, self.stops, length, _SLACK)
        laws = reference_laws(self.model().logits_after, self.prompt, reference)
        if reference.depends_on_text:
            return TextLaw(laws, length, self.stops)
        return TextLaw(laws, length, self.stops, remembered=lambda text: text[-self.memory :])

    def drafter(self, name: Any, rule: Rule) -> Drafter:
        """Return a drafter that fits the rule: `noisy`, a name or model as for `spectr.load`, or a given drafter."""
        if name == NOISY:
            return named_drafter("model", model=self.model(Bent(self.rows, noise)), plan=self._plan(rule))
        if not isinstance(name, str):
            return self.replayed(name) if is_drafter(name) else self._paired(name, rule)
        if name in ("random", "ngram"):
            return named_drafter(name, plan=self._plan(rule))
        return named_drafter(name) if name in ("none", "lookup") else self._paired(name, rule)

    def requests(self, length: int, seeds: Sequence[int]) -> list[Request]:
        """Return a request for a text of `length` tokens for each seed."""
        return [Request(self.prompt, seed, length, self.policy) for seed in seeds]

    def engine(self, drafter: Any, rule: Rule) -> Engine:
        """Return a real engine on the replayed target."""
        engine = Engine(self.model(), self.drafter(drafter, rule), rule, self.stops)
        return engine.with_parts(policies=self.computed)

    def sampler(self, drafter: Any, rule: Rule) -> EngineSampler:
        """Return a sampler of the engine's texts."""
        return EngineSampler(self.engine(drafter, rule), self.prompt, self.policy)

    def _plan(self, rule: Rule) -> Plan:
        return plan_for(rule.card, self.drafts, self.length)

    def _paired(self, name: Any, rule: Rule) -> Drafter:
        if self.opened is None:
            raise ArgumentError(f"drafter {name!r} requires a real model, and {self.name!r} is not one; use noisy")
        options = DraftOptions(drafts=2 if rule.card.tree else 1, length=3)
        return self.replayed(pair(name, self.opened, rule.card, options))

    def _rows_of(self, model: TreeModel, ids: Tensor) -> TreeRows:
        return TreeRows(model, ids, {self.prompt: self.original})

    def replayed(self, made: Drafter) -> Drafter:
        """Return the drafter with its model's logits replayed; one without a model is returned unchanged."""
        if isinstance(made, Mixed):
            return Mixed([self.replayed(part) for part in made.parts])
        traits = DrafterTraits(made)
        if traits.feature_layers is not None:
            raise MismatchError(
                f"drafter {made.name!r} reads the target's hidden states, which a replay lacks; audit it with --direct"
            )
        model, plan = traits.model, traits.plan
        if model is None or plan is None or isinstance(model, Replay):
            return made
        if self.ids is None:
            raise ArgumentError(f"drafter {made.name!r} requires a real model, and {self.name!r} is not one; use noisy")
        return named_drafter("model", model=self.model(self._rows_of(model, self.ids)), plan=plan)


def _mass(rows: TreeRows, prompt: Words) -> Tensor:
    """Estimate how likely each token is as first or second token; the second only after the eight likeliest first
    ones."""
    first = rows([prompt])[0].double().softmax(-1)
    best = first.topk(8)
    after = rows([(*prompt, token) for token in best.indices.tolist()]).double().softmax(-1)
    return first + (best.values[:, None] * after).sum(0)


def real_setup(opened: "OpenedModel", prompt: Sequence[int], policy: Policy, vocabulary: int = 64) -> Setup:
    """Return a target of the `vocabulary` likeliest tokens after the prompt, and of the prompt's last tokens.

    The replay's prompt is the end of the real one and represents all of it."""
    if opened.start is not None:
        raise MismatchError("an audit replays decoder-only models; this one has an encoder")
    if vocabulary < 2:
        raise ArgumentError(f"a vocabulary must have at least 2 tokens, got {vocabulary}")
    target = opened.target
    every = torch.arange(target.vocabulary)
    mass = _mass(TreeRows(target, every, {tuple(prompt): prompt}), tuple(prompt))
    likely = mass.topk(min(vocabulary, target.vocabulary)).indices.tolist()
    shown = list(prompt)[-_SHOWN:]
    ids = torch.tensor(sorted({*likely, *shown}))
    number = {token: at for at, token in enumerate(ids.tolist())}
    words = tuple(number[token] for token in shown)
    stops = frozenset(number[token] for token in opened.stops if token in number)
    rows = TreeRows(target, ids, {words: prompt})
    once = Replay(rows, len(ids), [words]).logits_after
    name = type(target.model).__name__
    return Setup(name, once, len(ids), words, policy, stops, ids, tuple(prompt), opened)


def toy_setup(policy: Policy | None = None, vocabulary: int = 12, seed: int = 5) -> Setup:
    """Return a small random model whose law depends on the whole text; its last token is a stop token."""
    model = RandomModel(seed, vocabulary)

    def rows(texts: Sequence[Words]) -> Tensor:
        return torch.stack([model(text) for text in texts]).log().float()

    prompt = tuple(token % vocabulary for token in (3, 4, 3, 4, 3))
    return Setup("toy", rows, vocabulary, prompt, policy or Policy(), frozenset({vocabulary - 1}))


def wide_setup(vocabulary: int = 1_100, seed: int = 6) -> Setup:
    """Return a random model of many tokens with a long tail, whose law depends on the last token only, so that its rows
    fit into memory. Some numerics differ above 1,024 tokens."""

    def rows(texts: Sequence[Words]) -> Tensor:
        logits = [2.5 * np.random.default_rng([seed, text[-1] % 64]).standard_normal(vocabulary) for text in texts]
        return torch.from_numpy(np.stack(logits)).float()

    return Setup("wide", rows, vocabulary, (3, 4, 3), Policy(), length=2, memory=1)
