"""From what a user calls a drafter to one that fits the target and the rule. Knows how each kind is built."""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectr.checks import whole
from spectr.draft import DRAFTERS, Plan
from spectr.draft import drafter as named_drafter
from spectr.draft.adaptive import SwitchingDrafter, adaptive, replanned
from spectr.draft.candidate_plans import candidate_plans
from spectr.draft.options import AUTO, PLANNED, DraftOptions
from spectr.draft.plan import beam_for, chains_for
from spectr.draft.profile import PLAIN, DecodingPlan, Profile
from spectr.errors import ArgumentError, MismatchError, UnknownNameError
from spectr.notices import notice
from spectr.registry import nearest
from spectr.trees import as_shape
from spectr.types import Drafter, Siblings
from spectr.verify import Card, Rule
from spectr.verify import rule as named_rule

if TYPE_CHECKING:
    from spectr.models.hf import OpenedModel
    from spectr.models.published.checkpoint import Checkpoint

__all__ = ["as_rule", "auto_drafter", "drafters_for", "pair", "planned_rule"]


def as_rule(rule: str | Rule) -> Rule:
    """A rule by its name, or one that is made already."""
    if isinstance(rule, Rule):
        return rule
    if not isinstance(rule, str):
        raise ArgumentError(f"rule must be a name, such as 'race', or what spectr.rule gives, got {rule!r}")
    return named_rule(rule)


@dataclass(frozen=True, slots=True)
class _Pairing:
    """The target, the rule's card and the options that a drafter must fit."""

    target: "OpenedModel"
    card: Card
    options: DraftOptions
    loading: Mapping[str, Any]  # how a model drafter is loaded: as the target was

    @property
    def siblings(self) -> Siblings:
        """As the rule wants them."""
        return self.card.draws or self.card.siblings[0]

    def beam(self, nodes: int) -> tuple[int, int]:
        """Nodes to expand at each depth, and depths, of a tree of which nothing else is said."""
        beam, deep = beam_for(nodes)
        return beam, deep if self.target.target.device.type == "cpu" else min(deep, _DEEP)

    def plan(self, **usual: int) -> Plan:
        """What the user says, and else what is `usual`. `nodes` sizes the tree under every rule: a pruned tree gets
        the beam and the depths that go with so many nodes, chains get their number and length, one chain its length,
        as far as the user leaves them open."""
        given: dict[str, Any] = {**usual, **self.options.some("drafts", "length", "nodes", "tree")}
        if not self.card.tree:
            given = {"drafts": 1, **given}
            if given["drafts"] > 1 or as_shape(given.get("tree", (1,))).width > 1:
                raise MismatchError(
                    f"rule {self.card.name!r} verifies one chain: set drafts=1, or choose path_block or optimal"
                )
        if "nodes" in given and "tree" not in given:
            prunes = self.card.tree and Plan(siblings=self.siblings).prunes
            filled = self.beam(given["nodes"]) if prunes else self.chains(given["nodes"])
            given = {**dict(zip(("drafts", "length"), filled, strict=True)), **given}
        return Plan(siblings=self.siblings, **given)

    def chains(self, nodes: int) -> tuple[int, int]:
        """How many chains of how many tokens fill so many nodes, given what the user says of either."""
        room = max(1, whole("nodes", nodes) - 1)
        drafts = 1 if not self.card.tree else self.options.drafts
        if drafts is not None:
            return drafts, max(1, room // max(1, drafts))
        if self.options.length is not None:
            return max(1, room // max(1, self.options.length)), self.options.length
        return chains_for(nodes, 8 if self.target.target.device.type == "cpu" else _DEEP)


_FEW, _MANY = 2, 64  # nodes of a trained head's tree, on a CPU and elsewhere
_DEEP = 4  # depths elsewhere, at most: each is a pass over the drafter's weights, and the fifth does not pay
_DEEP_CHAIN = 3  # the same of chains: the fourth does not
_TOGETHER = 128  # nodes of all rows: about what a call takes before arithmetic, not memory, is what it waits for
_TAKES = {
    "none": (),
    "lookup": ("drafts", "length", "nodes"),
    "random": PLANNED,
    "ngram": (*PLANNED, "order", "text"),
    "early_exit": (*PLANNED, "layers"),
}


def _none(_: _Pairing) -> Drafter:
    return named_drafter("none")


def _lookup(pairing: _Pairing) -> Drafter:
    options = pairing.options
    given = options.some("drafts", "length", "nodes")
    if options.nodes is not None and options.drafts is None:
        given["drafts"] = max(1, (options.nodes - 1) // (options.length or 4))
    return named_drafter("lookup", **given)


def _random(pairing: _Pairing) -> Drafter:
    return named_drafter("random", plan=pairing.plan())


def _ngram(pairing: _Pairing) -> Drafter:
    if pairing.options.text and pairing.target.tokenizer is None:
        raise ArgumentError("text for ngram needs a tokenizer to read it; give load the model's: tokenizer=…")
    text = pairing.target.tokenizer(pairing.options.text)["input_ids"] if pairing.options.text else ()
    return named_drafter("ngram", plan=pairing.plan(), text=text, **pairing.options.some("order"))


def _early_exit(pairing: _Pairing) -> Drafter:
    from spectr.models.cpu import target_of
    from spectr.models.early import truncated

    target = pairing.target.target
    layers, net = pairing.options.layers, target.model
    if layers is None:
        layers = max(1, net.config.get_text_config(decoder=True).num_hidden_layers // 4)
    model = target.first_layers(layers) or target_of(truncated(net, layers))
    return named_drafter("early_exit", model=model, plan=pairing.plan())


def _model(pairing: _Pairing, opened: "OpenedModel") -> Drafter:
    _refuse_hidden_states(pairing)
    _check_tokens(pairing.target.tokenizer, opened.tokenizer)
    if (opened.start is None) != (pairing.target.start is None):
        raise MismatchError("target and drafter must both have an encoder, or neither; choose another drafter")
    return named_drafter("model", model=opened.target, plan=pairing.plan())


def _trained(pairing: _Pairing, folder: Path) -> Drafter:
    from spectr.models.blockwise import BlockwiseHead
    from spectr.models.cpu import target_of
    from spectr.models.trained import load_drafter

    target = pairing.target.target
    if pairing.options.vocabulary is not None:
        whole("vocabulary", pairing.options.vocabulary, 1)
    head = load_drafter(folder, target.lender, pairing.options.vocabulary)
    if isinstance(head, BlockwiseHead):
        return named_drafter("blockwise", heads=head, target=target, plan=pairing.plan(length=head.shape.depths))
    plan, taps = pairing.plan(**_usual(pairing)), head.shape.taps
    return named_drafter("feature", head=target_of(head), target=target, plan=plan, wants_features=taps)


def _refuse_hidden_states(pairing: _Pairing) -> None:
    if pairing.options.hidden_states is not None:
        raise ArgumentError(
            "hidden_states says what a published head reads of the target, and this drafter is none; leave it out"
        )


def _published(pairing: _Pairing, checkpoint: "Checkpoint") -> Drafter:
    """A head that was published: by one call for each depth, or one for a whole block."""
    from spectr.draft.block import Block
    from spectr.models.published.block import BlockHead
    from spectr.models.published.loading import load_head
    from spectr.models.target import Target

    target = pairing.target.target
    if pairing.target.start is not None:
        raise MismatchError("published heads read the hidden states of decoder-only targets; choose another drafter")
    head = load_head(checkpoint, target.model, target.vocabulary, pairing.options.hidden_states)
    given = {"head": Target(head), "target": target, "wants_features": head.shape.taps}
    if not isinstance(head, BlockHead) and head.shape.depths is not None:
        deepest, mask = head.shape.depths, head.shape.mask_token
        return named_drafter("masked", plan=_no_deeper(pairing, deepest), mask_token=mask, deepest=deepest, **given)
    if not isinstance(head, BlockHead):
        return named_drafter("feature", plan=pairing.plan(**_usual(pairing)), **given)
    form = head.shape
    block = Block(form.size, form.mask_token, 0 if form.from_root else 1)
    return named_drafter("block", plan=_no_deeper(pairing, block.depths), laws=head, block=block, **given)


_DEEP_BLOCK = 8  # depths of a tree from a block, at most: they cost no further call, and few tokens stand deeper


def _no_deeper(pairing: _Pairing, depths: int) -> Plan:
    """The plan for a head that drafts so many depths in one call: as deep as pays, unless the user says."""
    usual = _usual(pairing)
    made = pairing.plan(**usual)
    if pairing.options.some("length", "tree"):
        return made
    deep = made.length if pairing.target.target.device.type == "cpu" else _DEEP_BLOCK
    if not made.prunes:
        deep = min(deep, made.length) if pairing.options.nodes is not None else deep
    return replace(made, length=min(depths, deep))


def _usual(pairing: _Pairing) -> dict[str, int]:
    """The tree of a trained head where the user leaves it open: wide where nodes are nearly free, small on a CPU. Under
    the race, whose text is the same with any tree, it is smaller where rows are many."""
    options, cpu = pairing.options, pairing.target.target.device.type == "cpu"
    given = options.some("drafts", "length")
    if options.tree is not None or len(given) == 2 or (given and cpu):
        return {}
    if not Plan(siblings=pairing.siblings).prunes:
        if options.nodes is not None:
            return {}
        return {"drafts": 8 if pairing.card.tree and not cpu else 1, "length": 2 if cpu else _DEEP_CHAIN}
    if options.nodes is not None or given or cpu:
        return {"nodes": options.nodes or (_FEW if cpu else _MANY)}
    return {"nodes": _MANY, **({"shared": _TOGETHER} if pairing.siblings == "race" else {})}


_MAKERS: dict[str, Callable[[_Pairing], Drafter]] = {
    "none": _none,
    "lookup": _lookup,
    "random": _random,
    "ngram": _ngram,
    "early_exit": _early_exit,
}


def _check_tokens(target: Any, drafter: Any) -> None:
    """Ids must mean the same to both; one may have more of them, as padded vocabularies have."""
    if target is None or drafter is None:
        return
    ours = {number: token for token, number in target.get_vocab().items()}
    for token, number in drafter.get_vocab().items():
        if ours.get(number, token) != token:
            raise MismatchError(
                f"target and drafter must share their tokens; {number} is {ours[number]!r} to the target and {token!r} "
                "to the drafter. Choose a drafter of the target's family, or lookup, ngram or early_exit"
            )


def _is_drafter(thing: Any) -> bool:
    return hasattr(thing, "open") and hasattr(thing, "siblings")


def _taken(drafter: Any) -> tuple[str, ...]:
    """The options that a drafter listens to."""
    if _is_drafter(drafter):
        return ()
    usual = (*PLANNED, "vocabulary" if _is_folder(drafter) else "hidden_states")
    return _TAKES.get(drafter, usual) if isinstance(drafter, str) else usual


def _is_folder(drafter: Any) -> bool:
    """Of a trained drafter."""
    from spectr.models.trained import is_drafter

    return isinstance(drafter, str) and is_drafter(Path(drafter))


def _one(drafter: Any, pairing: _Pairing) -> Drafter:
    """A drafter from its name, from a model's name or folder, from a loaded model, or as it is."""
    from spectr.models.catalog import FetchError
    from spectr.models.hf import open_loaded, open_model
    from spectr.models.published.checkpoint import open_checkpoint

    if _is_drafter(drafter):
        made: Drafter = drafter
        return made
    if not isinstance(drafter, str):
        return _model(pairing, open_loaded(drafter))
    if drafter in _MAKERS:
        return _MAKERS[drafter](pairing)
    if drafter in ("model", "feature", "blockwise", "block", "masked", "mixed"):
        raise ArgumentError(
            "a model or a trained drafter is given by its name or folder, drafter='smollm2-135m', a mix by several, "
            "drafter='lookup+ngram'"
        )
    if drafter in DRAFTERS:
        return named_drafter(drafter, **pairing.options.some(*PLANNED))
    if _is_folder(drafter):
        return _trained(pairing, Path(drafter))
    if (checkpoint := open_checkpoint(drafter)) is not None:
        return _published(pairing, checkpoint)
    try:
        opened = open_model(drafter, **pairing.loading)
    except FetchError as error:
        if "/" in drafter or Path(drafter).exists():
            raise
        raise UnknownNameError(
            f"no drafter is called {drafter!r}; {nearest(drafter, list(_MAKERS))}, the folder of a trained drafter, or "
            "a model's name"
        ) from error
    return _model(pairing, opened)


def _parts(drafter: Any) -> list[Any]:
    """What is mixed; None is no drafter, and paths are names."""
    if drafter is None:
        return ["none"]
    if isinstance(drafter, Path):
        return [str(drafter)]
    if isinstance(drafter, str):
        parts = [drafter] if Path(drafter).exists() and drafter else drafter.split("+")
        if not all(parts):
            raise ArgumentError(f"drafter must be a name, or several joined by +, got {drafter!r}")
        return parts
    return [part for one in drafter for part in _parts(one)] if isinstance(drafter, (list, tuple)) else [drafter]


def auto_drafter(target: "OpenedModel") -> tuple[str, str]:
    """What `auto` means for this model, and why: the drafter trained for it, where one comes with spectr, else none;
    under the race each step may also take `lookup`, which pays only where a text repeats itself."""
    from spectr.models.trained import shipped

    folder = shipped(target.target.lender)
    if folder is not None:
        return str(folder), "the drafter that was trained for this model"
    return "none", (
        "no trained drafter for this model, so it decodes plainly, but for what it repeats: train one with "
        "`spectr train`, or give drafter=…, such as a smaller model of the family"
    )


def chooses_while_running(target: "OpenedModel", card: Card, options: DraftOptions) -> bool:
    """Whether `auto` picks a tree or plain decoding at every step, by what earlier steps gave and took: where drafting
    does not always pay, on a CPU, under the race, whose text does not depend on it, and if the user names no tree."""
    return target.target.device.type == "cpu" and card.name == "race" and not options.some(*PLANNED)


def _found(target: "OpenedModel") -> str:
    """The drafter that `auto` stands for; where it is none trained for the model, a notice says so."""
    name, reason = auto_drafter(target)
    if name == "none":
        notice(reason)
    return name


def _as_target(target: "OpenedModel") -> dict[str, Any]:
    """How to load a drafter for a target that was loaded elsewhere: in its dtype, on its device."""
    net = target.target.model
    return {"dtype": net.dtype, "device": net.device}


def planned_rule(rule: str | Rule, options: DraftOptions) -> Rule:
    """The rule that was asked for, or the one that a profile chose; the default, race, gives way to a profile."""
    made, profile = as_rule(rule), options.measured
    if profile is None or made.card.name == profile.rule:
        return made
    if made.card.name != "race":
        raise MismatchError(
            f"the profile was made for rule {profile.rule!r}, and {made.card.name!r} was asked for; leave it out, or "
            "tune with it: spectr tune --rules …"
        )
    return named_rule(profile.rule)


_MENU = 4  # plans that plan="auto" chooses from, plain decoding included


def drafters_for(
    plans: Sequence[DecodingPlan],
    target: "OpenedModel",
    options: DraftOptions,
    loading: Mapping[str, Any] | None = None,
) -> list[Drafter]:
    """A drafter for each plan, as far as it leaves `options` open; those of the same name share their weights."""
    bases, found = dict[str, Drafter](), list[Drafter]()
    for plan in plans:
        card = named_rule(plan.rule).card
        if plan.drafter not in bases:
            usual = DraftOptions() if plan.drafter == "none" else options
            bases[plan.drafter] = pair(plan.drafter, target, card, usual, loading)
        base = bases[plan.drafter]
        if not plan.options:
            found.append(base)
        elif hasattr(base, "plan"):
            pairing = _Pairing(target, card, DraftOptions(**plan.options), loading or {})
            found.append(replanned(base, pairing.plan()))
        else:
            found.append(pair(plan.drafter, target, card, replace(options, **plan.options), loading))
    return found


def _by_plan(drafter: Any, pairing: _Pairing) -> Drafter:
    """The drafter that a profile chose, or one that chooses while running."""
    from spectr.models.trained import fingerprint

    profile, bare = pairing.options.measured, replace(pairing.options, plan=None, profile=None)
    net, is_auto = pairing.target.target.model, pairing.options.plan == AUTO
    if is_auto and (net.device.type != "cpu" or pairing.card.name != "race"):
        is_auto = False
        warnings.warn(
            f"plan='auto' chooses while running on a CPU with rule race; on {net.device.type} with rule "
            f"{pairing.card.name} {'the profile' if profile else 'the usual plan of the drafter'} is used: measure "
            "plans with spectr tune",
            stacklevel=2,
        )
    if profile is None:
        base = pair(drafter, pairing.target, pairing.card, bare, pairing.loading)
        return _auto(base, pairing) if is_auto else base
    profile.check(fingerprint(pairing.target.target.lender), net.device.type, drafter)
    return _by_profile(profile, replace(pairing, options=bare), is_auto=is_auto)


def _auto(base: Any, pairing: _Pairing) -> Drafter:
    """Plain decoding, or `base` with one of a few trees."""
    if base.name == "none":
        return named_drafter("none")
    plans = candidate_plans("", base, pairing.card, on_cpu=True)[: _MENU - 1]
    sized = [replace(pairing, options=DraftOptions(**plan.options)).plan() for plan in plans]
    drafters = [replanned(base, plan) for plan in sized] if hasattr(base, "plan") else [base]
    return adaptive([named_drafter("none"), *drafters], lambda _: PLAIN)


def _by_profile(profile: Profile, pairing: _Pairing, *, is_auto: bool) -> Drafter:
    """What the profile chose for the number of rows; `is_auto`, what it starts from."""
    chosen = dict.fromkeys(profile.plans[choice.plan] for choice in profile.choices)
    plans = profile.menu(_MENU) if is_auto else tuple(chosen)
    drafters = drafters_for(plans, pairing.target, pairing.options, pairing.loading)

    def place(rows: int) -> int:
        return plans.index(profile.plans[profile.at(rows).plan])

    if is_auto:
        return adaptive(drafters, place)
    return drafters[0] if len(drafters) == 1 else SwitchingDrafter(tuple(drafters), place)


def pair(
    drafter: Any, target: "OpenedModel", card: Card, options: DraftOptions, loading: Mapping[str, Any] | None = None
) -> Drafter:
    """A drafter for `target` under the rule with `card`: auto, a name, several joined by +, a model, a list, or a
    drafter."""
    if options.plan is not None:
        return _by_plan(drafter, _Pairing(target, card, options, _as_target(target) if loading is None else loading))
    parts = [_found(target) if part == AUTO else part for part in _parts(drafter)]
    if parts == ["none"] and drafter == AUTO and (given := options.some(*PLANNED)):
        raise ArgumentError(
            f"{', '.join(given)} would change nothing: there is no trained drafter for this model, so it decodes "
            "plainly; give a drafter as well, such as lookup, early_exit or a smaller model of the family"
        )
    options.check("+".join(str(part) for part in parts), [name for part in parts for name in _taken(part)])
    how = _as_target(target) if loading is None else loading
    if parts == ["none"] and drafter == AUTO and card.name == "race":
        return adaptive([named_drafter("none"), named_drafter("lookup")], lambda _: PLAIN)
    made = [_one(part, _Pairing(target, card, options.only(_taken(part)), how)) for part in parts]
    if drafter == AUTO and chooses_while_running(target, card, options):
        return _auto(made[0], _Pairing(target, card, options, how))
    return made[0] if len(made) == 1 else named_drafter("mixed", parts=made)
