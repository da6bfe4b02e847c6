"""The loop: draft, one target call, verdict, keep. It knows no names: parts say what they are, compared once."""

import threading
import time
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from spectr.captured import obstacle
from spectr.captured import stream as captured_stream
from spectr.checks import whole
from spectr.coins import SeededCoins, seed_word
from spectr.errors import ArgumentError, MismatchError
from spectr.metrics import Stats, best_possible, count_step
from spectr.policy import History, Past, Policy
from spectr.reading import Scored, Told, sick_at, told_of
from spectr.requests import Job, Memory, Request, Result, Step
from spectr.rows import pick_rows
from spectr.stages import Stage, Stages, shared_start
from spectr.standing import advance, begin, begin_again, for_those_going, take_rows
from spectr.transport.laws import sound
from spectr.trees import Topology, topology
from spectr.types import Draft, Drafter, Drafting, Opening, Scene, Standing, TreeModel
from spectr.verify import Rule

__all__ = ["LOCK", "Engine", "Job", "Memory", "Request", "Result", "Step"]

LOCK = threading.RLock()
"""Held while a step runs. Steps put hooks on a model's modules and state on its cache, and two engines may share a
model, so threads take turns step by step. Reentrant, since a user's hook may generate in turn."""


@dataclass(slots=True)
class Batch:
    """The rows still going: which requests they are, their texts, prompt included, and who remembers what of them."""

    rows: list[int]
    texts: list[list[int]]
    standing: Standing
    session: Any  # the target's
    drafting: Drafting
    history: History | None
    guesses: Policy  # what drafts are ranked by


class Engine:
    """A target, a drafter and a rule that fit together."""

    capture = False  # replay steps as graphs, where a job allows it

    def __init__(self, target: TreeModel, drafter: Drafter, rule: Rule, stops: frozenset[int] = frozenset()) -> None:
        if drafter.siblings not in rule.card.siblings:
            raise MismatchError(
                f"rule {rule.card.name!r} holds for siblings {', '.join(rule.card.siblings)}, and drafter "
                f"{drafter.name!r} draws {drafter.siblings!r}; race and match take any"
            )
        if rule.card.needs_laws and not drafter.gives_laws:
            raise MismatchError(
                f"rule {rule.card.name!r} reads the law each child was drawn from, and drafter {drafter.name!r} has "
                "none; use race or match, or a drafter that has laws: ngram, early_exit, a model"
            )
        if rule.card.name != "race" and getattr(getattr(drafter, "plan", None), "shared", None) is not None:
            raise MismatchError(
                f"rows may share a tree under the race alone: with rule {rule.card.name!r} a text would hang on the "
                "batch it is in; leave shared out of the plan"
            )
        self.target, self.drafter, self.rule, self.stops = target, drafter, rule, stops
        self.stages = Stages()  # what captured steps work on
        self._said: set[str] = set()

    def compile(self) -> None:
        """Compile the layers of target and drafter, and run a few tokens, so that it is done now."""
        drafter: Any = self.drafter
        for model in (self.target, getattr(drafter, "head", None), getattr(drafter, "model", None)):
            getattr(model, "compile", lambda: None)()
        self.stages = Stages()  # graphs of layers as they were
        self.generate(Job([Request([0], 0, min(4 * drafter.nodes, self.target.context - 1))]))

    def generate(self, job: Job) -> list[Result]:
        """Run every request to its end."""
        results = [Result(logprobs=[] if job.logprobs else None) for _ in job.requests]
        for step in self.stream(job, [result.stats for result in results]):
            result = results[step.row]
            result.tokens += step.tokens
            result.steps.append(step)
            result.finish_reason = step.finish_reason or "length"
            if result.logprobs is not None and step.logprobs is not None:
                result.logprobs += step.logprobs
        return results

    def stream(self, job: Job, stats: Sequence[Stats], memory: Memory | None = None) -> Generator[Step, None, None]:
        """Steps of all rows as they come. A finished row leaves the batch within the step."""
        steps = self._steps(job, stats, memory)
        try:
            while True:
                with LOCK:
                    step = next(steps, None)
                if step is None:
                    return
                yield step
        finally:
            with LOCK:
                steps.close()

    def _steps(self, job: Job, stats: Sequence[Stats], memory: Memory | None) -> Generator[Step, None, None]:
        if self.capture and self._is_capturable(job):
            yield from captured_stream(self, job, stats, memory)
            return
        batch = self.begin(job, memory)
        while batch.rows:
            yield from self._step(batch, job, stats, memory)
            self._let_go(batch)

    def check(self, job: Job) -> None:
        """Refuse what cannot be run, before anything is."""
        for request in job.requests:
            self._check(request)
        hooks = job.policy.allowed
        if isinstance(hooks, tuple) and len(hooks) != len(job.requests):
            raise ArgumentError(
                f"allowed must be a function, or one for each of {len(job.requests)} rows, got {len(hooks)}"
            )

    def _is_capturable(self, job: Job) -> bool:
        """Where it is not, one warning says why."""
        why = obstacle(self, job)
        if why is not None and why not in self._said:
            self._said.add(why)
            warnings.warn(f"steps are run one by one and not replayed as a graph: {why}", stacklevel=2)
        return why is None

    def slots(self, job: Job) -> int:
        """Most tokens a row of this job comes to, its last tree included."""
        return max(len(r.prompt) + r.max_new_tokens for r in job.requests) + self.drafter.nodes

    def begin(self, job: Job, memory: Memory | None = None, room: int | None = None) -> Batch:
        """Read every distinct prompt once; `room` is for slots that are wanted beyond those of this job."""
        self.check(job)
        distinct, order = _distinct(job.requests)
        prompts = [list(request.prompt) for request in distinct]
        sources = None if distinct[0].source is None else [list(r.source or []) for r in distinct]
        session = self._read(prompts, sources, room or self.slots(job), memory)
        drafting = self.drafter.open(Opening(prompts, sources, self.slots(job), self.target.vocabulary, session, room))
        if len(order) > len(distinct):
            rows = torch.tensor(order, device=self.target.device)
            self.target.take_rows(session, rows)
            drafting.take_rows(rows)
        texts = [list(request.prompt) for request in job.requests]
        standing = begin(job.requests, self.target.device)
        return Batch(
            list(range(len(texts))), texts, standing, session, drafting, self._history(job), job.policy.for_drafts
        )

    def begin_again(self, batch: Batch, job: Job, going: Sequence[bool], kept: int = 0) -> None:
        """Another job in the buffers of one that ended; the first `kept` tokens of every row are there already."""
        self.check(job)
        prompts = [list(request.prompt) for request in job.requests]
        self.target.rewind(batch.session, [kept] * len(prompts))
        self.target.read(batch.session, [prompt[kept:-1] for prompt in prompts])
        opening = Opening(prompts, None, self.slots(job), self.target.vocabulary, batch.session)
        drafting: Any = batch.drafting
        drafting.begin(opening, kept)
        begin_again(batch.standing, job.requests, going)

    def _check(self, request: Request) -> None:
        if not request.prompt:
            raise ArgumentError("a prompt must have at least one token; start it with the model's first token")
        whole("max_new_tokens", request.max_new_tokens, 1)
        seed_word(request.seed)
        if len(request.prompt) + request.max_new_tokens > self.target.context:
            raise ArgumentError(
                f"prompt and new tokens must fit into the model's {self.target.context} positions, got "
                f"{len(request.prompt)} + {request.max_new_tokens}; shorten the prompt or lower max_new_tokens"
            )
        if max(request.prompt) >= self.target.vocabulary or min(request.prompt) < 0:
            raise ArgumentError(
                f"tokens of a prompt must lie in 0 … {self.target.vocabulary - 1}, got {request.prompt}"
            )

    def _read(self, prompts: list[list[int]], sources: list[list[int]] | None, room: int, memory: Memory | None) -> Any:
        """A session that holds all but the last token of each prompt; what `memory` holds already is not read again."""
        if memory is not None and isinstance(memory.session, Stage):  # of a turn whose steps were captured
            memory.session, memory.text, memory.reused = None, [], 0
        if memory is not None and memory.session is not None and len(prompts) == 1:
            shared = shared_start(memory.text, prompts[0][:-1])
            self.target.grow(memory.session, room)
            memory.text, memory.reused = memory.text[:shared], shared
            self.target.rewind(memory.session, [shared])
            self.target.read(memory.session, [prompts[0][shared:-1]])
            memory.text = prompts[0][:-1]
            return memory.session
        session = self.target.open(len(prompts), room, features=getattr(self.drafter, "wants_features", None))
        if sources is not None:
            self.target.encode(session, sources)
        self.target.read(session, [prompt[:-1] for prompt in prompts])
        if memory is not None:
            memory.session, memory.text = session, prompts[0][:-1]
        return session

    def _history(self, job: Job) -> History | None:
        if not job.policy.remembers:
            return None
        prompts, padding = [list(r.prompt) for r in job.requests], [list(r.padding) for r in job.requests]
        size, device, limits = self.target.vocabulary, self.target.device, [r.max_new_tokens for r in job.requests]
        return History(prompts, size, device=device, stops=self.stops, padding=padding, limits=limits)

    def _let_go(self, batch: Batch) -> None:
        """Rows that ended leave; they were marked with -1."""
        stay = [place for place, row in enumerate(batch.rows) if row >= 0]
        if len(stay) == len(batch.rows):
            return
        if not stay:  # what the session holds may serve the next turn
            batch.rows = []
            return
        index = torch.tensor(stay, dtype=torch.int64, device=self.target.device)
        batch.rows, batch.texts = [batch.rows[p] for p in stay], [batch.texts[p] for p in stay]
        batch.standing = take_rows(batch.standing, index)
        self.target.take_rows(batch.session, index)
        batch.drafting.take_rows(index)
        if batch.history is not None:
            batch.history.take_rows(stay)

    def _step(self, batch: Batch, job: Job, stats: Sequence[Stats], memory: Memory | None) -> list[Step]:
        """Score, count, and cut: one `Step` for each row."""
        marks = [time.perf_counter()]
        scored = self.score(batch, job, marks)
        best = best_possible(scored.law, scored.draft, scored.tree, scored.verdict) if job.optimality_gap else None
        told = told_of(scored, best, logprobs=job.logprobs)
        steps = []
        for place, row in enumerate(batch.rows):
            tokens = told.tokens[place]
            count, reason = self.end(job.requests[row], tokens, len(batch.texts[place]))
            counted = told.counted[place].cut(count)
            count_step(stats[row], counted, marks)
            logprobs = None if told.logprobs is None else told.logprobs[place][:count]
            steps.append(Step(row, tokens[:count], len(counted.ranks), counted.corrected, reason, logprobs))
        self._commit(batch, steps, told, memory)
        return steps

    def score(self, batch: Batch, job: Job, marks: list[float]) -> Scored:
        """One draft, one target call, one verdict, and what each part keeps of it: all on the device."""
        scene = self._scene(batch, job)
        draft = batch.drafting.propose(scene)
        tree = topology(draft)
        marks.append(time.perf_counter())
        logits = self.target.score(batch.session, draft.tokens, tree.ancestors, tree.depth)
        logits, has_law = sound(logits)
        marks.append(time.perf_counter())
        words = None if batch.history is None else _words(draft, tree)

        def law(nodes: Tensor | None) -> Tensor:
            past = None if words is None or batch.history is None else Past(batch.history, pick_rows(words, nodes))
            return job.policy(pick_rows(logits, nodes), past)

        verdict = for_those_going(self.rule(law, draft, scene.coins, tree=tree), batch.standing)
        root = torch.where(batch.standing.going, 0, -1)[:, None]  # of a row that has ended nothing is kept
        self.target.keep(batch.session, torch.cat([root, verdict.path], 1))
        batch.drafting.keep(verdict.path)
        advance(batch.standing, draft, verdict)
        marks.append(time.perf_counter())
        return Scored(draft, tree, logits, law, verdict, sick_at(has_law, verdict.path))

    def _scene(self, batch: Batch, job: Job) -> Scene:
        policy, guesses, history = job.policy, batch.guesses, batch.history

        def shaped(logits: Tensor, paths: Tensor) -> Tensor:
            return policy(logits, None if history is None else Past(history, paths, drafting=True))

        def ranked(logits: Tensor, paths: Tensor) -> Tensor:
            return guesses(logits, None if history is None else Past(history, paths, drafting=True))

        standing = batch.standing
        coins = SeededCoins(standing.seed, standing.committed)
        return Scene(
            batch.texts, standing.root, coins, shaped, ranked, policy.temperature, job.optimality_gap, standing
        )

    def end(self, request: Request, tokens: list[int], length: int) -> tuple[int, str | None]:
        """How many of the new tokens belong to a text of `length` so far, and why it ends among them, if it does."""
        left = len(request.prompt) + request.max_new_tokens - length
        count, reason = min(left, len(tokens)), "length" if len(tokens) >= left else None
        stop = next((at for at, token in enumerate(tokens[:count], start=1) if token in self.stops), None)
        if stop is not None:
            count, reason = stop, "stop"
        ended = request.ends(tokens[:count]) if request.ends is not None else None
        return (count, reason) if ended is None else (ended, "stop")

    def _commit(self, batch: Batch, steps: list[Step], told: Told, memory: Memory | None) -> None:
        """Texts, history and memory grow; rows that ended are marked."""
        if memory is not None:  # the session holds all but the bonus, of which the text may use less
            held = [*batch.texts[0], *told.tokens[0][:-1]]
            memory.text = held[: len(batch.texts[0]) + len(steps[0].tokens)]
        if batch.history is not None:
            batch.history.commit([step.tokens for step in steps])
        for place, step in enumerate(steps):
            batch.texts[place] += step.tokens
            if step.finish_reason:
                batch.rows[place] = -1


def _words(draft: Draft, tree: Topology) -> Tensor:
    """(B, N, D): the tokens below the root on the way to each node, padded with -1."""
    below = tree.path[..., 1:]
    tokens = draft.tokens.gather(1, below.clamp_min(0).flatten(1)).view_as(below)
    return torch.where(below >= 0, tokens, -1)


def _distinct(requests: Sequence[Request]) -> tuple[list[Request], list[int]]:
    """The requests with distinct prompts, and which of them each request is."""
    known: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    firsts, order = list[Request](), list[int]()
    for request in requests:
        key = (tuple(request.prompt), tuple(request.source or ()))
        if key not in known:
            known[key] = len(firsts)
            firsts.append(request)
        order.append(known[key])
    return firsts, order
