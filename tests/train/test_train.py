"""Training: the objective against autograd, the features against drafting, and a head that learns and is restored."""

from typing import Any

import pytest
import torch
from tests.tiny import llama
from transformers import PreTrainedModel

from spectr.draft import Plan, drafter
from spectr.errors import ArgumentError
from spectr.models.depths import expected_features
from spectr.models.head import head_of
from spectr.models.target import Target
from spectr.policy import History
from spectr.train.corpus import Corpus
from spectr.train.loop import Course, Trainer
from spectr.train.objective import OBJECTIVES, acceptance_loss, overlap_gradient
from spectr.train.samples import Sampling, Text, sample
from spectr.types import Opening, Scene

SIZE = 40


@pytest.fixture(scope="module")
def net() -> PreTrainedModel:
    return llama(3, SIZE, 3, dtype=torch.float32)


def texts(count: int = 6) -> list[Text]:
    generator = torch.Generator().manual_seed(1)
    made = [torch.randint(3, SIZE, (9 + 2 * at,), generator=generator).tolist() for at in range(count)]
    return [Text(tokens, 4) for tokens in made]


def test_gradient_of_the_overlap() -> None:
    generator = torch.Generator().manual_seed(0)
    draft, target = (2 * torch.randn(7, 50, generator=generator, dtype=torch.float64) for _ in range(2))
    weight = torch.rand(7, generator=generator)
    logits = draft.clone().requires_grad_()
    q, p = (logits / 0.7).softmax(-1), (target / 0.7).softmax(-1)
    loss = ((1 - torch.minimum(p, q).sum(-1) - 0.1 * (p * q.log()).sum(-1)) * weight).sum()
    loss.backward()
    overlap, _, grad = overlap_gradient(draft, target, weight, 1 / 0.7)
    assert torch.allclose(grad.double(), logits.grad, atol=1e-6)
    assert torch.allclose(overlap.double(), torch.minimum(p, q).sum(-1), atol=1e-6)
    again = draft.clone().requires_grad_()
    found, _ = acceptance_loss(again, target, weight, 0.7, "overlap")
    found.backward()
    assert found.item() == pytest.approx(loss.item(), abs=1e-5)
    assert torch.allclose(again.grad, logits.grad, atol=1e-6)


def test_gradient_of_the_overlap_on_some_tokens() -> None:
    """The target's probabilities of the drafted tokens are those among all tokens, and sum to less than 1."""
    generator = torch.Generator().manual_seed(0)
    draft, target = (2 * torch.randn(7, size, generator=generator, dtype=torch.float64) for size in (30, 50))
    weight, some = torch.rand(7, generator=generator), torch.randperm(50, generator=generator)[:30]
    logits, normalizers = draft.clone().requires_grad_(), (target / 0.7).logsumexp(-1)
    q, p = (logits / 0.7).softmax(-1), (target / 0.7).softmax(-1)[:, some]
    overlap = torch.minimum(p, q).sum(-1)
    loss = ((1 - overlap - 0.1 * (p * q.log()).sum(-1)) * weight).sum()
    loss.backward()
    again = draft.clone().requires_grad_()
    found, shared = acceptance_loss(again, target[:, some], weight, 0.7, "overlap", normalizers)
    found.backward()
    assert found.item() == pytest.approx(loss.item(), abs=1e-5)
    assert torch.allclose(shared.double(), overlap, atol=1e-6)
    assert torch.allclose(again.grad, logits.grad, atol=1e-6)
    with pytest.raises(ArgumentError, match="race needs all tokens"):
        acceptance_loss(again, target[:, some], weight, 0.7, "race", normalizers)


@pytest.mark.parametrize("partial", [False, True])
def test_the_kernel_equals_the_plain_objective(partial: bool) -> None:
    pytest.importorskip("triton")
    from spectr.kernels.acceptance import fused_acceptance

    generator = torch.Generator().manual_seed(0)
    draft, target = (2 * torch.randn(3, 5000, generator=generator) for _ in range(2))
    weight = torch.rand(3, generator=generator)
    normalizers = (1.5 * target).logsumexp(-1) + 0.2 if partial else None
    overlap, cross, grad = overlap_gradient(draft, target, weight, 1.5, normalizers)
    written = draft.clone()
    found = fused_acceptance(written, target, weight, 1.5, 0.1, normalizers)
    assert torch.allclose(found[0], overlap, atol=1e-5)
    assert torch.allclose(found[1], cross, atol=1e-4)
    assert torch.allclose(written, grad, atol=1e-6)


def test_a_bad_batch_does_not_destroy_the_head(net: PreTrainedModel) -> None:
    """A text whose features are not finite changes no weight, and the other texts still train the head."""
    target, head = Target(net), head_of(net, 1)
    corpus = Corpus(texts(), torch.device("cpu"), head.shape.feature_layers)
    corpus.compute_features(target, 40)
    assert corpus.features is not None
    corpus.features[: len(texts()[0].tokens)] = torch.nan
    trainer = Trainer(head, target, Course(depths=2, warm_up=1, budget=40))

    def change(text: int) -> float:
        before = [weights.detach().clone() for weights in head.parameters()]
        trainer._step(corpus, [text], 1.0)
        return max(float((now.detach() - old).abs().max()) for now, old in zip(head.parameters(), before, strict=True))

    assert change(1) > 0
    trainer.optimizers[0].state.clear()  # no momentum and no weight decay: what is left comes from the bad text
    trainer.optimizers[1].state.clear()
    for optimizer in trainer.optimizers:
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0
    assert change(0) == 0
    assert change(2) > 0
    assert all(bool(torch.isfinite(weights).all()) for weights in head.parameters())


def test_features_of_a_corpus_are_those_of_drafting(net: PreTrainedModel) -> None:
    """Features of texts of different lengths are causal and equal to those of drafting."""
    target, corpus = Target(net), Corpus(texts(), torch.device("cpu"), (0,))
    corpus.compute_features(target, 40)
    assert corpus.features is not None
    assert corpus.features.shape[1] == 2 * target.width
    begin = 0
    for text in texts():
        session = target.open(1, 40, feature_layers=(0,))
        target.read(session, [text.tokens])
        meant = target.features_at(session, torch.arange(len(text.tokens))[None])[0]
        found = corpus.features[begin : begin + len(text.tokens)]
        begin += len(text.tokens)
        assert torch.allclose(found, meant, atol=1e-4)


@pytest.mark.parametrize("light", [False, True])
def test_what_is_trained_is_what_is_drafted(net: PreTrainedModel, light: bool) -> None:
    """The features of three depths in training equal those of drafting a chain, after steps of all lengths."""
    target, head = Target(net), head_of(net, 2, light=light)
    with torch.no_grad():
        for weights in head.parameters():
            if weights.dim() > 1:
                weights.normal_(0, 0.2)
    tokens = texts()[5].tokens
    corpus = Corpus([Text(tokens, 4)], torch.device("cpu"), head.shape.feature_layers)
    corpus.compute_features(target, 100)
    batch = corpus.batch(torch.tensor([0]), len(tokens))
    with torch.no_grad():
        meant = expected_features(head, batch.tokens, batch.features, 3)
    layers = head.shape.feature_layers
    assert len(layers) == 1
    session = target.open(1, 60, feature_layers=layers)
    target.read(session, [tokens[:4]])
    made = drafter(
        "feature", head=Target(head), target=target, plan=Plan("race", tree=(1, 1, 1)), feature_layers=layers
    )
    drafting = made.open(Opening(1, 50, SIZE, session))
    drafting.begin(0, tokens[:5], 50, None)
    drafting.read(0, [tokens[:4]], [0])
    at, one = 5, torch.ones(1)
    for accepted in (0, 2, 1, 3):
        forced: Any = Forced(tokens, at)
        written, root = History.of([tokens[:at]], SIZE), torch.tensor([tokens[at - 1]])
        drafting.propose(Scene(written, root, one > 0, forced, lambda x, _: x, lambda x, _: x, one, at))
        expected = drafting._predicted[0]  # type: ignore[attr-defined]
        for depth in range(3):
            assert torch.allclose(expected[depth], meant[depth][0, at - 1 + depth], atol=1e-4)
        target.read(session, [tokens[at - 1 : at + accepted]])
        drafting.keep(torch.tensor([[1, 2, 3][:accepted] + [-1] * (3 - accepted)]))
        at += accepted + 1


class Forced:
    """Coins that draw the tokens of the text."""

    def __init__(self, tokens: list[int], at: int) -> None:
        self.tokens, self.at = tokens, at

    def top_racers(self, logits: torch.Tensor, depth: torch.Tensor, count: int) -> torch.Tensor:
        return torch.tensor([[[self.tokens[self.at + int(depth[0, 0])]]]])


def sampled(target: Target, prompts: list[list[int]], how: Sampling) -> list[Text]:
    return [text for batch in sample(target, prompts, how) for text in batch]


def test_samples_have_the_law_of_the_target(net: PreTrainedModel) -> None:
    """First tokens of 4,000 answers, within six standard deviations for every token: a false-alarm rate of 10^-7."""
    target, count = Target(net), 4000
    found = sampled(target, [[5, 6, 7]] * count, Sampling((0.8,), (2,), 1000, frozenset({2})))
    with torch.no_grad():
        law = (net(torch.tensor([[5, 6, 7]])).logits[0, -1] / 0.8).softmax(-1)
    share = torch.bincount(torch.tensor([text.tokens[3] for text in found]), minlength=SIZE) / count
    assert bool(((share - law).abs() < 6 * (law * (1 - law) / count).sqrt() + 1e-3).all())
    assert all(text.start == 3 and len(text.tokens) in (4, 5) for text in found)


@torch.no_grad()
def test_the_acceptance_of_some_tokens_is_among_all(net: PreTrainedModel) -> None:
    """A head that drafts some tokens is measured against the target's probabilities among all tokens."""
    target, held = Target(net), Corpus(texts(), torch.device("cpu"), (0,))
    held.compute_features(target, 4000, temperatures=(0.7,))
    torch.manual_seed(0)
    head, some = head_of(net, 1, (0,)), torch.arange(5, SIZE, 2)
    head.borrow(net, some)
    trainer = Trainer(head, target, Course(depths=2, budget=800))
    found = trainer.acceptance(held, 1, 0.7)
    batch = held.batch(torch.arange(len(held.lengths)), max(held.lengths))
    where, q = batch.counted(1), head.logits(head.expected(batch.tokens, batch.features, 1)[0])
    p = (net(batch.tokens).logits / 0.7).softmax(-1)
    q = (q / 0.7).softmax(-1)  # other tokens stand a hundred below
    assert found[0] == pytest.approx(float(torch.minimum(p, q).sum(-1)[where].mean()), abs=1e-5)


@pytest.mark.parametrize(
    "objective", [pytest.param(name, marks=pytest.mark.slow if name == "overlap" else ()) for name in OBJECTIVES]
)
def test_a_head_learns(net: PreTrainedModel, objective: str, tmp_path: object) -> None:
    """Acceptance on held-out texts rises, and training continues from a checkpoint."""
    from pathlib import Path

    target = Target(net)
    drawn = sampled(target, [[3 + at % 30] for at in range(80)], Sampling((1.0,), (24,), 80, frozenset()))
    corpus, held = (Corpus(part, torch.device("cpu"), (0,)) for part in (drawn[:64], drawn[64:]))
    corpus.compute_features(target, 4000)
    held.compute_features(target, 4000)
    torch.manual_seed(0)
    trainer = Trainer(
        head_of(net, 1, (0,)), target, Course(999.0, 80, depths=2, objective=objective, warm_up=10, budget=800)
    )  # type: ignore[arg-type]
    before = trainer.acceptance(held, 3)
    path = Path(str(tmp_path)) / "checkpoint.pt"
    reports = list(trainer.run(corpus, held, lambda: trainer.save(path), every=2.0))
    assert all(after > first + 0.02 for first, after in zip(before, reports[-1].acceptance, strict=False))
    again = Trainer(head_of(net, 1, (0,)), target, Course(999.0, 80, depths=2, budget=800))
    again.load(path)
    assert again.progress == trainer.progress
    assert again.acceptance(held, 3) == pytest.approx(trainer.acceptance(held, 3), abs=1e-6)
    assert list(again.run(corpus, held, lambda: None)) == []
