"""Trains a drafter for a target: samples, features, training, a folder. An interrupted run continues where it
stopped."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from spectr.data.prompts import read_prompts, split, training
from spectr.errors import ArgumentError
from spectr.lm import LM, load
from spectr.models.blockwise import BlockwiseHead, blockwise_of
from spectr.models.borrowing import Borrowing
from spectr.models.head import head_of
from spectr.models.packed import unpacked
from spectr.models.published.eagle3 import Eagle3Head
from spectr.models.published.making import Written, eagle3_of, save_eagle3
from spectr.models.saving import save_tensors
from spectr.models.trained import Trained, fingerprint, is_drafter, load_for_training, save_drafter
from spectr.train.card import write_card
from spectr.train.corpus import Corpus
from spectr.train.loop import Course, Head, Report, Trainer
from spectr.train.samples import Sampling, Text, batches, sample

__all__ = ["FILES", "Distilling", "distil"]

Say = Callable[[str], None]
Bar = Callable[[str, float], AbstractContextManager[Callable[[float], None]]]
"""Maps a title and a total to a context that yields a function to call with the amount done."""

_WRITE_EVERY = 30.0  # seconds between writes of the answers so far
_HELD_OUT_SEED = 1 << 20  # added to the seed for held-out answers, so that they have noise of their own

FILES = {
    "begun_held_out.safetensors": "some held-out answers",
    "held_out.safetensors": "held-out answers",
    "begun_samples.safetensors": "some answers to train on",
    "samples.safetensors": "answers to train on",
    "checkpoint.pt": "a checkpoint of the training",
    "drafter.json": "a drafter",
    "config.json": "a drafter in speculators' format",
}
"""The files that a run writes into its folder, in this order. An interrupted run does not repeat finished parts."""


@contextmanager
def _no_bar(_title: str, _total: float) -> Iterator[Callable[[float], None]]:
    yield lambda _: None


@dataclass(frozen=True, slots=True)
class Distilling:
    """Settings of a training run."""

    target: str
    out: Path
    data: Path | None = None  # prompts; None: built-in ones
    prompts: int = 4000  # number of prompts, each answered once
    longest: tuple[int, ...] = (256,)  # maximum numbers of tokens of an answer, used by the batches in turn
    temperatures: tuple[float, ...] = (1.0, 1.0, 0.7)  # temperatures of the samples
    rows: int = 64  # texts sampled at once
    sampling_seconds: float = float("inf")  # in each run; prompts that are not answered by then are left out
    kind: str = "feature"  # or "light", "blockwise", or "eagle3", which other engines load too
    layers: int = 2  # layers of a feature head
    inner: int | None = None  # inner width of its layers; None: the target's
    vocabulary: int | None = None  # number of most frequent tokens that it learns and drafts; None: all
    bits: int = 6  # of each stored weight
    begin_with: Path | None = None  # a drafter for the same target to train further; its layers are kept
    course: Course = field(default_factory=Course)
    loading: dict[str, Any] = field(default_factory=dict)


def _prompts(how: Distilling, lm: LM) -> tuple[list[list[int]], list[list[int]]]:
    """Return token ids of training and held-out prompts, without prompts that are too long."""
    if how.data is None:
        prompts = training(how.prompts)
    else:
        own = read_prompts(how.data)
        prompts = [own[at % len(own)] for at in range(how.prompts)]
    room = min(lm.opened.target.context - max(how.longest), 512)
    encoded = [[lm.encode(prompt.text, raw=prompt.raw) for prompt in part] for part in split(prompts)]
    parts = [[ids for ids in part if len(ids) <= room] for part in encoded]
    if not parts[0] or not parts[1]:
        raise ArgumentError(f"prompts must have at most {room} tokens, and all of them are longer; give shorter ones")
    return parts[0], parts[1][:500]


def _packed(texts: Sequence[Text]) -> dict[str, Tensor]:
    return {
        "tokens": torch.tensor([token for text in texts for token in text.tokens], dtype=torch.int32),
        "lengths": torch.tensor([len(text.tokens) for text in texts], dtype=torch.int32),
        "starts": torch.tensor([text.start for text in texts], dtype=torch.int32),
    }


def _unpacked(data: dict[str, Tensor]) -> list[Text]:
    parts = data["tokens"].split(data["lengths"].tolist())
    return [Text(part.tolist(), start) for part, start in zip(parts, data["starts"].tolist(), strict=True)]


def _begun(path: Path, order: list[list[list[int]]]) -> list[list[Text]]:
    """Return the answered batches that an interrupted run left in a file; none if it was run with other settings, so
    that its batches were others."""
    if not path.exists():
        return []
    texts, found = iter(_unpacked(load_file(path))), list[list[Text]]()
    for prompts in order:
        batch = list(islice(texts, len(prompts)))
        if [text.tokens[: text.start] for text in batch] != prompts:
            return [] if batch else found
        found.append(batch)
    return found


def _answers(how: Distilling, lm: LM, held_out: bool, say: Say, bar: Bar) -> list[Text]:
    """Return the target's answers to the held-out prompts or to the others. They are sampled once and kept in a file;
    so are those of an interrupted run, which the next one completes."""
    name = "held_out.safetensors" if held_out else "samples.safetensors"
    path, begun, title = how.out / name, how.out / f"begun_{name}", FILES[name]
    if path.exists():
        return _unpacked(load_file(path))
    prompts = _prompts(how, lm)[held_out]
    seed = how.course.seed + (_HELD_OUT_SEED if held_out else 0)
    sampling = Sampling(how.temperatures, how.longest, how.rows, lm.opened.stops, how.sampling_seconds, seed)
    found = _begun(begun, batches(prompts, how.rows))
    with bar(f"sampling {title}", len(prompts)) as advance:
        advance(sum(map(len, found)))
        written = time.monotonic()
        for batch in sample(lm.opened.target, prompts, sampling, len(found)):
            found.append(batch)
            advance(len(batch))
            if time.monotonic() - written >= _WRITE_EVERY:
                save_tensors(begun, _packed(list(chain(*found))))
                written = time.monotonic()
    texts = list(chain(*found))
    say(f"sampled {sum(len(text.tokens) - text.start for text in texts):,} tokens of {title}")
    save_tensors(path, _packed(texts))
    begun.unlink(missing_ok=True)
    return texts


def _by_frequency(texts: Sequence[Text], size: int) -> Tensor:
    """Return all tokens, sorted by their frequency in the answers."""
    tokens = torch.tensor([token for text in texts for token in text.tokens[text.start :]])
    return torch.bincount(tokens, minlength=size).argsort(descending=True, stable=True)


def _learnt_tokens(how: Distilling, head: Head, texts: Sequence[Text], size: int) -> Tensor | None:
    """Return the tokens that the head learns, in increasing order; None: all. An eagle3 head learns all tokens, and
    those that it does not draft are left out of its file."""
    if how.vocabulary is None or how.vocabulary >= size or isinstance(head, Eagle3Head):
        return None
    return _by_frequency(texts, size)[: how.vocabulary].sort().values


def _sentence(report: Report) -> str:
    by_depth = " ".join(f"{value:.3f}" for value in report.acceptance)
    return (
        f"step {report.step}, {report.seconds:.0f} s, {report.left:.0f} s left, loss {report.loss:.3f}, acceptance of "
        f"one draft by depth on held-out texts: {by_depth}"
    )


def distil(how: Distilling, say: Say, bar: Bar = _no_bar) -> Trained:
    """Train a drafter in `how.out`; parts that an interrupted run finished are not repeated.

    The course's seed determines samples and weights; the caller's random generators are not changed."""
    if how.begin_with is not None and not is_drafter(how.begin_with):
        raise ArgumentError(f"--begin-with must be a folder that spectr train wrote, got {how.begin_with}")
    if how.vocabulary is not None and how.kind != "eagle3" and how.course.objective == "race":
        raise ArgumentError("the objective race needs all tokens; leave out --vocabulary, or use overlap")
    try:
        how.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ArgumentError(f"cannot make the folder {how.out}: {error.strerror or error}") from None
    with torch.random.fork_rng():
        torch.manual_seed(how.course.seed)
        return _distil(how, say, bar)


def _distil(how: Distilling, say: Say, bar: Bar) -> Trained:
    lm = load(how.target, "none", progress=say, **how.loading)
    target = lm.opened.target
    target.model.requires_grad_(False)
    net: Any = unpacked(target.model)  # gradients flow through its output layer
    begun = _head_that_may_not_fit(how, net)  # raises before the expensive sampling
    held = _answers(how, lm, True, say, bar)
    texts = _answers(how, lm, False, say, bar)
    head = begun or _new_head(how, net)
    some = _learnt_tokens(how, head, texts, target.vocabulary)
    if some is not None and isinstance(head, Borrowing):
        head.borrow(net, some.to(target.device))
    corpora = [Corpus(part, target.device, head.shape.feature_layers) for part in (texts, held)]
    temperatures = () if some is None else {1.0, *how.course.temperatures}
    with bar("reading the target's features", sum(corpus.tokens for corpus in corpora)) as advance:
        for corpus in corpora:
            corpus.compute_features(target, 4 * how.course.budget, advance, temperatures)
    say(f"{corpora[0].tokens:,} tokens in {len(texts):,} texts")
    trainer = Trainer(head, target, how.course)
    checkpoint = how.out / "checkpoint.pt"
    if checkpoint.exists():
        trainer.load(checkpoint)
        say(f"continuing at step {trainer.progress.step}")
    _train(trainer, corpora, checkpoint, say, bar)
    return _written(how, trainer, texts)


def _train(trainer: Trainer, corpora: Sequence[Corpus], checkpoint: Path, say: Say, bar: Bar) -> None:
    """Run the course to its end, and report progress."""
    behind = 0.0
    with bar("training", 1.0) as advance:

        def on_step(share: float) -> None:
            nonlocal behind
            advance(share - behind)
            behind = share

        for report in trainer.run(corpora[0], corpora[1], lambda: trainer.save(checkpoint), on_step=on_step):
            say(_sentence(report))


def _head_that_may_not_fit(how: Distilling, model: Any) -> Head | None:
    """Return a given head, or one whose format the target may not support; None if a head of any target is asked for.
    It is made before the sampling, so that an error costs no time."""
    if how.begin_with is not None:
        return load_for_training(how.begin_with, model, light=how.kind == "light")
    return eagle3_of(model) if how.kind == "eagle3" else None


def _new_head(how: Distilling, model: Any) -> Head:
    if how.kind == "blockwise":
        return blockwise_of(model, how.course.depths)
    return head_of(model, how.layers, light=how.kind == "light", inner=how.inner or 0)


def _written(how: Distilling, trainer: Trainer, texts: list[Text]) -> Trained:
    """Write the folder: weights, description, card."""
    training = {
        "course": asdict(how.course),
        "texts": len(texts),
        "tokens": sum(len(text.tokens) for text in texts),
        "temperatures": how.temperatures,
        "data": "built in" if how.data is None else how.data.name,
        "bits": how.bits,
        "begun_with": None if how.begin_with is None else how.begin_with.name,
        "curve": trainer.progress.curve,
    }
    head, order = trainer.head, _by_frequency(texts, trainer.target.vocabulary)
    kind = "blockwise" if isinstance(head, BlockwiseHead) else "eagle3" if isinstance(head, Eagle3Head) else "feature"
    mark = fingerprint(trainer.target.model)
    learnt = how.vocabulary if isinstance(head, Borrowing) and head.drafted is not None else None
    about = Trained(how.target, mark, head.as_data(), kind, how.vocabulary, learnt, training)
    if isinstance(head, Eagle3Head):
        names = trainer.target.model.config.architectures or [type(trainer.target.model).__name__]
        some = None if how.vocabulary is None else order[: how.vocabulary]
        save_eagle3(how.out, head, Written(how.target, tuple(names), how.course.depths), some)
    else:
        save_drafter(how.out, head, about, order, how.bits)
    write_card(how.out / "drafter_card.md", about)
    return about
