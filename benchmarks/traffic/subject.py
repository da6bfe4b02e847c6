"""The subject of a measurement: a target with its drafter, loaded or inflated, and the engines to compare."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.inflate.pair import build
from benchmarks.traffic.order import Load, Order
from benchmarks.traffic.texts import Stream, texts_of
from spectr.draft import drafter as named_drafter
from spectr.draft.adaptive import SwitchingDrafter, adaptive
from spectr.engine import Engine
from spectr.errors import ArgumentError
from spectr.lm import LM, load
from spectr.models.target import Target
from spectr.types import Drafter
from spectr.verify import rule as named_rule

__all__ = ["CHOOSING", "DEFAULT", "PLAIN", "WAYS", "Subject", "subject_of"]

PLAIN, DEFAULT, CHOOSING = "plain", "default", "choosing"
WAYS = (PLAIN, DEFAULT, CHOOSING)
"""Without drafts; with the default drafter; and with a choice between these two before each step, by the tokens per
second of earlier steps."""
_ROWS = 64  # the default of `spectr.load`


@dataclass(frozen=True, slots=True)
class Subject:
    """A target, the drafters to compare, and the settings of the run."""

    lm: LM  # for its tokenizer
    target: Target
    drafters: dict[str, Drafter]
    order: Order

    @property
    def load(self) -> Load:
        """The requests."""
        return self.order.load

    def engine(self, way: str, rows: int = 1) -> Engine:
        """Make an engine with at least the default number of rows.

        Stop tokens are ignored unless `strikes_stops` is set: a policy that masks them costs work that usual requests
        do not need.
        """
        drafter = self._choosing() if way == CHOOSING else self.drafters[way]
        stops = self.lm.opened.stops if self.load.strikes_stops else frozenset[int]()
        return Engine(self.target, drafter, named_rule("race"), stops, rows=max(_ROWS, rows))

    def _choosing(self) -> Drafter:
        """Return a drafter that has learnt nothing yet of what pays."""
        return adaptive((self.drafters[PLAIN], self.drafters[DEFAULT]), lambda _: 1)

    def stream(self, seed: int) -> Stream:
        """Return a stream of requests with this seed."""
        return Stream(texts_of(self.lm, self.order.prompts, self.load.seed + seed), self.load)


def subject_of(order: Order, say: Callable[[str], None]) -> Subject:
    """Load the model and its drafter, and inflate them if the order has a size."""
    if order.size is not None:
        pair = build(order.inflation, say)
        return Subject(pair.lm, pair.large.target, _drafters(order, pair.large.drafter(pair.plan)), order)
    lm = load(order.model, order.drafter, progress=say, compile=order.compile, **order.loading)
    return Subject(lm, lm.opened.target, _drafters(order, lm.engine.drafter), order)


def _drafters(order: Order, default: Drafter) -> dict[str, Drafter]:
    """Return the drafters that the ways are made of; refuse a choice that cannot be made."""
    plain = named_drafter("none")
    chooses = isinstance(default, SwitchingDrafter)
    if CHOOSING in order.load.ways and (chooses or default.name == plain.name):
        raise ArgumentError(f"the way {CHOOSING!r} needs a drafter that makes no such choice itself, got "
                            f"{default.name!r}; leave the way out, or name a drafter")  # fmt: skip
    return {PLAIN: plain, DEFAULT: default}
