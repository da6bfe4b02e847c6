"""The exact law of texts with a grammar, by full enumeration with the engine's own masks: for every lossless rule it is
the target's law conditioned on the grammar, which plain Python computes from a list of words."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import pytest
import torch
from torch import Tensor

import spectr
from spectr import Growth, Shape
from spectr.audit.exact import Loop, Shaping, enumerate_pairs
from spectr.audit.policies import _Shaped
from spectr.audit.proofs import ROUNDING
from spectr.audit.toys import RandomModel
from spectr.engine.grammars import RowGrammars
from spectr.errors import ArgumentError
from spectr.grammar import CompiledGrammar, Grammar, GrammarCompiler
from spectr.grammar.masks import keep_allowed
from spectr.grammar.vocabulary import Vocabulary
from spectr.policy import History, Past, Policy
from spectr.policy.stages import MASKED
from spectr.types import Siblings
from spectr.verify import RULES

PIECES, STOP = (b"a", b"b", b"ab", b""), 3
WORDS = [b"ab", b"aab", b"abb", b"b", b"bab", b"abab"]
PROMPT = (0, 1)
MADE = {name: spectr.rule(name) for name in RULES}
NAMES = [name for name in RULES if name not in ("spectr", "walk")]  # other names of kseq and optimal
PAIRS = [(n, s) for n in NAMES if MADE[n].card.lossless for s in MADE[n].card.siblings if s != "race"]
SEEN = 1e-3


def allowed(text: Sequence[int]) -> list[int]:
    """Return the tokens that may follow, by comparing strings."""
    said = b"".join(PIECES[token] for token in text[len(PROMPT) :])
    going_on = [t for t, piece in enumerate(PIECES) if piece and any(word.startswith(said + piece) for word in WORDS)]
    return [*going_on, *([STOP] if said in WORDS else [])]


PATHS = [path for size in range(3) for path in product(range(len(PIECES)), repeat=size)]
"""All of up to two tokens. A path's place among them is its number to base four, digits from 1 on."""


@cache
def compiled() -> CompiledGrammar:
    words = Grammar.choice([word.decode() for word in WORDS])
    return GrammarCompiler(Vocabulary(PIECES, frozenset({STOP}))).compile(words)


@cache
def masks_after(text: tuple[int, ...]) -> Tensor:
    """Return the engine's masks (P, W) after a text and each of the paths."""
    padded = torch.tensor([[*path, *[-1] * (2 - len(path))] for path in PATHS])
    grammars = RowGrammars([compiled().walk(text)], len(PIECES), padded.device, masks_all_drafts=True)
    return grammars.send(padded[None]).walk()[0]


@dataclass(frozen=True)
class Bound(Shaping):
    """A grammar followed by a policy, in the engine's order."""

    fault: str = ""

    def logits(self, laws: Tensor, history: History | None, paths: Tensor, *, drafting: bool) -> Tensor:
        """Mask the logits along each node's own path, then apply the policy."""
        assert history is not None
        looked = paths[..., :-1] if self.fault == "the mask of the parent" and not drafting else paths
        place = torch.zeros_like(paths[..., 0]) if paths.shape[-1] else torch.zeros(laws.shape[:2], dtype=torch.int64)
        for token in looked.unbind(-1):
            place = torch.where(token >= 0, len(PIECES) * place + token + 1, place)
        texts = [tuple(host.tokens[len(self.prompt) :]) for host in history.host]
        number = {text: at for at, text in enumerate(dict.fromkeys(texts))}
        table = torch.stack([masks_after(text) for text in number])
        masks = table[torch.tensor([number[text] for text in texts])[:, None], place]
        raw = laws.log() + self.shift
        masked = raw if self.fault == "drafts alone" and not drafting else keep_allowed(raw, masks)
        rows = self.computed.of([self.policy] * len(laws), laws.shape[-1])
        return rows(masked, Past(history, paths, drafting=drafting), stages=rows.stages() | {MASKED})


def distance(name: str, siblings: Siblings, widths: tuple[int, ...], policy: Policy, fault: str = "") -> float:
    """Return the total variation between the law of two steps and the target's, conditioned on the grammar; of one step
    if a fault is planted, which may leave the grammar."""
    bound = Bound(policy, PROMPT, frozenset({STOP}), limit=6, fault=fault)
    target, draft = RandomModel(31, len(PIECES)), RandomModel(32, len(PIECES))
    growth = Growth(Shape.branching(widths), siblings)
    (law,) = enumerate_pairs(MADE[name], [(target, draft)], growth, Loop(1 if fault else 2, shaping=bound))
    assert sum(law.values()) == pytest.approx(1, abs=1e-12)
    meant = Shaping(replace(policy, allowed=allowed), PROMPT, frozenset({STOP}), limit=6)
    return law.total_variation(_Shaped(target, meant))


@pytest.mark.parametrize(("name", "siblings"), PAIRS)
def test_the_law_is_the_targets_given_the_grammar(name: str, siblings: Siblings) -> None:
    widths = (2,) if name == "race" else (2, 1) if MADE[name].card.tree else (1, 1)
    assert distance(name, siblings, widths, Policy(0.8, presence_penalty=0.4)) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize("siblings", [siblings for name, siblings in PAIRS if name == "race"])
def test_larger_trees_of_the_race(siblings: Siblings) -> None:
    assert distance("race", siblings, (2, 1), Policy(0.8, presence_penalty=0.4)) < ROUNDING


@pytest.mark.parametrize("policy", [Policy(0, presence_penalty=0.4), Policy(1.3, top_k=2, repetition_penalty=1.2)])
@pytest.mark.parametrize("name", ["race", "optimal", "recursive", "block"])
def test_other_policies(name: str, policy: Policy) -> None:
    widths = (2,) if name == "race" else (2, 1) if MADE[name].card.tree else (1, 1)
    assert distance(name, "iid", widths, policy) < ROUNDING


@pytest.mark.parametrize("fault", ["drafts alone", "the mask of the parent"])
@pytest.mark.parametrize("name", ["race", "optimal"])
def test_planted_faults_are_seen(name: str, fault: str) -> None:
    """Faults change the law, or produce a text outside the grammar, for which the reference has no law."""
    policy = Policy(0.8, presence_penalty=0.4)
    if fault == "drafts alone":
        with pytest.raises(ArgumentError, match="leaves none after"):
            distance(name, "iid", (2, 1), policy, fault)
    else:
        assert distance(name, "iid", (2, 1), policy, fault) > SEEN
