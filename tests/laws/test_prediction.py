"""The exact law of texts that are drafted from a prediction, by full enumeration through the drafting code.

Lookup and predictions draft fixed sets, so only the rule's decisions are random. The position in the prediction depends
on the text before, so several steps are enumerated, each text with its own drafting.
"""

import copy
from collections.abc import Iterator

import pytest
import torch

import spectr
from spectr.audit.decisions import ExactCoins, KnownCoins
from spectr.audit.step_law import LanguageModel, StepLaw
from spectr.audit.toys import CORNERS, Corner, toy_pair
from spectr.draft.lookup import Lookup
from spectr.draft.none import NoDrafter
from spectr.draft.prediction import PredictionDrafter, PredictionDrafting
from spectr.policy import History
from spectr.types import Draft, Drafter, Opening, Scene
from spectr.verify import Rule

PROMPT = (0, 1, 2, 0, 1)
INNER: dict[str, Drafter] = {"none": NoDrafter(), "lookup": Lookup(drafts=2, length=2, shortest=1)}
PREDICTIONS = [(0, 1, 2, 2), (2, 2), (1, 0, 1)]
SEEN, ROUNDING = 1e-3, 1e-12


def propose(drafting: PredictionDrafting, text: tuple[int, ...], size: int) -> Draft:
    root = torch.tensor([text[-1]])
    scene = Scene(History.of([list(text)], size), root, root >= 0, None, None, None, None, 99)  # type: ignore[arg-type]
    return drafting.propose(scene)


def logits_of(target: LanguageModel, draft: Draft, text: tuple[int, ...]) -> torch.Tensor:
    """Return the logits at every node, after the generated text and the node's path."""
    texts = [text]
    for token, parent in zip(draft.tokens[0, 1:].tolist(), draft.parents[0, 1:].tolist(), strict=True):
        texts.append((*texts[parent], token))
    return torch.stack([torch.as_tensor(target(one)) for one in texts])[None].log()


def outcomes(
    rule: Rule, logits: torch.Tensor, draft: Draft, length: int, known: KnownCoins
) -> Iterator[tuple[tuple[int, ...], float, KnownCoins]]:
    """Return the possible tokens of one step, with their probabilities and the coins that lead there."""
    work = [(known, 1.0)]
    while work:
        used, chance = work.pop()
        coins = ExactCoins(torch.tensor([length]), used)
        verdict = rule(logits, draft, coins)
        for _, branch, share in coins.branches:
            work += [(branch.rows(torch.tensor([at])), chance * float(part)) for at, part in enumerate(share)]
        path = [node for node in verdict.path[0].tolist() if node >= 0]
        tokens = (*draft.tokens[0, path].tolist(), int(verdict.bonus))
        after = coins.known.forget_before(torch.tensor([length + len(tokens)]))
        yield tokens, chance * float(coins.weight), after


def law_of_texts(rule: Rule, target: LanguageModel, drafting: PredictionDrafting, size: int, steps: int) -> StepLaw:
    """Return the law of the texts that `steps` steps generate after the prompt."""
    states = [((), 1.0, KnownCoins.none(1), drafting)]
    for _ in range(steps):
        found: list[tuple[tuple[int, ...], float, KnownCoins, PredictionDrafting]] = []
        for text, weight, known, own in states:
            draft = propose(own, (*PROMPT, *text), size)
            logits = logits_of(target, draft, text)
            for tokens, chance, after in outcomes(rule, logits, draft, len(text), known):
                found.append(((*text, *tokens), weight * chance, after, copy.deepcopy(own)))
        states = found  # type: ignore[assignment]
    chances: dict[tuple[int, ...], float] = {}
    for text, weight, _, _ in states:
        chances[text] = chances.get(text, 0.0) + weight
    return StepLaw(chances)


def opened(inner: str, prediction: tuple[int, ...], size: int, *, races: bool) -> PredictionDrafting:
    drafting = PredictionDrafter(INNER[inner], races).open(Opening(1, 99, size, None))
    drafting.begin(0, PROMPT, 99, None)
    drafting.set_prediction(0, [token % size for token in prediction], len(PROMPT))
    return drafting


CASES = [(corner, PREDICTIONS[at % 3], 3, 2) for at, corner in enumerate(CORNERS)]
MORE = [(corner, prediction, 2, 3) for corner in CORNERS for prediction in PREDICTIONS]


def is_quick(name: str, inner: str, case: tuple[Corner, tuple[int, ...], int, int]) -> bool:
    """Return whether a case is in the quick tier: three corners, of which the longest with one drafter per rule."""
    return case in CASES[1:3] or (case == CASES[0] and (name, inner) in (("race", "none"), ("match", "lookup")))


@pytest.mark.parametrize(
    ("name", "inner", "corner", "prediction", "size", "steps"),
    [
        pytest.param(name, inner, *case, marks=() if is_quick(name, inner, case) else pytest.mark.slow)
        for case in [*CASES, *MORE]
        for name in ("race", "match")
        for inner in INNER
    ],
)
def test_the_law_is_the_targets(
    name: str, inner: str, corner: Corner, prediction: tuple[int, ...], size: int, steps: int
) -> None:
    target, _ = toy_pair(corner, size, 4)
    drafting = opened(inner, prediction, size, races=name == "race")
    law = law_of_texts(spectr.rule(name), target, drafting, size, steps)
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    assert law.deviation(target) < ROUNDING
    if corner in ("plain", "temperature", "top_k"):
        assert law.expected_tokens > 1.02 * steps  # some drafts were accepted


@pytest.mark.parametrize("name", ["race", "match"])
def test_a_prediction_that_is_trusted_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted fault, by which every node continues to its first child, is detected."""
    target, _ = toy_pair("plain", 3, 4)

    def trusting(tree, draft, nodes, token):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN202, ARG001
        return tree.children.gather(1, nodes[..., None].expand(-1, -1, tree.children.shape[-1]))[..., 0]

    monkeypatch.setattr(f"spectr.verify.{name}.child_with_token", trusting)
    law = law_of_texts(spectr.rule(name), target, opened("none", PREDICTIONS[1], 3, races=False), 3, 1)
    assert law.deviation(target) > SEEN
