"""Observes the laws at every visited node while a model generates, by means of a wrapped rule.

The engine is the real one; only its rule is wrapped. The observed nodes are those of a chain of drafts, also beyond the
length limit of the text, but not after a token that ends the text. Texts start and end between calls and move between
rows, so rows are identified by their seeds.
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
from spectr.verify.rule import Descent

__all__ = ["Nodes", "Recorder", "VisitedNodes", "watch"]


@dataclass(frozen=True, slots=True)
class VisitedNodes:
    """The nodes that one target call visited, each with the token emitted after it."""

    text: Tensor  # (n,) the index of its request
    depth: Tensor  # (n,) 0 at the root
    judged: Tensor  # (n,) bool: whether it had a draft
    kept: Tensor  # (n,) bool: whether the draft was accepted
    token: Tensor  # (n,) int64
    target: Tensor  # (n, V) law
    draft: Tensor  # (n, V) law; the target's if there was no draft
    noisy: Callable[[Tensor], Tensor]  # adds the race's noise of their positions to logits (n, V)


Recorder = Callable[[VisitedNodes], Mapping[str, Tensor]]
"""Computes the values (n,) or (n, m) to record of a call, by name."""


@dataclass(frozen=True, slots=True)
class Nodes:
    """All observed nodes of a run, and the calls and tokens of its texts.

    Columns are (n,) or (n, m): `text`, `depth`, `judged` and `kept` (0 or 1), and the recorded values."""

    columns: Mapping[str, Array]
    calls: Array  # (texts,) target calls
    emitted: Array  # (texts,) tokens

    def __getitem__(self, name: str) -> Array:
        return self.columns[name]

    @property
    def judged(self) -> Mask:
        """Whether each node had a draft."""
        return self["judged"] > 0

    def by_text(self, values: Array | Mask, where: Mask | None = None) -> Array:
        """Return the sums (texts,) of values (n,) over the nodes `where`."""
        chosen = np.ones(len(values), bool) if where is None else where
        sums = np.zeros_like(self.calls)
        np.add.at(sums, self["text"][chosen].astype(int), values[chosen])
        return sums

    def of(self, texts: Mask) -> "Nodes":
        """Return the nodes of some texts, with new indices."""
        text = self["text"].astype(int)
        columns = {name: column[texts[text]] for name, column in self.columns.items()}
        columns["text"] = (np.cumsum(texts) - 1.0)[text[texts[text]]]
        return Nodes(columns, self.calls[texts], self.emitted[texts])


class _Texts:
    """The requests of a run, found by their seeds."""

    def __init__(self, requests: Sequence[Request], stops: frozenset[int]) -> None:
        self.requests, self.stops = requests, stops
        self.numbers = {seed_word(request.seed): number for number, request in enumerate(requests)}
        if (seeds := len(self.numbers)) < len(requests):
            raise ArgumentError(
                f"observed requests must have different seeds, got {seeds} for {len(requests)} requests"
            )

    def of(self, coins: Coins) -> Tensor:
        """Return the index of each row's request, (B,) int64."""
        assert isinstance(coins, SeededCoins)
        return torch.tensor([self.numbers[seed] for seed in coins.seed.tolist()], device=coins.seed.device)

    def are_going(self, coins: Coins, root: Tensor) -> Tensor:
        """Return the rows (B,) bool whose text has not ended.

        If a step is launched before the last one was read, a text that ended there is computed once more in vain."""
        assert isinstance(coins, SeededCoins)
        rows = zip(self.of(coins).tolist(), coins.committed.tolist(), root.tolist(), strict=True)
        going = [self._is_going(self.requests[number], length, last) for number, length, last in rows]
        return torch.tensor(going, device=root.device)

    def _is_going(self, request: Request, length: int, last: int) -> bool:
        return length < request.limit and not (length > len(request.tokens) and last in self.stops)


class _ObservedRule(Rule):
    """A rule that reports the nodes it visited."""

    def __init__(self, inner: Rule, texts: _Texts, show: Callable[[VisitedNodes], None]) -> None:
        self.card, self.inner, self.texts, self.show = inner.card, inner, texts, show

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, descent: Descent) -> Verdict:
        """Return the inner rule's verdict."""
        verdict = self.inner.verdict(logits, draft, coins, descent)
        if self.texts.are_going(coins, draft.tokens[:, 0]).any():
            self.show(_seen(verdict, logits, draft, coins, self.texts))
        return verdict


def _before_end(tokens: Tensor, stops: frozenset[int]) -> Tensor:
    """Given the tokens (B, D) of a path, return whether no token up to each node ends the text, (B, D + 1) bool."""
    ends = torch.isin(tokens, torch.tensor(sorted(stops), dtype=torch.int64, device=tokens.device))
    return torch.nn.functional.pad((~ends).to(torch.int64).cumprod(-1), (1, 0), value=1) > 0


def _seen(verdict: Verdict, logits: LogitsAt, draft: Draft, coins: Coins, texts: _Texts) -> VisitedNodes:
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
    return VisitedNodes(
        texts.of(coins)[row], at, judged, (depth < length)[visited], out[visited], target, drafted, noisy
    )


class _Record:
    """Collects observed calls as columns."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder, self.columns = recorder, dict[str, list[Array]]()

    def show(self, seen: VisitedNodes) -> None:
        named = {n: getattr(seen, n) for n in ("text", "depth", "judged", "kept")}
        for name, values in {**named, **self.recorder(seen)}.items():
            self.columns.setdefault(name, []).append(values.double().cpu().numpy())

    def nodes(self, stats: Sequence[Stats]) -> Nodes:
        calls, emitted = (np.array([getattr(s, n) for s in stats], dtype=np.float64) for n in ("steps", "emitted"))
        return Nodes({name: np.concatenate(parts) for name, parts in self.columns.items()}, calls, emitted)


def watch(engine: Engine, requests: Sequence[Request], recorder: Recorder) -> Nodes:
    """Run requests, whose seeds must differ, on chains with draft laws, and observe every call."""
    record = _Record(recorder)
    rule = _ObservedRule(engine.rule, _Texts(requests, engine.stops), record.show)
    watched = engine.with_parts(rule=rule, captures=False)  # a replayed graph does not call the rule
    return record.nodes([result.stats for result in watched.generate(requests)])
