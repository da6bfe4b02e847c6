"""An error of one request ends only that request, and an error of the engine ends all; bad requests are refused."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.asking import LetterReader, Stepped
from tests.contracts.conftest import SIZE
from tests.contracts.ways import LONG, WAYS, Way, asked, refuses_at, same, ways
from transformers import PreTrainedModel

from spectr.engine import Engine, Request, Result
from spectr.errors import ArgumentError, LawError, MismatchError
from spectr.models.target import Target
from spectr.policy import Policy


def ends_at(length: int) -> Callable[[list[int]], list[int] | None]:
    return lambda text: [] if len(text) == length else None


def breaks_at(length: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    def processor(ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if ids.shape[1] == length:
            raise ZeroDivisionError("in a processor")
        return scores

    return processor


def narrows_at(length: int) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    return lambda ids, scores: scores[:, :3] if ids.shape[1] == length else scores


FAULTS: dict[str, tuple[Policy, type[Exception]]] = {
    "hook": (Policy(allowed=refuses_at(12)), KeyError),
    "grammar": (Policy(allowed=ends_at(12)), ArgumentError),
    "processor": (Policy(processors=[breaks_at(12)]), ZeroDivisionError),
    "shape": (Policy(processors=[narrows_at(12)]), ArgumentError),
    "settings": (Policy(suppress_tokens=range(SIZE)), ArgumentError),
    "words": (Policy(bad_words=[[token] for token in range(SIZE)], presence_penalty=1.0), ArgumentError),
}
HOOKED = Policy(0.8, allowed=lambda text: [token for token in range(SIZE) if (token + text[-1]) % 4])


@pytest.mark.parametrize("fault", FAULTS)
@ways("optimal-ngram")
def test_an_error_of_one_request_ends_that_request_only(
    way: Way, fault: str, build: Callable[..., Engine], alone: Callable[..., list[Result]]
) -> None:
    """The request keeps its tokens so far; other requests, with and without hooks, are not affected."""
    if way.late:
        pytest.skip("hooks run on the host, where steps are read without delay")
    policy, error = FAULTS[fault]
    neighbours = [*asked()[:5], Request([3, 4], 9, 20, HOOKED), Request([1, 2, 3], 10, 20, HOOKED)]
    want = alone(way, neighbours, "hooked")
    stepped = Stepped(build(way))
    handles = [stepped.submit(request) for request in neighbours]
    stepped.turn(1)
    bad = [stepped.submit(Request([3, 4, 5], seed, 30, policy)) for seed in (1, 2)]
    stepped.turn(1)
    with pytest.raises(error):
        stepped.finish(bad)
    for handle in bad:
        with pytest.raises(error):
            handle.result(timeout=0)
        assert handle.so_far.finish_reason == "error"
    same(stepped.finish(handles), want)
    same(stepped.finish([stepped.submit(request) for request in neighbours]), want)


class Overflowing(Target):
    """A target whose logits after the last token of the vocabulary are NaN."""

    def score(self, session: Any, tokens: torch.Tensor, *others: Any, **options: Any) -> torch.Tensor:
        logits = super().score(session, tokens, *others, **options)
        return torch.where((tokens == SIZE - 1)[..., None], torch.nan, logits)


@ways("race-lookup", "optimal-feature-late")
def test_logits_that_are_not_finite(
    way: Way, net: PreTrainedModel, build: Callable[..., Engine], alone: Callable[..., list[Result]]
) -> None:
    """Logits that are not finite are an error only if the text itself reaches them; drafts may reach them."""
    never = {SIZE - 1: -math.inf}
    healthy = [Request(LONG[:11], row, 20, Policy(logit_bias=never, top_k=row)) for row in range(4)]
    want = alone(way, healthy, "healthy")
    stepped = Stepped(build(way, Overflowing(net)))
    handles = [stepped.submit(request) for request in healthy]
    failing = [stepped.submit(Request([2, 3], seed, 40, Policy(2.0, logit_bias={SIZE - 1: 2.0}))) for seed in (1, 2)]
    while stepped.turn():
        pass
    same(stepped.finish(handles), want)
    for handle in failing:
        with pytest.raises(LawError, match="NaN or infinite"):
            handle.result(timeout=0)


@ways("race-lookup", "kseq-model-late")
def test_logits_that_are_not_finite_beyond_the_end(
    way: Way, net: PreTrainedModel, build: Callable[..., Engine]
) -> None:
    """A text that ends with a stop string is no error, although the logits after its end are not finite."""
    last = chr(ord("a") + SIZE - 1)
    requests = [Request(LONG[:11], row, 40, Policy(2.0), reader=LetterReader(last)) for row in range(6)]
    results = build(way, Overflowing(net)).generate(requests)
    assert [result.finish_reason for result in results] == ["stop"] * 6
    assert all(result.tokens.index(SIZE - 1) == len(result.tokens) - 1 for result in results)


@ways("kseq-model-late")
def test_an_error_of_the_engine_ends_all_requests(
    way: Way, build: Callable[..., Engine], meant: Callable[[Way], list[Result]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends all running and waiting requests; afterwards the engine works again."""
    want, engine = meant(way), build(way, rows=3)
    engine.generate([Request(LONG, 1, 9)])

    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("the device is gone")

    stepped = Stepped(engine)
    handles = [stepped.submit(request) for request in asked()]
    stepped.turn(2)
    with monkeypatch.context() as broken:
        broken.setattr(engine.target, "score", fails)
        stepped.turn()
    for handle in handles:
        with pytest.raises(RuntimeError, match="the device is gone"):
            handle.result(timeout=0)
    assert not stepped.turn()
    same(stepped.finish([stepped.submit(request) for request in asked()]), want)
    with monkeypatch.context() as broken:
        broken.setattr(engine.target, "score", fails)
        with pytest.raises(RuntimeError, match="the device is gone"):
            engine.generate(asked())
    same(engine.generate(asked()), want)


def test_bad_requests_are_refused_at_once(build: Callable[..., Engine], meant: Callable[[Way], list[Result]]) -> None:
    """`submit` refuses bad requests with an error and does not queue them; other requests are not affected."""
    engine = build(WAYS[4])
    handles = [engine.submit(request) for request in asked()]
    bad: list[tuple[type[Exception], Request]] = [
        (ArgumentError, Request([])), (ArgumentError, Request([SIZE])), (ArgumentError, Request([-1])),
        (ArgumentError, Request([1], 0, 256)), (ArgumentError, Request([1], 0, 3, generated=[1, 2, 3])),
        (ArgumentError, Request([1], generated=[SIZE])), (ArgumentError, Request([1], policy=Policy(bad_words=[[99]]))),
        (ArgumentError, Request([1], logprobs=-1)), (ArgumentError, Request([1], prompt_logprobs=-1)),
        (ArgumentError, Request([1], 1.5)),  # type: ignore[arg-type]
        (MismatchError, Request([1], source=[1, 2])),
    ]  # fmt: skip
    for error, request in bad:
        with pytest.raises(error):
            engine.submit(request)
    same([handle.result() for handle in handles], meant(WAYS[4]))
