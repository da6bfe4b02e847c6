"""The subject of all parts: a small target with its head, and both inflated."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.inflate.model import inflated, inflated_head
from benchmarks.inflate.order import Order
from spectr.bench.methods import planned
from spectr.data.prompts import read_prompts
from spectr.draft import Plan
from spectr.draft import drafter as named_drafter
from spectr.engine import Request
from spectr.errors import MismatchError
from spectr.lm import LM, load
from spectr.models.attention import group_heads
from spectr.models.fast_kernels import speed_up_head
from spectr.models.target import Target
from spectr.policy import Policy
from spectr.types import Drafter, Layers

__all__ = ["Pair", "Side", "build"]


@dataclass(frozen=True, slots=True)
class Side:
    """A target and the head that drafts for it."""

    target: Target
    head: Target
    feature_layers: Layers

    def drafter(self, plan: Plan | None) -> Drafter:
        """Return the head as a drafter with the given plan, or no drafter."""
        if plan is None:
            return named_drafter("none")
        layers = self.feature_layers
        return named_drafter("feature", head=self.head, target=self.target, plan=plan, feature_layers=layers)


@dataclass(frozen=True, slots=True)
class Pair:
    """The small side and the large one, which generate the same texts, and the prompts."""

    small: Side
    large: Side
    stops: frozenset[int]
    prompts: list[list[int]]
    plan: Plan  # the plan with which the head was loaded
    lm: LM  # the small side as it was loaded

    def requests(self, count: int, order: Order) -> list[Request]:
        """Return requests with prompts spread over the file and different seeds; prompts repeat if they are too few."""
        grid, stride = order.grid, max(1, len(self.prompts) // count)
        some = [self.prompts[(at * stride) % len(self.prompts)] for at in range(count)]
        policy = Policy(grid.temperature)
        return [Request(prompt, seed, grid.tokens, policy) for seed, prompt in enumerate(some)]


def _head(lm: LM) -> Any:
    """Return the trained drafter if it can be inflated; on a CPU it may be one of an adaptive drafter's."""
    drafter: Any = lm.engine.drafter
    found = next((one for one in map(planned, (drafter, *getattr(drafter, "drafters", ()))) if one is not None), None)
    if found is None or found.name != "feature":
        raise MismatchError(
            f"only a trained feature head can be inflated with its target, got the drafter "
            f"{lm.engine.drafter.name!r}; pass the folder of a head to --drafter, or train one with spectr train"
        )
    return found


def _large(lm: LM, small: Side, order: Order) -> Side:
    source = lm.opened.target.model
    net = inflated(source, order.size, source.device, source.dtype)
    group_heads(net)
    head = inflated_head(small.head.model, net)  # type: ignore[arg-type]
    speed_up_head(head)
    side = Side(Target(net), Target(head), small.feature_layers)
    for made in (side.target, side.head, small.head) if order.compile else ():
        made.compile()
    return side


_built: dict[tuple[Any, ...], Pair] = {}


def build(order: Order, say: Callable[[str], None]) -> Pair:
    """Load the small side, inflate it to the large one, and read the prompts. The last two sides are kept for other
    benchmarks of the process."""
    prompts = read_prompts(order.prompts)
    key = (order.model, order.drafter, order.place, order.dtype, order.compile, order.size)
    if key not in _built:
        _built.clear()
        _built[key] = _new_pair(order, say)
    made = _built[key]
    return replace(made, prompts=[made.lm.encode(one.text) for one in prompts])


def _new_pair(order: Order, say: Callable[[str], None]) -> Pair:
    """Return a pair without prompts."""
    lm = load(order.model, order.drafter, progress=say, **order.loading)
    found = _head(lm)
    small = Side(lm.opened.target, found.head, found.feature_layers)
    large = _large(lm, small, order)
    weights = sum(weight.numel() for weight in large.target.model.parameters())
    say(f"inflated to {weights / 1e9:.2f} G weights")
    return Pair(small, large, lm.opened.stops, [], found.plan, lm)
