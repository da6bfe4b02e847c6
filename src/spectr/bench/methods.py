"""The methods that a benchmark compares, built from a loaded target and its drafter."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from spectr.bench.writers import EndpointWriter, SpectrWriter, TransformersWriter, Writer
from spectr.draft import Plan
from spectr.draft import drafter as named_drafter
from spectr.draft.adaptive import replanned
from spectr.draft.options import DraftOptions
from spectr.draft.traits import DrafterTraits
from spectr.engine import Engine
from spectr.errors import MismatchError, SpectrError, UnknownNameError
from spectr.lm import LM
from spectr.pairing import pair
from spectr.registry import nearest
from spectr.types import Drafter, Siblings
from spectr.verify import Card
from spectr.verify import rule as named_rule

__all__ = [
    "METHODS",
    "Contender",
    "Field",
    "as_contender",
    "check_methods",
    "contenders",
    "label_of",
    "plan_of",
    "planned",
    "sized",
    "weights_of",
]

_LOOKUP = 10  # tokens of transformers' prompt lookup, as in its documentation


@dataclass(frozen=True, slots=True)
class Method:
    """A method: a rule with drafts of the measured drafter, with the siblings that the rule requires."""

    label: str
    rule: str = ""
    siblings: Siblings | None = None  # None: those that the rule prefers
    several: bool = True  # whether it uses K drafts, or one
    lossless: bool = True


METHODS = {
    "plain": Method("plain decoding"),
    "speculative": Method("one draft", "speculative", several=False),
    "block": Method("block verification", "block", several=False),
    "recursive": Method("multi-round", "recursive"),
    "kseq": Method("K-SEQ (SpecTr)", "spectr"),
    "optimal": Method("optimal", "optimal"),
    "path_block": Method("hybrid path_block", "path_block", "hybrid"),
    "race": Method("race", "race"),
    "topk": Method("top-k tree", "match"),
    "lookup": Method("lookup"),
    "default": Method("spectr as loaded"),
    "transformers": Method("transformers"),
    "transformers_assistant": Method("transformers, assistant_model"),
    "transformers_lookup": Method("transformers, prompt lookup"),
}
"""The methods in the order of tables. Those without a rule have no K and L and run with their own defaults."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A method at one K and L, with the writer of its texts."""

    method: str
    writer: Writer
    drafts: int | None = None  # K
    length: int | None = None  # L
    drafter: str = "none"
    lossless: bool | None = True  # None: unknown

    @property
    def key(self) -> str:
        """The contender's unique name.

        >>> Contender("race", None, 4, 2, "early_exit").key
        'race K=4 L=2 early_exit'
        """
        numbers = [f"{name}={value}" for name, value in (("K", self.drafts), ("L", self.length)) if value is not None]
        return " ".join([self.method, *numbers, self.drafter])


@dataclass(frozen=True, slots=True)
class Field:
    """The contenders of a run, and why other methods were left out."""

    contenders: tuple[Contender, ...]
    left_out: dict[str, str]


def label_of(method: str) -> str:
    """Return the label of a method; an endpoint is called by its host."""
    return METHODS[method].label if method in METHODS else method


def check_methods(names: Iterable[str]) -> None:
    """Refuse unknown names of methods."""
    for name in names:
        if name not in METHODS:
            raise UnknownNameError(f"no method is called {name!r}; {nearest(name, list(METHODS))}")


def planned(drafter: Any) -> Any:
    """Return the drafter, or the part of a mixed one, that draws by a plan and so fits any rule; None without one."""
    traits = DrafterTraits(drafter)
    if traits.plan is not None:
        return drafter
    return next((part for part in map(planned, traits.parts) if part is not None), None)


def weights_of(drafter: Any) -> dict[str, Any] | None:
    """Return the number of a drafter's weights and a digest of some of them; None if it has none."""
    traits = DrafterTraits(planned(drafter))
    parts = [part for part in (traits.model, traits.head, traits.heads) if part is not None]
    net = getattr(parts[0], "model", parts[0]) if parts else None
    if not isinstance(net, torch.nn.Module):
        return None
    digest = hashlib.sha256()
    for weights in net.parameters():
        some = weights.detach().flatten()[:: max(1, weights.numel() // 1024)]
        digest.update(some.to("cpu", torch.float32).contiguous().numpy().tobytes())
    return {"count": sum(weights.numel() for weights in net.parameters()), "digest": digest.hexdigest()[:16]}


def plan_of(method: Method, card: Card, drafts: int, length: int) -> Plan:
    """Return a plan of K drafts of L tokens, or a pruned tree with as many nodes."""
    siblings = method.siblings or card.draws or card.siblings[0]
    plan = Plan(siblings=siblings, drafts=drafts, length=length)
    return replace(plan, nodes=1 + drafts * length) if plan.prunes else plan


@dataclass(frozen=True, slots=True)
class _Maker:
    """Builds contenders from a loaded model."""

    lm: LM
    drafter: str  # the user's name of the drafter

    def engine(self, drafter: Drafter, rule: str) -> SpectrWriter:
        return self._written(self.lm.engine.with_parts(drafter=drafter, rule=named_rule(rule)))

    def _written(self, engine: Engine) -> SpectrWriter:
        """Return a writer of single texts without the prefix cache, as for the other methods: prompts occur
        repeatedly."""
        return SpectrWriter(engine.with_parts(rows=1, reuses_prefixes=False), self.lm.tokenizer)

    def ruled(self, name: str, drafts: int, length: int) -> Contender:
        """Return the contender of a method with K and L."""
        base, method = planned(self.lm.engine.drafter), METHODS[name]
        if base is None:
            raise MismatchError(
                f"drafter {self.drafter!r} has no laws to draw trees from; give --drafter early_exit, a trained "
                "drafter, or a model"
            )
        rule = named_rule(method.rule)
        made = replanned(base, plan_of(method, rule.card, drafts, length))
        return Contender(name, self.engine(made, method.rule), drafts, length, self.drafter, rule.card.lossless)

    def plain(self) -> Contender:
        return Contender("plain", self.engine(named_drafter("none"), "race"))

    def lookup(self) -> Contender:
        return Contender("lookup", self.engine(named_drafter("lookup"), "race"), drafter="lookup")

    def default(self) -> Contender:
        """Return the contender with the defaults of `spectr.load`."""
        writer = self._written(self.lm.engine)
        return Contender("default", writer, drafter=self.drafter, lossless=self.lm.engine.rule.card.lossless)

    def transformers(self) -> Contender:
        return Contender("transformers", self._baseline())

    def transformers_lookup(self) -> Contender:
        return Contender("transformers_lookup", self._baseline(lookup=_LOOKUP), drafter="lookup")

    def transformers_assistant(self) -> Contender:
        base = planned(self.lm.engine.drafter)
        if base is None or base.name != "model":
            raise MismatchError(
                f"transformers requires a whole model as its assistant, and drafter {self.drafter!r} is not one; give "
                "the name or folder of a small model as --drafter"
            )
        writer = self._baseline(assistant=base.model.model)
        return Contender("transformers_assistant", writer, drafter=self.drafter)

    def _baseline(self, **options: Any) -> TransformersWriter:
        from spectr.models.baselines import TransformersBaseline

        baseline = TransformersBaseline(self.lm.opened.target.model, self.lm.opened.stops, **options)
        return TransformersWriter(baseline, self.lm.tokenizer)

    def every(self, name: str, drafts: Sequence[int], lengths: Sequence[int]) -> Iterable[Callable[[], Contender]]:
        """Return functions that make the contenders of one method."""
        if not METHODS[name].rule:
            return [getattr(self, name)]
        counts = drafts if METHODS[name].several else (1,)
        return [partial(self.ruled, name, k, n) for k in counts for n in lengths]


def contenders(
    lm: LM, names: Sequence[str], drafter: str, sizes: tuple[Sequence[int], Sequence[int]], *, strict: bool
) -> Field:
    """Return all contenders for every K and L of `sizes`. One that cannot run is left out, or refused if `strict`."""
    maker, found, left = _Maker(lm, drafter), list[Contender](), dict[str, str]()
    for name in names:
        for make in maker.every(name, *sizes):
            try:
                found.append(make())
            except SpectrError as error:
                if strict:
                    raise
                left[name] = str(error)
    return Field(tuple(found), left)


def sized(lm: LM, drafters: Sequence[str], drafts: int, length: int) -> tuple[Contender, ...]:
    """Return the race with other drafters (`early_exit:4` has four layers), and plain decoding for comparison."""
    card, found = named_rule("race").card, [_Maker(lm, "none").plain()]
    for name in drafters:
        kind, _, layers = name.partition(":")
        first = int(layers) if kind == "early_exit" and layers.isdigit() else None
        options = DraftOptions(drafts=drafts, length=length, nodes=1 + drafts * length, layers=first)
        made = pair(name if first is None else kind, lm.opened, card, options)
        writer = _Maker(lm, name).engine(made, "race")
        found.append(Contender("race", writer, drafts, length, name))
    return tuple(found)


def as_contender(endpoint: EndpointWriter) -> Contender:
    """Return the contender of an endpoint; whether it is lossless is unknown."""
    return Contender(endpoint.client.host, endpoint, drafter=endpoint.model, lossless=None)
