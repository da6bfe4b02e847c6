"""Bad laws, counts and ids raise one clear error that names the argument; nothing is silently renormalised."""

import pytest
import torch

import spectr
from spectr.errors import ArgumentError, LawError, MismatchError, SpectrError, UnknownNameError
from spectr.transport import COUPLINGS

GOOD = torch.tensor([0.2, 0.3, 0.5])
BAD_LAWS = {
    "negative": (torch.tensor([-0.1, 0.6, 0.5]), "must not be negative"),
    "nan": (torch.tensor([float("nan"), 0.5, 0.5]), "NaN"),
    "sum": (torch.tensor([0.2, 0.3, 0.4]), "sum to 1"),
    "integer": (torch.tensor([0, 1, 0]), "float32 or float64"),
    "half": (GOOD.half(), "float32 or float64"),
    "scalar": (torch.tensor(1.0), "last dimension"),
    "list": ([0.5, 0.5], "tensor"),
}


@pytest.mark.parametrize("fault", BAD_LAWS)
@pytest.mark.parametrize("name", list(COUPLINGS))
def test_bad_laws(name: str, fault: str) -> None:
    law, message = BAD_LAWS[fault]
    coupling = spectr.coupling(name)
    with pytest.raises(LawError, match=f"target.*{message}"):
        coupling.acceptance(law, GOOD, 2)
    with pytest.raises(LawError, match=f"draft.*{message}"):
        coupling.acceptance(GOOD, law, 2)
    with pytest.raises(LawError, match="draft"):
        coupling.output_law(GOOD, law, torch.tensor([0]))


def test_laws_that_do_not_fit() -> None:
    coupling = spectr.coupling("kseq")
    with pytest.raises(LawError, match="3 tokens, it covers 2"):
        coupling.acceptance(GOOD, torch.tensor([0.5, 0.5]), 1)
    with pytest.raises(LawError, match="dtype"):
        coupling.acceptance(GOOD, GOOD.double().softmax(-1), 1)
    with pytest.raises(LawError, match="broadcasts"):
        coupling.acceptance(GOOD.expand(2, 3), GOOD.expand(5, 3), 1)


@pytest.mark.parametrize("k", [0, -1, 1.5, True, torch.tensor([1, 0]), torch.tensor([1.0])])
def test_bad_counts(k: object) -> None:
    with pytest.raises(ArgumentError, match=r"^k must"):
        spectr.coupling("optimal").acceptance(GOOD, GOOD, k)
    with pytest.raises(ArgumentError, match=r"^k must"):
        spectr.optimal_acceptance(GOOD, GOOD, k)


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (torch.tensor([3]), r"tokens must lie in \[0, 3\)"),
        (torch.tensor([-1]), r"tokens must lie in \[0, 3\)"),
        (torch.tensor([0.0]), "tokens must be an integer tensor"),
        (torch.tensor(1), "tokens must have a last dimension"),
        ([0], "tokens must be an integer tensor"),
        (torch.zeros(0, dtype=torch.int64), "at least one"),
        (torch.zeros(5, 1, dtype=torch.int64), "broadcast"),
    ],
)
def test_bad_tokens(tokens: object, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        spectr.coupling("kseq").output_law(GOOD.expand(2, 3), GOOD, tokens)


def test_a_token_that_could_not_have_been_drawn() -> None:
    draft = torch.tensor([0.0, 0.5, 0.5])
    with pytest.raises(ArgumentError, match="probability 0"):
        spectr.coupling("kseq").output_law(GOOD, draft, torch.tensor([0]))
    with pytest.raises(ArgumentError, match="probability 0"):
        spectr.coupling("optimal").output_law(GOOD, GOOD, torch.tensor([1]), fixed=torch.tensor([1]))


def test_bad_fixed_drafts() -> None:
    with pytest.raises(MismatchError, match="recursive_wor"):
        spectr.coupling("recursive_wor").output_law(GOOD, GOOD, torch.tensor([0]), fixed=torch.tensor([1]))
    with pytest.raises(ArgumentError, match="distinct"):
        spectr.coupling("optimal").output_law(GOOD, GOOD, torch.tensor([0]), fixed=torch.tensor([1, 1]))
    with pytest.raises(ArgumentError, match="fixed must lie"):
        spectr.coupling("optimal").acceptance(GOOD, GOOD, 1, fixed=torch.tensor([7]))


def test_bad_coins() -> None:
    with pytest.raises(ArgumentError, match="coins must be float64"):
        spectr.coupling("kseq").draw(GOOD, GOOD, torch.tensor([0]), torch.rand(2))


def test_too_many_orders() -> None:
    law = torch.full((2000,), 1 / 2000)
    with pytest.raises(ArgumentError, match="2000, k = 3"):
        spectr.coupling("recursive_wor").acceptance(law, law, 3)


def test_unknown_names_and_options() -> None:
    with pytest.raises(UnknownNameError, match="did you mean kseq"):
        spectr.coupling("kseqq")
    with pytest.raises(UnknownNameError, match="did you mean path_block"):
        spectr.rule("pathblock")
    with pytest.raises(ArgumentError, match="option"):
        spectr.rule("race", colour=1)
    with pytest.raises(ArgumentError, match="power of two"):
        spectr.coupling("optimal", bins=1000)
    for bad in ({"budget": -0.1}, {"budget": 2}):
        with pytest.raises(ArgumentError, match="budget"):
            spectr.rule("pareto", **bad)
    with pytest.raises(ArgumentError, match="lenience"):
        spectr.rule("lenience", lenience=0)
    with pytest.raises(MismatchError, match="selects"):
        spectr.rule("path_block", coupling="kseq")


def test_every_error_is_ours() -> None:
    for kind in (LawError, ArgumentError, MismatchError, UnknownNameError):
        assert issubclass(kind, SpectrError)
