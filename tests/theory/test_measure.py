"""Theory on generated text with a small real model: the observations are those of generation, and figures are right."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, T5Config, T5ForConditionalGeneration

from spectr.coins import SeededCoins
from spectr.data.prompts import Prompt
from spectr.draft.adaptive import replanned
from spectr.draft.options import DraftOptions
from spectr.draft.plan import Plan
from spectr.engine import Engine, Request
from spectr.errors import ArgumentError
from spectr.lm import load
from spectr.pairing import pair
from spectr.policy import Policy
from spectr.theory.measure import MOST_DRAFTS, LoadedPair, Study, measure, record_nothing, record_ranks
from spectr.theory.report import Counts, Findings, OverAccepting, observed_tokens, predicted_tokens
from spectr.theory.watch import Nodes, VisitedNodes, _Texts, watch
from spectr.transport.laws import overlap, total_variation
from spectr.verify import rule

Folders = tuple[Path, Path]
LENGTH = 3
PROMPTS = [
    Prompt("the tide", "sea"),
    Prompt("the tide goes out", "sea"),
    Prompt("and", "land"),
    Prompt("comes in", "land"),
]


def silent(_: str) -> None:
    pass


@pytest.fixture(scope="module")
def study(folders: Folders) -> Study:
    return Study(
        str(folders[0]), str(folders[1]), PROMPTS * 3, "of the test", length=LENGTH, tokens=20, contexts=40, nodes=(6,),
        epsilons=(0.0, 0.2), device="cpu",
    )  # fmt: skip


@pytest.fixture(scope="module")
def found(study: Study) -> dict[str, Any]:
    return measure(study, silent)


@pytest.mark.parametrize("rows", [1, 2, 4])
def test_what_is_seen_is_what_was_generated(folders: Folders, rows: int) -> None:
    """Laws equal the model's own forward pass on the finished texts, and every token of a text is observed once."""
    lm = load(str(folders[0]), "none", device="cpu")
    drafter = pair(str(folders[1]), lm.opened, rule("speculative").card, DraftOptions(drafts=1, length=LENGTH))
    engine = Engine(lm.opened.target, drafter, rule("speculative"), lm.opened.stops)
    lengths = {"the tide": 5, "and": 15, "the tide goes out": 9, "comes in": 12}  # so that texts change places
    requests = [
        Request(lm.encode(text), seed, length, Policy(0.8)) for seed, (text, length) in enumerate(lengths.items())
    ]
    texts = [result.tokens for result in engine.generate(requests)]
    seen: list[VisitedNodes] = []

    def recorder(one: VisitedNodes) -> dict[str, torch.Tensor]:
        seen.append(one)
        logs = one.target.gather(-1, one.token[:, None]).squeeze(-1).log()
        return {"token": one.token, "log": logs, "gap": total_variation(one.target, one.draft)}

    nodes = watch(engine.with_parts(rows=rows), requests, recorder)
    for number, (request, text) in enumerate(zip(requests, texts, strict=True)):
        mine = nodes["text"] == number
        tokens = nodes["token"][mine].astype(int).tolist()
        assert tokens[: len(text)] == text  # and what was decided beyond the end
        whole = torch.tensor([[*request.prompt, *text]])
        logits = lm.opened.target.model(whole).logits[0, len(request.prompt) - 1 : -1] / 0.8
        meant = logits.log_softmax(-1).gather(-1, torch.tensor(text)[:, None]).squeeze(-1)
        assert nodes["log"][mine][: len(text)].tolist() == pytest.approx(meant.tolist(), abs=1e-4)
    assert nodes.emitted.tolist() == [len(text) for text in texts]
    assert nodes.calls.sum() == sum(int((one.depth == 0).sum()) for one in seen)
    assert set(nodes["depth"]) <= set(range(LENGTH + 1))
    assert (nodes["gap"][~nodes.judged] == 0).all()
    assert not nodes.judged[nodes["depth"] == LENGTH].any()
    assert nodes.judged[nodes["depth"] < LENGTH].all()


def test_nothing_after_the_end_of_a_text_is_seen(folders: Folders) -> None:
    """Tokens that end a text are made common; no token after them is observed."""
    lm = load(str(folders[0]), "none", device="cpu")
    drafter = pair(str(folders[1]), lm.opened, rule("speculative").card, DraftOptions(drafts=1, length=LENGTH))
    stops = frozenset(range(0, 280, 3))
    engine = Engine(lm.opened.target, drafter, rule("speculative"), stops)
    requests = [Request(lm.encode("the tide"), seed, 30) for seed in range(12)]
    nodes = watch(engine, requests, lambda one: {"token": one.token})
    for number in range(12):
        tokens = nodes["token"][nodes["text"] == number].astype(int).tolist()
        assert [token in stops for token in tokens[:-1]] == [False] * (len(tokens) - 1)
        assert len(tokens) == nodes.emitted[number] or tokens[-1] not in stops


def test_total_variation_and_rejections(found: dict[str, Any]) -> None:
    """Counted rejections are a sum of coins with the stated probabilities; five deviations are a false-alarm rate of
    1e-6."""
    assert list(found["domains"]) == ["sea", "land", "all"]
    for domain in found["domains"].values():
        one = domain["one_draft"]
        assert len(one["total_variation_by_depth"]) == LENGTH
        assert all(0 < gap["value"] < 1 for gap in one["total_variation_by_depth"])
        rejections = one["rejections"]
        assert abs(rejections["counted"] - rejections["expected"]) < 5 * rejections["error"]
        assert rejections["deviation"] == pytest.approx(
            (rejections["counted"] - rejections["expected"]) / rejections["error"]
        )
    whole, parts = found["domains"]["all"], [found["domains"][name] for name in ("sea", "land")]
    assert whole["texts"] == sum(part["texts"] for part in parts) == 12
    assert whole["judged"] == sum(part["judged"] for part in parts)


def test_acceptance_against_k(found: dict[str, Any]) -> None:
    for domain in found["domains"].values():
        curves = domain["one_draft"]["acceptance_by_drafts"]
        assert curves["contexts"] >= 10
        values = {name: [one["value"] for one in curve] for name, curve in curves.items() if name != "contexts"}
        assert {len(curve) for curve in values.values()} == {MOST_DRAFTS}
        for name, curve in values.items():
            assert curve == sorted(curve), name
        order = ("recursive", "kseq", "kseq_plus", "optimal")
        for k in range(MOST_DRAFTS):
            chain = [values[name][k] for name in order]
            assert chain == pytest.approx(sorted(chain), abs=1e-9)
        first = {name: values[name][0] for name in (*order, "maximal")}
        assert list(first.values()) == pytest.approx([first["maximal"]] * 5, abs=1e-6)


@pytest.mark.parametrize("way", ["one_draft", "race"])
def test_tokens_per_call_are_as_predicted(found: dict[str, Any], way: str) -> None:
    """Predictions hold on other texts, within five combined standard errors."""
    estimates = found["domains"]["all"][way]["tokens_per_call"]
    assert abs(estimates["deviation"]) < 5
    assert estimates["predicted"]["value"] > 1.2
    assert estimates["cut"]["value"] <= estimates["observed"]["value"] + 1e-9


def test_the_race_by_ranks(found: dict[str, Any]) -> None:
    for domain in found["domains"].values():
        race = domain["race"]
        children = [one["value"] for one in race["acceptance_by_children"]]
        assert children == sorted(children)
        assert race["one_child"]["value"] == pytest.approx(children[0], abs=0.25)
        (tree,) = race["trees"]
        assert 1 <= tree["best_static"] <= tree["rank_bound"] + 1e-9
        assert 1 <= tree["observed"]["value"] <= 6
        assert race["rank_entropy"] > 0


def test_over_acceptance(found: dict[str, Any]) -> None:
    rows = {(row["epsilon"], row["after"]): row for row in found["lossy"]}
    assert list(rows) == [(0.0, "opt"), (0.0, "uno"), (0.2, "opt"), (0.2, "uno")]
    assert rows[0.0, "opt"]["bias"]["value"] == pytest.approx(0, abs=1e-6)
    assert rows[0.0, "uno"]["bias"]["value"] > 0.01
    for after in ("opt", "uno"):
        assert rows[0.2, after]["rejected"]["value"] < rows[0.0, after]["rejected"]["value"]
        assert rows[0.2, after]["bias"]["value"] > rows[0.0, after]["bias"]["value"]
    for row in rows.values():
        error = math.hypot(row["rejected"]["error"], row["expected"]["error"])
        assert abs(row["rejected"]["value"] - row["expected"]["value"]) < 5 * error
        assert row["score"]["value"] < 0


def test_the_record_is_plain_and_names_no_place(found: dict[str, Any], study: Study) -> None:
    text = json.dumps(found, allow_nan=False)
    assert str(Path(study.target).parent) not in text
    assert found["prompts"] == {"source": "of the test", "count": 12}
    assert (found["length"], found["tokens"], found["dtype"]) == (LENGTH, 20, "float32")


@pytest.mark.slow
def test_predictions_have_no_bias(folders: Folders) -> None:
    """Four times sixty texts of the race, each against sixty others: the mean of four deviations has a standard
    error of one half, and 2 is four of them, a false alarm of 6e-5; seeds are fixed."""
    off = []
    for seed in range(4):
        asked = Study(
            str(folders[0]), str(folders[1]), PROMPTS * 15, length=LENGTH, tokens=10, nodes=(), epsilons=(), contexts=1,
            seed=10_000 * seed, device="cpu",
        )  # fmt: skip
        bench = LoadedPair.ready(asked, silent)
        laws = bench.watched(rule("race"), "race", 0, record_ranks)
        counts = bench.watched(rule("race"), "race", 1, record_nothing)
        predicted = predicted_tokens(laws)
        off.append(observed_tokens(counts).off(predicted.value, predicted.error))
    assert abs(float(np.mean(off))) < 2


def test_an_encoder_decoder_model(tmp_path: Path, folders: Folders) -> None:
    torch.manual_seed(5)
    config = T5Config(
        vocab_size=280, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, eos_token_id=1, pad_token_id=0,
        decoder_start_token_id=0,
    )  # fmt: skip
    T5ForConditionalGeneration(config).save_pretrained(tmp_path)
    AutoTokenizer.from_pretrained(folders[0]).save_pretrained(tmp_path)
    study = Study(str(tmp_path), "ngram", PROMPTS[:2], length=2, tokens=6, nodes=(4,), epsilons=(), device="cpu")
    found = measure(study, silent)
    assert found["domains"]["all"]["judged"] > 0


@pytest.mark.parametrize("drafter", ["ngram", "early_exit", "random"])
def test_other_drafters_with_laws(folders: Folders, drafter: str) -> None:
    layers = 1 if drafter == "early_exit" else None
    small = Study(
        str(folders[0]), drafter, PROMPTS[:2], layers=layers, length=2, tokens=6, nodes=(), epsilons=(), device="cpu"
    )
    found = measure(small, silent)
    assert list(found["domains"]) == ["sea", "all"]
    assert found["lossy"] == found["domains"]["all"]["race"]["trees"] == []
    assert found["domains"]["all"]["one_draft"]["rejections"]["expected"] > 0


@pytest.mark.parametrize("drafter", ["lookup", "none", "lookup+ngram"])
def test_drafters_without_laws_are_refused(drafter: str) -> None:
    with pytest.raises(
        ArgumentError, match=f"drafter '{drafter}' proposes tokens without one; use ngram".replace("+", r"\+")
    ):
        measure(Study("never loaded", drafter), silent)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"prompts": ()}, "prompts must not be empty"),
        ({"length": 0}, "length must be at least 1"),
        ({"nodes": (1,)}, "nodes must be at least 2"),
        ({"epsilons": (-1.0,)}, "epsilon must be at least 0"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_loaded(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError, match=sentence):
        measure(Study("never loaded", **change), silent)


def nodes_of(text: list[int], **columns: list[float]) -> Nodes:
    whole = {"text": text, **columns}
    calls = np.array([2.0, 1.0])
    return Nodes({name: np.asarray(values, dtype=float) for name, values in whole.items()}, calls, 2 * calls)


def test_numbers_by_hand() -> None:
    """Two texts, two calls and one; depth 1 reached three times, depth 2 once: the other draft that was kept ended its
    text."""
    base = {"depth": [0, 1, 0, 0], "judged": [1, 1, 1, 1], "kept": [1, 0, 0, 1]}
    curves = [[float("nan")] * 96, [0.5] * 96, [float("nan")] * 96, [0.7] * 96]
    laws = nodes_of([0, 0, 0, 1], **base, accept=[0.8, 0.5, 0.2, 0.6], gap=[0.2, 0.5, 0.8, 0.4])
    laws = Nodes({**laws.columns, "curves": np.array(curves)}, laws.calls, laws.emitted)
    ranks = nodes_of([0, 0, 0, 1], **base, accept=[0.5, 0.5, 0.5, 0.5], rank=[0, 1, 2, 0])
    tree = Counts(np.array([6.0, 3.0]), np.array([2.0, 1.0]))
    found = Findings(["a", "b"], np.array([0.0, 1.0]), (laws, laws), (ranks, ranks), {4: tree}).as_data(10)["all"]
    one = found["one_draft"]
    first, second = (0.8 + 0.2 + 0.6) / 3, 0.5 / 2
    assert one["tokens_per_call"]["predicted"]["value"] == pytest.approx(1 + first + first * second)
    assert one["tokens_per_call"]["observed"]["value"] == pytest.approx(1 + 2 / 3)
    assert one["tokens_per_call"]["cut"]["value"] == 2
    assert [gap["value"] for gap in one["total_variation_by_depth"]] == pytest.approx([1.4 / 3, 0.5])
    assert one["rejections"]["expected"] == pytest.approx(1.9)
    assert one["rejections"]["counted"] == 2
    assert one["rejections"]["error"] == pytest.approx(math.sqrt(0.16 + 0.25 + 0.16 + 0.24))
    assert one["acceptance_by_drafts"]["contexts"] == 2
    assert one["acceptance_by_drafts"]["kseq"][3]["value"] == pytest.approx(0.6)
    race = found["race"]
    assert [one["value"] for one in race["acceptance_by_children"]][:3] == [0.5, 0.75, 1.0]
    assert race["rank_entropy"] == pytest.approx(1.5 * math.log(2) + 2 / 8)
    assert race["trees"][0]["observed"]["value"] == 3
    assert race["trees"][0]["best_static"] == pytest.approx(1 + 0.5 + 0.25 + 0.25)


def test_sums_and_parts() -> None:
    calls = np.array([2.0, 1.0, 2.0, 1.0])
    columns = {"text": [0, 1, 1, 2, 3, 3], "judged": [1, 0, 1, 1, 0, 1], "depth": [0, 1, 2, 0, 1, 2]}
    four = Nodes({name: np.asarray(values, dtype=float) for name, values in columns.items()}, calls, calls)
    assert four.by_text(four["depth"]).tolist() == [0, 3, 0, 3]
    assert four.by_text(four["depth"], four.judged).tolist() == [0, 2, 0, 2]
    part = four.of(np.array([False, True, False, True]))
    assert part["text"].tolist() == [0, 0, 1, 1]
    assert part.calls.tolist() == [1, 1]


def test_a_text_that_has_ended_is_not_looked_at() -> None:
    """A row that ended in the step before may take part once more: at its limit, or with a stop token that was
    generated; one at the end of a prompt ends nothing."""
    texts = _Texts([Request([7, 2], 11, 5), Request([3], 12, 5)], frozenset({2}))
    seed, committed = torch.tensor([12, 11, 11, 11]), torch.tensor([6, 2, 3, 3])
    coins = SeededCoins(seed, committed)
    assert texts.of(coins).tolist() == [1, 0, 0, 0]
    assert texts.are_going(coins, torch.tensor([4, 2, 2, 5])).tolist() == [False, True, False, True]


def test_columns_of_over_acceptance() -> None:
    eased = OverAccepting(0.1, "opt", nodes_of([0, 1], judged=[1, 1], kept=[1, 0], depth=[0, 0], rejected=[0.2, 0.4],
                                       bias=[0.1, 0.1], score=[-1, -3])).as_data()  # fmt: skip
    assert eased["rejected"]["value"] == 0.5
    assert eased["expected"]["value"] == pytest.approx(0.3)
    assert eased["score"]["value"] == -2


def test_overlap_is_what_is_judged_by(folders: Folders) -> None:
    """The plan of a run is the study's chain, whatever plan the drafter was made with."""
    lm = load(str(folders[0]), "none", device="cpu")
    drafter = pair(str(folders[1]), lm.opened, rule("race").card, DraftOptions())
    assert drafter.siblings == "race"
    other = replanned(drafter, Plan("iid", 1, 5))
    assert (other.siblings, other.plan.length, drafter.siblings) == ("iid", 5, "race")
    engine = Engine(lm.opened.target, other, rule("speculative"), lm.opened.stops)
    requests = [Request(lm.encode("and"), 3, 8)]
    nodes = watch(engine, requests, lambda one: {"accept": overlap(one.target, one.draft)})
    assert int(nodes["depth"].max()) <= 5
    with pytest.raises(ArgumentError, match="must have different seeds, got 1 for 2 requests"):
        watch(engine, requests * 2, record_nothing)
