"""Selects the drafter of the next step by the tokens and seconds of earlier steps.

The fastest drafter so far drafts most steps. The others are tried in bursts of a few steps, the least recently tried
first, as long as the time lost by trying them stays within a budget. The module uses no clock and no randomness: the
observations determine the choice.
"""

from collections import deque
from statistics import fmean, median

from spectr.draft.profile import PLAIN

__all__ = ["DrafterSelector"]

SHARE = 0.02  # share of the time that may be lost by trying drafters which turn out slower
GRACE = 3  # steps of the fastest drafter that may be lost in addition, so that every drafter can be tried early
_BURST = 6  # steps that a drafter is tried for
_RECENT = 64  # steps that the rate of a drafter is estimated from
_STALE = 32  # of these, the steps that still count when it is tried again
_RETRY = 500  # steps after which a drafter is tried again, however slow it was
_DECAY = 0.999  # of the time spent and lost, per step


class _Recent:
    """The recent steps of one drafter. Seconds are a median, so that a machine which is busy for a moment does not
    count against the drafter. Both figures are asked for several times in each step, and so are kept."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        self.rate = 0.0  # tokens per second, 0 if there are no steps
        self.seconds = float("inf")  # of a step

    def add(self, tokens: float, seconds: float) -> None:
        """Record a step."""
        self._steps.append((tokens, seconds))
        self._summarise()

    def forget(self) -> None:
        """Keep only the latest steps, before the drafter is tried again."""
        while len(self._steps) > _STALE:
            self._steps.popleft()
        if self._steps:
            self._summarise()

    def _summarise(self) -> None:
        self.seconds = median([seconds for _, seconds in self._steps])
        self.rate = fmean([tokens for tokens, _ in self._steps]) / self.seconds


class DrafterSelector:
    """Chooses one of `count` drafters for each step; the one at index `PLAIN` is plain decoding."""

    def __init__(self, count: int, start: int = PLAIN) -> None:
        self._recent = [_Recent() for _ in range(count)]
        self._tried = [-1] * count  # the step that each drafter was last used in
        self._drafter, self._left = start, _BURST  # the drafter in use, and for how many more steps
        self._last: int | None = None
        self._time = 0
        self._spent = self._lost = 0.0  # seconds

    def choose(self) -> int:
        """Return the drafter of the next step."""
        best = self.best
        if self._drafter != best and self._is_over_budget():
            self._drafter, self._left = best, 1
        elif self._left <= 0:  # two steps may be observed between two choices
            self._drafter, self._left = (best, 1) if self._is_over_budget() else (self._next_trial(best), _BURST)
        return self._drafter

    def observe(self, drafter: int, tokens: float, seconds: float) -> None:
        """Record a step by `drafter`, which added `tokens` tokens per row on average and took `seconds` seconds."""
        if drafter in (PLAIN, self._last):  # the first step after a pause also reads the text since then
            self._recent[drafter].add(tokens, seconds)
        self._last, self._left, self._tried[drafter] = drafter, self._left - 1, self._time
        self._time += 1
        self._spent, self._lost = _DECAY * self._spent + seconds, _DECAY * self._lost
        if (fastest := self.rate(self.best)) > 0:
            self._lost += max(0.0, seconds - tokens / fastest) if drafter != self.best else 0.0

    def rate(self, drafter: int) -> float:
        """Return the tokens per second of a drafter's recent steps, 0 if there are none."""
        return self._recent[drafter].rate

    @property
    def best(self) -> int:
        """The fastest drafter so far, the first among equals."""
        return max(range(len(self._recent)), key=lambda drafter: (self.rate(drafter), -drafter))

    def _is_over_budget(self) -> bool:
        return self._lost > SHARE * self._spent + GRACE * self._recent[self.best].seconds

    def _next_trial(self, best: int) -> int:
        """Return the drafter to try next, other than the best: one that was never tried, or the fastest, where every
        step since its last trial counts in a drafter's favour. Only its most recent steps count from then on."""
        fastest = self.rate(best)

        def promise(drafter: int) -> float:
            age = (self._time - self._tried[drafter]) / _RETRY
            return self.rate(drafter) + fastest * age if self._tried[drafter] >= 0 else float("inf")

        drafter = max((drafter for drafter in range(len(self._recent)) if drafter != best), key=promise, default=best)
        self._recent[drafter].forget()
        return drafter
