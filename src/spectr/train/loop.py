"""Trains a head to maximise acceptance at several depths, where deeper depths use its own features."""

import math
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from spectr.models.blockwise import BlockwiseHead
from spectr.models.borrowing import Borrowing
from spectr.models.graphs import Captured
from spectr.models.head import FeatureHead
from spectr.models.published.eagle3 import Eagle3Head
from spectr.models.target import Target
from spectr.train.corpus import Batch, Corpus, target_logits
from spectr.train.muon import Muon
from spectr.train.objective import Objective, acceptance_loss, probabilities

__all__ = ["Course", "Head", "Report", "Trainer"]

Head = FeatureHead | BlockwiseHead | Eagle3Head
"""The kinds of heads that can be trained."""

_CHUNK = 8192  # rows of logits at a time
_READ_LOSS_EVERY = 20  # steps
_ROOM = 0.8  # maximum share of a batch's positions that is compared, if a graph needs a fixed number


@dataclass(frozen=True, slots=True)
class Course:
    """The settings of training."""

    seconds: float = 600.0
    steps: int | None = None  # maximum number of steps; None: as many as fit into the time
    depths: int = 4
    fade: float = 0.9  # weight of each depth relative to the one above
    objective: Objective = "overlap"
    temperatures: tuple[float, ...] = (1.0, 1.0, 0.7)
    optimizer: Literal["muon", "adamw"] = "muon"  # optimizer of the matrices
    rate: float = 4e-3
    warm_up: int = 100  # steps
    budget: int = 32_768  # tokens per step
    seed: int = 0


@dataclass(slots=True)
class Report:
    """The state of training at one time."""

    step: int
    seconds: float
    tokens: int
    loss: float
    acceptance: list[float]  # on held-out texts, by depth; of one draft, at temperature 1
    left: float  # seconds

    def as_data(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return asdict(self)


@dataclass(slots=True)
class _Progress:
    """The state that a checkpoint stores besides the weights."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)


def _optimizers(head: torch.nn.Module, course: Course) -> list[torch.optim.Optimizer]:
    """Return one optimizer for the matrices and one for the other parameters."""
    matrices = [weights for weights in head.parameters() if weights.dim() > 1]
    rest = [weights for weights in head.parameters() if weights.dim() <= 1]
    cuda = rest[0].is_cuda
    rate = partial(torch.tensor, course.rate, device=rest[0].device)  # a tensor, so that a captured step can read it
    adam = partial(torch.optim.AdamW, lr=rate(), betas=(0.9, 0.95), fused=cuda, capturable=cuda)
    first = Muon(matrices, rate()) if course.optimizer == "muon" else adam(matrices, weight_decay=0.01)
    return [first, adam(rest, weight_decay=0.0)]


def _clip(parameters: list[torch.nn.Parameter]) -> None:
    """Clip the gradients to norm 1. Gradients with a value that is not finite become zero, so that one bad batch does
    not destroy the head; nothing waits for the device."""
    norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    for weights in parameters:
        if weights.grad is not None:
            weights.grad = torch.where(torch.isfinite(norm), weights.grad, 0.0)


def _filled(group: list[int], rows: int) -> Tensor:
    """Return the texts of a group (B,), with -1 for empty rows."""
    return torch.tensor(group + [-1] * (rows - len(group)))


def _chosen(counted: Tensor) -> Tensor:
    """Return the positions (M,) to compare: all that count (N,), or a random part of fixed size for a captured
    graph."""
    if counted.device.type != "cuda":
        return counted.nonzero()[:, 0]
    order = counted * (1 + torch.rand_like(counted))
    return order.sort(descending=True).indices[: int(_ROOM * len(counted))]


@dataclass(frozen=True, slots=True)
class _Compared:
    """What the head's features are compared with."""

    true: Tensor  # (M, H) the inputs of the target's output layer
    weights: Tensor  # (depths, M)
    temperature: float
    normalizers: Tensor | None  # (M,) of the target's whole vocabulary, if the head drafts some tokens only


class Trainer:
    """Trains a head for its target, and keeps the state of training."""

    def __init__(self, head: Head, target: Target, course: Course) -> None:
        self.head, self.target, self.course = head, target, course
        self.optimizers = _optimizers(head, course)
        self.progress, self._captured = _Progress(), Captured()
        fades = torch.tensor([course.fade**depth for depth in range(course.depths)], device=target.device)
        self._fades = fades / fades.sum()
        self._is_partial = isinstance(head, Borrowing) and head.drafted is not None

    def run(
        self,
        corpus: Corpus,
        held: Corpus,
        save: Callable[[], None],
        every: float = 30.0,
        on_step: Callable[[float], None] = lambda _: None,
    ) -> Iterator[Report]:
        """Train until the course is completed. Every `every` seconds and at the end, yield a report and save a
        checkpoint.

        `on_step` is called after every step with the completed share of the course, from 0 to 1."""
        state, order = self.progress, random.Random(self.course.seed + self.progress.step)
        began, spent, last, losses = time.perf_counter(), state.seconds, state.seconds, list[float]()
        while self._completed < 1:
            for group in corpus.groups(self.course.budget, order):
                losses.append(self._step(corpus, group, order.choice(self.course.temperatures)))
                state.step, state.tokens = state.step + 1, state.tokens + sum(corpus.lengths[at] for at in group)
                state.seconds = spent + time.perf_counter() - began
                over = self._completed >= 1
                on_step(self._completed)
                if over or state.seconds - last >= every:
                    last = state.seconds
                    yield self._report(held, losses)
                    losses.clear()
                    save()
                    began, spent = time.perf_counter(), state.seconds
                if over:
                    break

    @property
    def _completed(self) -> float:
        """The completed share of the course, by time or by steps; 1 at the end."""
        by_steps = 0.0 if self.course.steps is None else self.progress.step / self.course.steps
        return min(1.0, max(self.progress.seconds / self.course.seconds, by_steps))

    def _rate(self) -> float:
        """Return the learning rate: linear warm-up by steps, then cosine decay to the end of the course."""
        warm = min(1.0, (self.progress.step + 1) / self.course.warm_up)
        return self.course.rate * warm * max(0.02, 0.5 * (1 + math.cos(math.pi * self._completed)))

    def _step(self, corpus: Corpus, group: list[int], temperature: float) -> float:
        """Train on one group of texts; return the loss in one of `_READ_LOSS_EVERY` steps and NaN in the others: to
        read it, the host must wait for the device."""
        for parameters in (parameters for optimizer in self.optimizers for parameters in optimizer.param_groups):
            parameters["lr"].fill_(self._rate())
        width = corpus.width(group)
        texts = _filled(group, self.course.budget // width if corpus.quantum > 1 else len(group)).to(corpus.device)

        def learn(texts: Tensor) -> Tensor:
            loss = self._loss(corpus.batch(texts, width), temperature)
            loss.backward()
            _clip(list(self.head.parameters()))
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            return loss.detach()

        loss = self._captured((width, temperature), learn, texts)
        return float(loss) if self.progress.step % _READ_LOSS_EVERY == 0 else math.nan

    def _expected(self, batch: Batch, depths: int) -> list[Tensor]:
        """Return the head's features at each depth; casts of weights are not cached, because a graph cannot keep
        them."""
        kind = self.target.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda", cache_enabled=False):
            return self.head.expected(batch.tokens, batch.features, depths)

    def _loss(self, batch: Batch, temperature: float) -> Tensor:
        """Return the loss of all depths at the positions that count."""
        expected, true = self._expected(batch, self.course.depths), self._last(batch).flatten(0, 1)
        counted = torch.stack([batch.counted(depth + 1).flatten() for depth in range(self.course.depths)]).float()
        share = self._fades[:, None] / counted.sum(-1, keepdim=True).clamp_min(1)
        chosen = _chosen(counted[0])
        weights = (counted * share)[:, chosen]
        compared = _Compared(true[chosen], weights, temperature, self._normalizers(batch, temperature, chosen))
        return self._compare([one.flatten(0, 1)[chosen] for one in expected], compared)

    def _normalizers(self, batch: Batch, temperature: float, chosen: Tensor) -> Tensor | None:
        """Return the target's normalizers (M,) at the chosen positions, if the head drafts some tokens only."""
        return batch.normalizers[temperature].flatten()[chosen] if self._is_partial else None

    def _compare(self, expected: list[Tensor], to: _Compared) -> Tensor:
        """Return the loss of the features (M, H) of each depth against the true ones, a chunk of rows at a time."""
        loss = torch.zeros((), device=to.true.device)
        for start in range(0, len(to.true), _CHUNK):
            rows = slice(start, start + _CHUNK)
            with torch.no_grad():
                target = self._target_logits(to.true[rows])
            for features, weight in zip(expected, to.weights, strict=True):
                loss = loss + self._part(features[rows], target, weight[rows], to, rows)
        return loss

    def _part(self, features: Tensor, target: Tensor, weight: Tensor, to: _Compared, rows: slice) -> Tensor:
        """Return the loss of some rows. Objectives without a kernel recompute their distributions in the backward pass,
        to save memory."""
        normalizers = None if to.normalizers is None else to.normalizers[rows]

        def loss(features: Tensor) -> Tensor:
            draft = self._draft_logits(features)
            return acceptance_loss(draft, target, weight, to.temperature, self.course.objective, normalizers)[0]

        if self.course.objective == "overlap":
            return loss(features)
        again: Tensor = checkpoint(loss, features, use_reentrant=False, preserve_rng_state=False)
        return again

    def _last(self, batch: Batch) -> Tensor:
        """Return the inputs of the output layer, (B, T, H)."""
        return batch.features[..., : self.target.width]

    def _draft_logits(self, features: Tensor) -> Tensor:
        """Return the logits of the tokens that are drafted."""
        return self.head.drafted_logits(features) if isinstance(self.head, Borrowing) else self.head.logits(features)

    def _target_logits(self, features: Tensor) -> Tensor:
        """Return the target's logits of the tokens that are drafted."""
        if self._is_partial and isinstance(self.head, Borrowing):
            return self.head.drafted_logits(features)
        return target_logits(self.target, features)

    @torch.no_grad()
    def acceptance(self, held: Corpus, depths: int, temperature: float = 1.0) -> list[float]:
        """Return Σ min(target, draft) by depth on held-out texts."""
        sums, counts = [0.0] * depths, [0] * depths
        for group in held.groups(self.course.budget, random.Random(0)):
            batch = held.batch(torch.tensor(group, device=held.device), held.width(group))
            for depth, features in enumerate(self._expected(batch, depths)):
                where = batch.counted(depth + 1)
                true = self._last(batch)[where]
                normalizers = batch.normalizers[temperature][where] if self._is_partial else None
                sums[depth] += self._overlap(features[where], true, temperature, normalizers)
                counts[depth] += len(true)
        return [total / max(1, count) for total, count in zip(sums, counts, strict=True)]

    def _overlap(self, features: Tensor, true: Tensor, temperature: float, normalizers: Tensor | None) -> float:
        """Return Σ min(target, draft) of predicted and true features (M, H), summed over rows."""
        total = 0.0
        for start in range(0, len(true), _CHUNK):
            rows = slice(start, start + _CHUNK)
            p, q = self._target_logits(true[rows]), self._draft_logits(features[rows])
            p, q = (x.float() / temperature for x in (p, q))
            p = probabilities(p, None if normalizers is None else normalizers[rows])
            total += float(torch.minimum(p, q.softmax(-1)).sum())
        return total

    def _report(self, held: Corpus, losses: list[float]) -> Report:
        known = [loss for loss in losses if not math.isnan(loss)]
        state = self.progress
        report = Report(
            state.step,
            state.seconds,
            state.tokens,
            sum(known) / max(1, len(known)),
            self.acceptance(held, self.head.deepest or max(self.course.depths, 6)),
            state.seconds * (1 / self._completed - 1),
        )
        state.curve.append(report.as_data())
        return report

    def save(self, path: Path) -> None:
        """Write a checkpoint atomically."""
        part = path.with_suffix(".part")
        data = {
            "head": self.head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": asdict(self.progress),
        }
        torch.save(data, part)
        part.replace(path)

    def load(self, path: Path) -> None:
        """Restore the state of a checkpoint."""
        data = torch.load(path, map_location=self.target.device, weights_only=True)
        self.head.load_state_dict(data["head"])
        for optimizer, state in zip(self.optimizers, data["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.progress = _Progress(**data["progress"])
