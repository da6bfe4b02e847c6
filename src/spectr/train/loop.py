"""Training a head: several depths deep, on its own features, for the acceptance itself."""

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
from spectr.models.graphs import Captured
from spectr.models.head import FeatureHead, finished
from spectr.models.published.eagle3 import Eagle3Head
from spectr.models.target import Target
from spectr.train.corpus import Batch, Corpus
from spectr.train.muon import Muon
from spectr.train.objective import Objective, acceptance_loss

__all__ = ["Course", "Head", "Report", "Trainer"]

Head = FeatureHead | BlockwiseHead | Eagle3Head
"""What can be trained."""

_CHUNK = 8192  # rows of logits at a time
_ROOM = 0.8  # of a batch's positions are compared at most, where their number must be known beforehand


@dataclass(frozen=True, slots=True)
class Course:
    """How a head is trained."""

    seconds: float = 600.0
    steps: int | None = None  # the most, if not as many as fit into the time
    depths: int = 4
    fade: float = 0.9  # each depth counts that much of the one above
    objective: Objective = "overlap"
    temperatures: tuple[float, ...] = (1.0, 1.0, 0.7)
    optimizer: Literal["muon", "adamw"] = "muon"  # of the matrices
    rate: float = 4e-3
    warm_up: int = 100  # steps
    budget: int = 32_768  # tokens a step
    seed: int = 0


@dataclass(slots=True)
class Report:
    """Where training stands."""

    step: int
    seconds: float
    tokens: int
    loss: float
    acceptance: list[float]  # on held-out texts, by depth; of one draft, at temperature 1
    left: float  # seconds

    def as_data(self) -> dict[str, Any]:
        """For a file."""
        return asdict(self)


@dataclass(slots=True)
class _Progress:
    """What survives a kill, besides the weights."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    curve: list[dict[str, Any]] = field(default_factory=list)


def _optimizers(head: torch.nn.Module, course: Course) -> list[torch.optim.Optimizer]:
    """One for the matrices, one for the rest."""
    matrices = [weights for weights in head.parameters() if weights.dim() > 1]
    rest = [weights for weights in head.parameters() if weights.dim() <= 1]
    cuda = rest[0].is_cuda
    rate = partial(torch.tensor, course.rate, device=rest[0].device)  # where a captured step finds it
    adam = partial(torch.optim.AdamW, lr=rate(), betas=(0.9, 0.95), fused=cuda, capturable=cuda)
    first = Muon(matrices, rate()) if course.optimizer == "muon" else adam(matrices, weight_decay=0.01)
    return [first, adam(rest, weight_decay=0.0)]


def _filled(group: list[int], rows: int) -> Tensor:
    """The texts of a group (B,), with -1 for rows that are left."""
    return torch.tensor(group + [-1] * (rows - len(group)))


def _chosen(counted: Tensor) -> Tensor:
    """Positions (M,) that are compared: all that count (N,), or where a graph must know how many a random part."""
    if counted.device.type != "cuda":
        return counted.nonzero()[:, 0]
    order = counted * (1 + torch.rand_like(counted))
    return order.sort(descending=True).indices[: int(_ROOM * len(counted))]


class Trainer:
    """A head, its target, and how far it has come."""

    def __init__(self, head: Head, target: Target, course: Course) -> None:
        self.head, self.target, self.course = head, target, course
        self.optimizers = _optimizers(head, course)
        self.progress, self._captured = _Progress(), Captured()
        fades = torch.tensor([course.fade**depth for depth in range(course.depths)], device=target.device)
        self._fades = fades / fades.sum()

    def run(
        self,
        corpus: Corpus,
        held: Corpus,
        save: Callable[[], None],
        every: float = 30.0,
        done: Callable[[float], None] = lambda _: None,
    ) -> Iterator[Report]:
        """Train until the time is over; a report and a checkpoint every so many seconds, and at the end. `done` is
        called after every step with the share of the course that is behind, from 0 to 1."""
        state, order = self.progress, random.Random(self.course.seed + self.progress.step)
        began, spent, last, losses = time.perf_counter(), state.seconds, 0.0, list[float]()
        while self._done < 1:
            for group in corpus.groups(self.course.budget, order):
                losses.append(self._step(corpus, group, order.choice(self.course.temperatures)))
                state.step, state.tokens = state.step + 1, state.tokens + sum(corpus.lengths[at] for at in group)
                state.seconds = spent + time.perf_counter() - began
                over = self._done >= 1
                done(self._done)
                if over or state.seconds - last >= every:
                    last = state.seconds
                    yield self._report(held, losses)
                    losses.clear()
                    save()
                    began, spent = time.perf_counter(), state.seconds
                if over:
                    break

    @property
    def _done(self) -> float:
        """The share of the course that is behind, by time or by steps; 1 at the end."""
        by_steps = 0.0 if self.course.steps is None else self.progress.step / self.course.steps
        return min(1.0, max(self.progress.seconds / self.course.seconds, by_steps))

    def _rate(self) -> float:
        """Warm up by steps, then fall to the end of the course."""
        done = self._done
        warm = min(1.0, (self.progress.step + 1) / self.course.warm_up)
        return self.course.rate * warm * max(0.02, 0.5 * (1 + math.cos(math.pi * done)))

    def _step(self, corpus: Corpus, group: list[int], temperature: float) -> float:
        for held in (held for optimizer in self.optimizers for held in optimizer.param_groups):
            held["lr"].fill_(self._rate())
        width = corpus.width(group)
        texts = _filled(group, self.course.budget // width if corpus.quantum > 1 else len(group)).to(corpus.device)

        def learn(texts: Tensor) -> Tensor:
            loss = self._loss(corpus.batch(texts, width), temperature)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.head.parameters(), 1.0)
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            return loss.detach()

        loss = self._captured((width, temperature), learn, texts)
        return float(loss) if self.progress.step % 20 == 0 else math.nan

    def _expected(self, batch: Batch, depths: int) -> list[Tensor]:
        """What the head expects at each depth; casts of weights are not kept, since a graph could not hold them."""
        kind = self.target.device.type
        with torch.autocast(kind, torch.bfloat16, enabled=kind == "cuda", cache_enabled=False):
            return self.head.expected(batch.tokens, batch.features, depths)

    def _loss(self, batch: Batch, temperature: float) -> Tensor:
        """Of all depths at the positions that count."""
        expected, true = self._expected(batch, self.course.depths), self._last(batch).flatten(0, 1)
        counted = torch.stack([batch.counted(depth + 1).flatten() for depth in range(self.course.depths)]).float()
        share = self._fades[:, None] / counted.sum(-1, keepdim=True).clamp_min(1)
        chosen = _chosen(counted[0])
        weights = (counted * share)[:, chosen]
        return self._compare([one.flatten(0, 1)[chosen] for one in expected], true[chosen], weights, temperature)

    def _compare(self, expected: list[Tensor], true: Tensor, weights: Tensor, temperature: float) -> Tensor:
        """The loss of features (M, H) of each depth against true ones, some rows of logits at a time."""
        loss = torch.zeros((), device=true.device)
        for start in range(0, len(true), _CHUNK):
            rows = slice(start, start + _CHUNK)
            with torch.no_grad():
                target = self._target_logits(true[rows])
            for features, weight in zip(expected, weights, strict=True):
                loss = loss + self._part(features[rows], target, weight[rows], temperature)
        return loss

    def _part(self, features: Tensor, target: Tensor, weight: Tensor, temperature: float) -> Tensor:
        """The loss of some rows. Objectives without a kernel would hold several laws of each: these are made again when
        gradients are taken."""

        def loss(features: Tensor) -> Tensor:
            draft = self.head.logits(features)
            return acceptance_loss(draft, target, weight, temperature, self.course.objective)[0]

        if self.course.objective == "overlap":
            return loss(features)
        again: Tensor = checkpoint(loss, features, use_reentrant=False, preserve_rng_state=False)
        return again

    def _last(self, batch: Batch) -> Tensor:
        """(B, T, H): what entered the output layer."""
        return batch.features[..., : self.target.width]

    def _target_logits(self, features: Tensor) -> Tensor:
        output: Any = self.target.head
        config = self.target.model.config.get_text_config(decoder=True)
        return finished(output(features.to(output.weight.dtype)), config)

    @torch.no_grad()
    def acceptance(self, held: Corpus, depths: int, temperature: float = 1.0) -> list[float]:
        """Σ min(target, draft) by depth on held-out texts."""
        sums, counts = [0.0] * depths, [0] * depths
        for group in held.groups(self.course.budget, random.Random(0)):
            batch = held.batch(torch.tensor(group, device=held.device), held.width(group))
            for depth, features in enumerate(self._expected(batch, depths)):
                where = batch.counted(depth + 1)
                draft, target = self.head.logits(features[where]), self._target_logits(self._last(batch)[where])
                p, q = ((x.float() / temperature).softmax(-1) for x in (target, draft))
                sums[depth] += float(torch.minimum(p, q).sum())
                counts[depth] += int(where.sum())
        return [total / max(1, count) for total, count in zip(sums, counts, strict=True)]

    def _report(self, held: Corpus, losses: list[float]) -> Report:
        known = [loss for loss in losses if not math.isnan(loss)]
        state = self.progress
        found = Report(
            state.step,
            state.seconds,
            state.tokens,
            sum(known) / max(1, len(known)),
            self.acceptance(held, self.head.deepest or max(self.course.depths, 6)),
            state.seconds * (1 / self._done - 1),
        )
        state.curve.append(found.as_data())
        return found

    def save(self, path: Path) -> None:
        """Everything that is needed to go on, atomically."""
        part = path.with_suffix(".part")
        data = {
            "head": self.head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "progress": asdict(self.progress),
        }
        torch.save(data, part)
        part.replace(path)

    def load(self, path: Path) -> None:
        """Go on where a checkpoint was made."""
        data = torch.load(path, map_location=self.target.device, weights_only=True)
        self.head.load_state_dict(data["head"])
        for optimizer, held in zip(self.optimizers, data["optimizers"], strict=True):
            optimizer.load_state_dict(held)
        self.progress = _Progress(**data["progress"])
