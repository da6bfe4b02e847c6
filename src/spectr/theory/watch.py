"""Looking on while a model generates: the laws at every node that a verdict came to, through a rule that tells.

The engine is the one that generates; only its rule is wrapped. What is seen are the nodes of a chain of drafts, not cut
where the text is cut by its length, and none after a token that ends the text. Texts come and go between calls, and
move between rows, so that a row is known by its seed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from spectr.coins import SeededCoins, seed_word
from spectr.engine import Engine, Request
from spectr.engine.metrics import Stats
from spectr.errors import ArgumentError
from spectr.rows import pick_rows
from spectr.theory.estimate import Array, Mask
from spectr.transport.laws import law_of
from spectr.types import Coins, Draft, LogitsAt, Verdict
from spectr.verify import Rule
from spectr.verify.rule import Way

__all__ = ["Look", "Nodes", "Seen", "watch"]


@dataclass(frozen=True, slots=True)
class Seen:
    """What one target call looked at: n nodes, each with the token that came out after it."""

    text: Tensor  # (n,) the number of its request
    depth: Tensor  # (n,) 0 at the root
    judged: Tensor  # (n,) bool: it had a draft
    kept: Tensor  # (n,) bool: which was accepted
    token: Tensor  # (n,) int64
    target: Tensor  # (n, V) law
    draft: Tensor  # (n, V) law; the target's where there was no draft
    noisy: Callable[[Tensor], Tensor]  # logits (n, V) → with the race's noise of their positions


Look = Callable[[Seen], Mapping[str, Tensor]]
"""What is to be remembered of a call: values (n,) or (n, m) by name."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """All nodes that were looked at in a run, and how its texts went. Columns are (n,) or (n, m): `text`, `depth`,
    `judged` and `kept` (0 or 1), and what was remembered."""

    columns: Mapping[str, Array]
    calls: Array  # (texts,) target calls
    emitted: Array  # (texts,) tokens

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    @property
    def judged(self) -> Mask:
        """Those that had a draft."""
        return self["judged"] > 0

    def by_text(self, values: Array | Mask, where: Mask | None = None) -> Array:
        """Sums (texts,) of values (n,), of the nodes `where`."""
        chosen = np.ones(len(values), bool) if where is None else where
        found = np.zeros_like(self.calls)
        np.add.at(found, self["text"][chosen].astype(int), values[chosen])
        return found

    def of(self, texts: Mask) -> "Nodes":
        """Those of some texts, numbered anew."""
        home = self["text"].astype(int)
        columns = {name: column[texts[home]] for name, column in self.columns.items()}
        columns["text"] = (np.cumsum(texts) - 1.0)[home[texts[home]]]
        return Nodes(columns, self.calls[texts], self.emitted[texts])


class _Texts:
    """The requests of a run, found by their seeds."""

    def __init__(self, requests: Sequence[Request], stops: frozenset[int]) -> None:
        self.requests, self.stops = requests, stops
        self.numbers = {seed_word(request.seed): number for number, request in enumerate(requests)}
        if (seeds := len(self.numbers)) < len(requests):
            raise ArgumentError(
                f"texts that are watched must have different seeds, got {seeds} for {len(requests)} requests"
            )

    def of(self, coins: Coins) -> Tensor:
        """(B,) int64: which request each row belongs to."""
        assert isinstance(coins, SeededCoins)
        return torch.tensor([self.numbers[seed] for seed in coins.seed.tolist()], device=coins.seed.device)

    def are_going(self, coins: Coins, root: Tensor) -> Tensor:
        """(B,) bool: rows whose text has not ended. Where a step is launched before the last one was read, a text that
        ended there takes part once more, in vain."""
        assert isinstance(coins, SeededCoins)
        rows = zip(self.of(coins).tolist(), coins.committed.tolist(), root.tolist(), strict=True)
        going = [self._is_going(self.requests[number], length, last) for number, length, last in rows]
        return torch.tensor(going, device=root.device)

    def _is_going(self, request: Request, length: int, last: int) -> bool:
        return length < request.limit and not (length > len(request.tokens) and last in self.stops)


class _Watched(Rule):
    """A rule that shows what it looked at."""

    def __init__(self, inner: Rule, texts: _Texts, show: Callable[[Seen], None]) -> None:
        self.card, self.inner, self.texts, self.show = inner.card, inner, texts, show

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, way: Way) -> Verdict:
        """The inner rule's."""
        found = self.inner.verdict(logits, draft, coins, way)
        if self.texts.are_going(coins, draft.tokens[:, 0]).any():
            self.show(_seen(found, logits, draft, coins, self.texts))
        return found


def _before_end(tokens: Tensor, stops: frozenset[int]) -> Tensor:
    """(B, D) of nodes' tokens → (B, D + 1): no token on the way to the node, its own included, ends the text."""
    ends = torch.isin(tokens, torch.tensor(sorted(stops), dtype=torch.int64, device=tokens.device))
    return torch.nn.functional.pad((~ends).to(torch.int64).cumprod(-1), (1, 0), value=1) > 0


def _seen(verdict: Verdict, logits: LogitsAt, draft: Draft, coins: Coins, texts: _Texts) -> Seen:
    path, laws = verdict.path, draft.laws
    assert laws is not None
    nodes = torch.nn.functional.pad(path, (1, 0)).clamp_min(0)  # (B, D + 1)
    tokens = draft.tokens.gather(1, path.clamp_min(0))
    depth = torch.arange(nodes.shape[1], device=path.device).expand_as(nodes)
    length, going = verdict.length[:, None], texts.are_going(coins, draft.tokens[:, 0])
    visited = (depth <= length) & _before_end(tokens, texts.stops) & going[:, None]
    out = torch.where(depth < length, torch.nn.functional.pad(tokens, (0, 1)), verdict.bonus[:, None])
    judged = (depth < path.shape[1])[visited]
    row, at = visited.nonzero(as_tuple=True)
    target, drafted = law_of(logits(nodes))[visited], pick_rows(laws, nodes)[visited]

    def noisy(values: Tensor) -> Tensor:
        full = values.new_zeros(*visited.shape, values.shape[-1], dtype=torch.float64)
        full[visited] = values.double()
        return coins.noisy_logits(full, depth)[visited]

    drafted = torch.where(judged[:, None], drafted, target)
    return Seen(texts.of(coins)[row], at, judged, (depth < length)[visited], out[visited], target, drafted, noisy)


class _Record:
    """Seen calls as columns."""

    def __init__(self, look: Look) -> None:
        self.look, self.columns = look, dict[str, list[Array]]()

    def show(self, seen: Seen) -> None:
        named = {n: getattr(seen, n) for n in ("text", "depth", "judged", "kept")}
        for name, values in {**named, **self.look(seen)}.items():
            self.columns.setdefault(name, []).append(values.double().cpu().numpy())

    def nodes(self, stats: Sequence[Stats]) -> Nodes:
        calls, emitted = (np.array([getattr(s, n) for s in stats], dtype=np.float64) for n in ("steps", "emitted"))
        return Nodes({name: np.concatenate(parts) for name, parts in self.columns.items()}, calls, emitted)


def watch(engine: Engine, requests: Sequence[Request], look: Look) -> Nodes:
    """Run requests, whose seeds must differ, on chains that carry their laws, and look at every call."""
    record = _Record(look)
    rule = _Watched(engine.rule, _Texts(requests, engine.stops), record.show)
    watched = engine.with_parts(rule=rule, captures=False)  # a replayed step would show nothing
    return record.nodes([result.stats for result in watched.generate(requests)])
