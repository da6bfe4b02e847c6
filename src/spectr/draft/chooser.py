"""Which way to draft next, from what earlier steps gave and took. No clock, no tensors, no randomness in here: what was
heard decides what is picked, so a recorded sequence can be replayed.

Two things keep it honest. *Estimates*: tokens and seconds of each way, which follow what happens and forget. *An
account*: what speculation took beyond what plain decoding would have taken for the same tokens, over the worst stretch
that ends now. A way is only picked if the account bears its worst case, a step that gives one token. So no stretch of
`WINDOW` tokens is more than `SHARE` slower than plain decoding, whatever the drafts are worth.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from spectr.errors import ArgumentError

__all__ = ["PLAIN", "SHARE", "WINDOW", "Chooser", "Chooses", "Fixed", "Prospect"]

PLAIN = 0
"""The place of plain decoding in every menu."""

WINDOW = 200  # tokens that the account looks back
SHARE = 0.015  # of their plain time that may be lost on drafts

_KEEP = 0.95  # what is left of the evidence on tokens after another step that drafted
_KEEP_IDLE = 0.98  # and after one that did not
_TRUST = 3.0  # draft tokens by which the prospects count at the beginning
_SHRINK = 4.0  # steps by which what all ways have in common counts in the estimate of one
_RECENT = 15  # steps whose median is a way's cost
_SURE = 3  # steps after which it is no longer guessed
_SPIKE = 1.25  # a step that takes longer than so many times the usual is not the drafts' fault
_REFRESH = 64  # tokens after which plain decoding, or a way nearly as good as the best, is timed again
_FIRST, _LAST = 8, 64  # tokens between probes, after the first that failed and after many
_NEAR = 0.9  # of the best speed: worth another look
_STAKES = 4.0  # worst cases that the account must bear of a way, if it is not the cheapest


class Chooses(Protocol):
    """What picks from a menu."""

    def pick(self) -> int:
        """The place of the way that the next step drafts by."""
        ...

    def heard(self, index: int, tokens: float, seconds: float) -> None:
        """A step of way `index` gave so many tokens (a row, on average) in so many seconds."""
        ...


@dataclass(frozen=True, slots=True)
class Fixed:
    """Always the same."""

    index: int

    def pick(self) -> int:
        """As given."""
        return self.index

    def heard(self, index: int, tokens: float, seconds: float) -> None:
        """Nothing to learn."""


@dataclass(frozen=True, slots=True)
class Prospect:
    """What a way is expected to give before it was tried: tokens of a step, and its cost in plain steps."""

    tokens: float
    cost: float


@dataclass(slots=True)
class _Seen:
    """What is known of one way."""

    steps: float = 0.0  # weight of the evidence
    accepted: float = 0.0  # draft tokens in it
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))  # seconds of steps
    usual: float = 0.0  # their median
    least: float = 0.0  # their lower quartile
    at: float = 0.0  # tokens of the text when it was last picked

    def time(self, seconds: float) -> None:
        """Another step."""
        self.recent.append(seconds)
        ordered = sorted(self.recent)
        self.usual, self.least = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 4]

    def fade(self, keep: float) -> None:
        """Some of the evidence is forgotten."""
        self.steps *= keep
        self.accepted *= keep


class _Account:
    """What was lost against plain decoding, in plain steps, over stretches that end now."""

    def __init__(self) -> None:
        self._entries: deque[tuple[float, float]] = deque()  # (tokens, loss) of each step
        self._held = 0.0  # tokens of all entries

    def enter(self, tokens: float, loss: float) -> None:
        self._entries.append((tokens, loss))
        self._held += tokens
        while self._held - self._entries[0][0] >= WINDOW:
            self._held -= self._entries.popleft()[0]

    def worst(self) -> float:
        """The largest loss of any stretch that ends now, never below zero."""
        worst = total = 0.0
        for _, loss in reversed(self._entries):
            total += loss
            worst = max(worst, total)
        return worst


class Chooser:
    """Follows tokens and seconds of a menu of ways, of which the first is plain decoding.

    What the prospects say of tokens is scaled by one number for all ways, how well drafts do just now, and corrected
    for each way by its own steps; what they say of costs likewise, until a way was timed.
    """

    def __init__(self, prospects: Sequence[Prospect]) -> None:
        if not prospects or prospects[PLAIN] != Prospect(1.0, 1.0):
            raise ArgumentError("the first way of a menu must be plain decoding, one token at the cost of one step")
        self.prospects = tuple(prospects)
        self._seen = [_Seen() for _ in prospects]
        self._all = _Seen(_TRUST, _TRUST)  # steps: draft tokens that prospects promised; accepted: that came
        self._account = _Account()
        self._text = 0.0  # tokens so far
        self._last = PLAIN
        self._pause, self._probed = 0, 0.0  # tokens between probes, and when speculation was last tried
        self._probing = False

    def pick(self) -> int:
        """The fastest way that the account bears; now and then another, to keep what is known fresh."""
        if len(self._seen[PLAIN].recent) < 2:
            return PLAIN
        borne = self._borne()
        best = max(borne, key=lambda index: (self.speed(index), -index))
        self._probing = best == PLAIN
        return self._probe(borne) if self._probing else self._refresh(borne, best)

    def heard(self, index: int, tokens: float, seconds: float) -> None:
        """Learn from a step."""
        self._text += tokens
        seen, warm = self._seen[index], self._last != PLAIN or index == PLAIN
        usual = self.seconds(index)
        if warm or not seen.recent:  # after a pause a drafter reads what it missed
            seen.time(seconds)
        for one in (*self._seen, self._all):
            one.fade(_KEEP_IDLE if index == PLAIN else _KEEP)
        if index != PLAIN:
            seen.steps, seen.accepted = seen.steps + 1, seen.accepted + tokens - 1
            self._all.steps += self.prospects[index].tokens - 1
            self._all.accepted += tokens - 1
            self._heard_probe(tokens)
        if plain := self._seen[PLAIN].least:
            self._account.enter(tokens, 0.0 if index == PLAIN else min(seconds, _SPIKE * usual) / plain - tokens)
        self._last, seen.at = index, self._text

    def tokens(self, index: int) -> float:
        """Expected of a step."""
        if index == PLAIN:
            return 1.0
        seen, promised = self._seen[index], self.prospects[index].tokens - 1
        common = promised * self._all.accepted / max(self._all.steps, 1e-9)
        return 1 + (seen.accepted + _SHRINK * common) / (seen.steps + _SHRINK)

    def seconds(self, index: int) -> float:
        """Expected of a step."""
        seen, plain = self._seen[index], self._seen[PLAIN].usual or 1.0
        if index == PLAIN or len(seen.recent) >= _SURE:
            return seen.usual or plain
        guess = plain * (1 + self._stretch(plain) * (self.prospects[index].cost - 1))
        return min(seen.usual or guess, guess)  # one slow step condemns nobody

    def speed(self, index: int) -> float:
        """Tokens a second."""
        return self.tokens(index) / self.seconds(index)

    def _stretch(self, plain: float) -> float:
        """By how much drafting is dearer than the prospects said, over the ways that were timed."""
        every = zip(self._seen, self.prospects, strict=True)
        timed = [(seen.usual, p.cost) for seen, p in every if len(seen.recent) >= _SURE and p.cost > 1]
        if not timed:
            return 1.0
        return max(0.0, sum(usual / plain - 1 for usual, _ in timed) / sum(cost - 1 for _, cost in timed))

    def _borne(self) -> list[int]:
        """The ways whose worst case the account bears, several times over but for the cheapest: the less is left, the
        smaller the stakes."""
        left, plain = SHARE * WINDOW - self._account.worst(), self.seconds(PLAIN)
        stakes = {index: self.seconds(index) / plain - 1 for index in range(1, len(self.prospects))}
        cheapest = min(stakes, key=stakes.__getitem__, default=PLAIN)
        return [PLAIN, *(i for i, stake in stakes.items() if stake * (1 if i == cheapest else _STAKES) <= left)]

    def _probe(self, borne: list[int]) -> int:
        """While speculation does not pay: the way that costs least, now and then."""
        others = [index for index in borne if index != PLAIN]
        if not others or self._text - self._probed < self._pause:
            return PLAIN
        return min(others, key=self.seconds)

    def _heard_probe(self, tokens: float) -> None:
        """A draft token that came is worth asking again at once; each one that did not doubles the pause."""
        self._probed = self._text
        failed = min(max(_FIRST, 2 * self._pause), _LAST) if self._probing else 0
        self._pause = 0 if tokens > 1 else failed

    def _refresh(self, borne: list[int], best: int) -> int:
        """The best; unless something else should be timed again."""
        worth = [i for i in borne if i == PLAIN or self.speed(i) >= _NEAR * self.speed(best)]
        stale = min(worth, key=lambda index: self._seen[index].at)
        return stale if self._text - self._seen[stale].at >= _REFRESH else best
