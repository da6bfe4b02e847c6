"""Turns a user's choice of a drafter into one that fits the target and the rule."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spectr.draft import drafter as named_drafter
from spectr.draft.adaptive import SwitchingDrafter, adaptive, replanned
from spectr.draft.candidate_plans import candidate_plans
from spectr.draft.options import AUTO, PLANNED, DraftOptions
from spectr.draft.profile import PLAIN, DecodingPlan, Profile
from spectr.draft.traits import DrafterTraits
from spectr.errors import ArgumentError, MismatchError
from spectr.notices import notice
from spectr.pairing.fit import Pairing
from spectr.pairing.kinds import make_drafter, options_taken
from spectr.types import Drafter
from spectr.verify import Card, Rule
from spectr.verify import rule as named_rule

if TYPE_CHECKING:
    from spectr.models.hf import OpenedModel

__all__ = ["as_rule", "auto_drafter", "chooses_while_running", "drafters_for", "pair", "planned_rule"]


def as_rule(rule: str | Rule) -> Rule:
    """Return the rule of a name; return a rule unchanged."""
    if isinstance(rule, Rule):
        return rule
    if not isinstance(rule, str):
        raise ArgumentError(f"rule must be a name, such as 'race', or a rule that spectr.rule returned, got {rule!r}")
    return named_rule(rule)


def _parts(drafter: Any) -> list[Any]:
    """Return the parts of a mix of drafters; None is the drafter none, and paths become names."""
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
    """Return the drafter that `auto` means for this model, and the reason: the drafter trained for it if spectr ships
    one, otherwise none. Under the race a step may also use `lookup`, which pays only where a text repeats itself."""
    from spectr.models.trained import shipped

    folder = shipped(target.target.model_for_drafters)
    if folder is not None:
        return str(folder), "the drafter that was trained for this model"
    return "none", (
        "there is no trained drafter for this model, so only repeated text is drafted; train one with `spectr train`, "
        "or set drafter=…, such as a smaller model of the family"
    )


def chooses_while_running(target: "OpenedModel", card: Card, options: DraftOptions) -> bool:
    """Whether `auto` chooses at every step between plain decoding and trees of the trained drafter, by the tokens and
    times of earlier steps. It does so on a CPU, where drafting does not always pay, and only under the race, whose text
    does not depend on drafts, unless the user has set the tree. (Without a trained drafter it chooses between plain
    decoding and lookup under the race, on any device.)"""
    return target.target.device.type == "cpu" and not card.text_depends_on_drafts and not options.some(*PLANNED)


def _resolve_auto(target: "OpenedModel") -> str:
    """Return the drafter that `auto` means; log a notice if there is no trained one."""
    name, reason = auto_drafter(target)
    if name == "none":
        notice(reason)
    return name


def _loading_like(target: "OpenedModel") -> dict[str, Any]:
    """Return the options for loading a drafter with the dtype and the device of a loaded target."""
    net = target.target.model
    return {"dtype": net.dtype, "device": net.device}


def planned_rule(rule: str | Rule, options: DraftOptions) -> Rule:
    """Return the rule of the user, or that of a profile if the user's is the default, race."""
    made, profile = as_rule(rule), options.measured
    if profile is None or made.card.name == profile.rule:
        return made
    if made.card.name != "race":
        raise MismatchError(
            f"rule must be {profile.rule!r}, for which the profile was made, got {made.card.name!r}; leave rule out, "
            "or tune with it: spectr tune --rules …"
        )
    return named_rule(profile.rule)


_CANDIDATES = 4  # plans that plan="auto" chooses from, including plain decoding


def drafters_for(
    plans: Sequence[DecodingPlan],
    target: "OpenedModel",
    options: DraftOptions,
    loading: Mapping[str, Any] | None = None,
) -> list[Drafter]:
    """Return a drafter for each plan, with `options` for what the plan does not set; drafters of one name share
    weights."""
    bases, drafters = dict[str, Drafter](), list[Drafter]()
    for plan in plans:
        card = named_rule(plan.rule).card
        if plan.drafter not in bases:
            own = DraftOptions() if plan.drafter == "none" else options
            bases[plan.drafter] = pair(plan.drafter, target, card, own, loading)
        base = bases[plan.drafter]
        if not plan.options:
            drafters.append(base)
        elif DrafterTraits(base).plan is not None:
            pairing = Pairing(target, card, DraftOptions(**plan.options), loading or {})
            drafters.append(replanned(base, pairing.plan()))
        else:
            drafters.append(pair(plan.drafter, target, card, replace(options, **plan.options), loading))
    return drafters


def _by_plan(drafter: Any, pairing: Pairing) -> Drafter:
    """Return the drafter that a profile chose, or one that chooses while running."""
    from spectr.models.trained import fingerprint

    profile, bare = pairing.options.measured, replace(pairing.options, plan=None, profile=None)
    net, is_auto = pairing.target.target.model, pairing.options.plan == AUTO
    if is_auto and (net.device.type != "cpu" or pairing.card.text_depends_on_drafts):
        is_auto = False
        warnings.warn(
            f"plan='auto' chooses while running on a CPU with rule race; on {net.device.type} with rule "
            f"{pairing.card.name} {'the profile' if profile else 'the default plan of the drafter'} is used: measure "
            "plans with spectr tune",
            stacklevel=2,
        )
    if profile is None:
        base = pair(drafter, pairing.target, pairing.card, bare, pairing.loading)
        return _auto(base, pairing) if is_auto else base
    profile.check(fingerprint(pairing.target.target.model_for_drafters), net.device.type, drafter)
    return _by_profile(profile, replace(pairing, options=bare), is_auto=is_auto)


def _auto(base: Drafter, pairing: Pairing) -> Drafter:
    """Return a drafter that chooses between plain decoding and `base` with a few trees at every step. A base that
    already chooses, such as the default drafter, is returned unchanged: a choice inside a choice would never be
    asked."""
    if isinstance(base, SwitchingDrafter) or base.name == "none":
        return base
    plans = candidate_plans("", base, pairing.card, on_cpu=True)[: _CANDIDATES - 1]
    sized = [replace(pairing, options=DraftOptions(**plan.options)).plan() for plan in plans]
    drafters = [replanned(base, plan) for plan in sized] if DrafterTraits(base).plan is not None else [base]
    return adaptive([named_drafter("none"), *drafters], lambda _: PLAIN)


def _by_profile(profile: Profile, pairing: Pairing, *, is_auto: bool) -> Drafter:
    """Return a drafter that follows the profile's choice for the number of rows, or if `is_auto` starts from it."""
    chosen = dict.fromkeys(profile.plans[choice.plan] for choice in profile.choices)
    plans = profile.candidates(_CANDIDATES) if is_auto else tuple(chosen)
    drafters = drafters_for(plans, pairing.target, pairing.options, pairing.loading)

    def place(rows: int) -> int:
        return plans.index(profile.plans[profile.at(rows).plan])

    if is_auto:
        return adaptive(drafters, place)
    return drafters[0] if len(drafters) == 1 else SwitchingDrafter(tuple(drafters), place)


def pair(
    drafter: Any, target: "OpenedModel", card: Card, options: DraftOptions, loading: Mapping[str, Any] | None = None
) -> Drafter:
    """Make a drafter for `target` under the rule with `card` from auto, a name, several names joined by +, a model, a
    list of these, or a drafter."""
    if options.plan is not None:
        return _by_plan(drafter, Pairing(target, card, options, _loading_like(target) if loading is None else loading))
    parts = [_resolve_auto(target) if part == AUTO else part for part in _parts(drafter)]
    if parts == ["none"] and drafter == AUTO and (sizes := options.some(*PLANNED)):
        raise ArgumentError(
            f"{', '.join(sizes)} would change nothing: there is no trained drafter for this model, so at most "
            "repeated text is drafted; set a drafter as well, such as lookup, early_exit or a smaller model of the "
            "family"
        )
    options.check("+".join(str(part) for part in parts), [name for part in parts for name in options_taken(part)])
    load_options = _loading_like(target) if loading is None else loading
    if parts == ["none"] and drafter == AUTO and not card.text_depends_on_drafts:
        return adaptive([named_drafter("none"), named_drafter("lookup")], lambda _: PLAIN)
    made = [
        make_drafter(part, Pairing(target, card, options.only(options_taken(part)), load_options)) for part in parts
    ]
    if drafter == AUTO and chooses_while_running(target, card, options):
        return _auto(made[0], Pairing(target, card, options, load_options))
    return made[0] if len(made) == 1 else named_drafter("mixed", parts=made)
