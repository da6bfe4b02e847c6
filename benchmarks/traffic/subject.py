"""The subject of a measurement: a target with its drafter, loaded or inflated, and the engines to compare."""

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.inflate.pair import build
from benchmarks.traffic.order import Load, Order
from benchmarks.traffic.texts import Stream, texts_of
from spectr.draft import drafter as named_drafter
from spectr.engine import Engine
from spectr.lm import LM, load
from spectr.models.target import Target
from spectr.types import Drafter
from spectr.verify import rule as named_rule

__all__ = ["DEFAULT", "PLAIN", "WAYS", "Subject", "subject_of"]

PLAIN, DEFAULT = "plain", "default"
WAYS = (PLAIN, DEFAULT)
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
        stops = self.lm.opened.stops if self.load.strikes_stops else frozenset[int]()
        return Engine(self.target, self.drafters[way], named_rule("race"), stops, rows=max(_ROWS, rows))

    def stream(self, seed: int) -> Stream:
        """Return a stream of requests with this seed."""
        return Stream(texts_of(self.lm, self.order.prompts, self.load.seed + seed), self.load)


def subject_of(order: Order, say: Callable[[str], None]) -> Subject:
    """Load the model and its drafter, and inflate them if the order has a size."""
    if order.size is not None:
        pair = build(order.inflation, say)
        drafters = {PLAIN: pair.large.drafter(None), DEFAULT: pair.large.drafter(pair.plan)}
        return Subject(pair.lm, pair.large.target, drafters, order)
    lm = load(order.model, order.drafter, progress=say, compile=order.compile, **order.loading)
    drafters = {PLAIN: named_drafter("none"), DEFAULT: lm.engine.drafter}
    return Subject(lm, lm.opened.target, drafters, order)
