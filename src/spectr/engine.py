"""The loop: draft, one target call, verdict, keep. It knows no names: parts say what they are, compared once."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from spectr.coins import SeededCoins
from spectr.errors import ArgumentError, MismatchError
from spectr.metrics import Stats, count_step
from spectr.policy import Policy
from spectr.rows import pick_rows
from spectr.trees import topology
from spectr.types import Draft, Drafter, TreeTarget, Verdict
from spectr.verify import Rule

__all__ = ["Engine", "Request", "Result", "Step"]


@dataclass(frozen=True, slots=True)
class Request:
    """What one row is asked for."""

    prompt: Sequence[int]
    seed: int = 0
    max_new_tokens: int = 128


@dataclass(frozen=True, slots=True)
class Step:
    """What one step added to one row: the only thing that leaves the loop."""

    row: int
    tokens: list[int]  # accepted, then the bonus; cut at the end of the text
    accepted: int  # draft tokens among them
    finish_reason: str | None  # "stop", "length", or None while the row goes on


@dataclass(slots=True)
class Result:
    """One finished row."""

    tokens: list[int] = field(default_factory=list)
    finish_reason: str = "length"
    stats: Stats = field(default_factory=Stats)


@dataclass(slots=True)
class _Batch:
    """The rows still going: which requests they are, and their texts, prompt included."""

    rows: list[int]
    texts: list[list[int]]
    seeds: Tensor

    def without(self, ended: set[int]) -> tuple["_Batch", Tensor]:
        """The batch without rows that ended, and the places of those that stay."""
        stay = [place for place, row in enumerate(self.rows) if row not in ended]
        index = torch.tensor(stay, dtype=torch.int64, device=self.seeds.device)
        return _Batch([self.rows[p] for p in stay], [self.texts[p] for p in stay], self.seeds[index]), index


class Engine:
    """A target, a drafter and a rule that fit together."""

    def __init__(self, target: TreeTarget, drafter: Drafter, rule: Rule, stops: frozenset[int] = frozenset()) -> None:
        if drafter.siblings not in rule.card.siblings:
            raise MismatchError(
                f"rule {rule.card.name!r} holds for siblings {', '.join(rule.card.siblings)}, and drafter "
                f"{drafter.name!r} draws {drafter.siblings!r}; race and match take any"
            )
        self.target, self.drafter, self.rule, self.stops = target, drafter, rule, stops

    def generate(self, requests: Sequence[Request], policy: Policy) -> list[Result]:
        """Run every request to its end."""
        results = [Result() for _ in requests]
        for step in self.stream(requests, policy, [result.stats for result in results]):
            results[step.row].tokens += step.tokens
            results[step.row].finish_reason = step.finish_reason or "length"
        return results

    def stream(self, requests: Sequence[Request], policy: Policy, stats: Sequence[Stats]) -> Iterator[Step]:
        """Steps of all rows as they come. A finished row leaves the batch within the step."""
        batch, session = self._open(requests)
        while batch.rows:
            draft, verdict = self._step(batch, session, policy, stats)
            ended: set[int] = set()
            for place, step in enumerate(self._emit(batch, draft, verdict, requests)):
                batch.texts[place] += step.tokens
                ended |= {step.row} if step.finish_reason else set()
                yield step
            if ended:
                batch, stay = batch.without(ended)
                self.target.take_rows(session, stay)

    def _open(self, requests: Sequence[Request]) -> tuple[_Batch, object]:
        for request in requests:
            if not request.prompt:
                raise ArgumentError("a prompt must have at least one token; start it with the model's first token")
            if request.max_new_tokens < 1:
                raise ArgumentError(f"max_new_tokens must be at least 1, got {request.max_new_tokens}")
            if len(request.prompt) + request.max_new_tokens > self.target.context:
                raise ArgumentError(
                    f"prompt and new tokens must fit into the model's {self.target.context} positions, got "
                    f"{len(request.prompt)} + {request.max_new_tokens}; shorten the prompt or lower max_new_tokens"
                )
        texts = [list(request.prompt) for request in requests]
        room = max(len(request.prompt) + request.max_new_tokens for request in requests)
        session = self.target.open(len(requests), room + self.drafter.nodes)
        self.target.read(session, [text[:-1] for text in texts])
        return _Batch(list(range(len(requests))), texts, torch.tensor([r.seed for r in requests])), session

    def _step(self, batch: _Batch, session: object, policy: Policy, stats: Sequence[Stats]) -> tuple[Draft, Verdict]:
        """One draft, one target call, one verdict."""
        marks = [time.perf_counter()]
        draft = self.drafter.propose(batch.texts)
        tree = topology(draft)
        marks.append(time.perf_counter())
        logits = self.target.score(session, draft.tokens, tree.ancestors, tree.depth)
        marks.append(time.perf_counter())
        coins = SeededCoins(batch.seeds, torch.tensor([len(text) for text in batch.texts]))
        verdict = self.rule(lambda nodes: policy(pick_rows(logits, nodes)), draft, coins, tree=tree)
        self.target.keep(session, verdict.path)
        marks.append(time.perf_counter())
        for place, row in enumerate(batch.rows):
            count_step(stats[row], draft, verdict, place, marks)
        return draft, verdict

    def _emit(self, batch: _Batch, draft: Draft, verdict: Verdict, requests: Sequence[Request]) -> Iterator[Step]:
        """The verdict as tokens, cut at a stop token or at the length asked for."""
        bonuses = verdict.bonus.tolist()
        for place, (row, path) in enumerate(zip(batch.rows, verdict.path.tolist(), strict=True)):
            kept = draft.tokens[place, [node for node in path if node >= 0]].tolist()
            request = requests[row]
            left = len(request.prompt) + request.max_new_tokens - len(batch.texts[place])
            yield self._cut(row, [*kept, bonuses[place]], left)

    def _cut(self, row: int, tokens: list[int], left: int) -> Step:
        accepted = len(tokens) - 1
        for place, token in enumerate(tokens[:left], start=1):
            if token in self.stops:
                return Step(row, tokens[:place], min(accepted, place), "stop")
        return Step(row, tokens[:left], min(accepted, left), "length" if len(tokens) >= left else None)
