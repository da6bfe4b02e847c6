"""Families are valid laws, and files without a law are refused with an error that names the file."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from spectr.errors import ArgumentError, LawError, SpectrError
from spectr.theory import Family, bernoulli, from_files, uniform, zipf
from spectr.transport.laws import check_law

LAW = [0.5, 0.25, 0.125, 0.125]


@pytest.mark.parametrize(
    "family",
    [
        bernoulli(),
        bernoulli(0.0, 1.0),
        uniform(),
        uniform(3, 2, offset=7),
        zipf(),
        zipf(temperature=0),
        zipf(50, 2.5, 0.0, 0.3, seed=9),
    ],
    ids=lambda family: family.name,
)
def test_families_are_float64_laws(family: Family) -> None:
    for name in ("target", "draft"):
        law = getattr(family, name)
        check_law(name, law)
        assert law.dtype == torch.float64
    assert family.note


def test_the_laws_are_those_named() -> None:
    assert bernoulli(0.25, 0.75).draft.tolist() == [0.25, 0.75]
    apart = uniform(2, 3, offset=4)
    assert apart.target.tolist() == [0.5, 0.5, 0, 0, 0, 0, 0]
    assert apart.draft.tolist() == pytest.approx([0, 0, 0, 0, 1 / 3, 1 / 3, 1 / 3])
    assert "0 of them shared" in apart.note
    greedy = zipf(temperature=0)
    assert sorted(greedy.target.tolist())[-2:] == [0, 1]


def test_zipf_is_a_function_of_its_seed_alone() -> None:
    torch.manual_seed(1)
    first = zipf(seed=3)
    torch.manual_seed(2)
    assert torch.equal(first.target, zipf(seed=3).target)
    assert not torch.equal(first.target, zipf(seed=4).target)


def test_zipf_follows_its_formula() -> None:
    """At temperature 1 and without noise, log draft is 0.9·log target up to a constant."""
    family = zipf(40, noise=0.0)
    offset = family.draft.log() - 0.9 * family.target.log()
    assert float(offset.std()) < 1e-12
    hot, cold = zipf(40, temperature=2.0), zipf(40, temperature=1.0)
    assert torch.allclose((cold.target.log() / 2).softmax(-1), hot.target, atol=1e-14)
    ranks = torch.arange(1, 20001, dtype=torch.float64).log()
    logs = zipf(20000, exponent=1.3).target.log()
    centred = ranks - ranks.mean()
    assert float((centred * logs).sum() / (centred**2).sum()) == pytest.approx(-1.3, abs=0.03)
    assert float((logs + 1.3 * ranks).std()) == pytest.approx(0.6, abs=0.02)


@pytest.mark.parametrize(
    "build",
    [
        lambda: bernoulli(1.5, 0.5),
        lambda: uniform(0, 3),
        lambda: uniform(3, 3, offset=-1),
        lambda: zipf(0),
        lambda: zipf(temperature=-1),
        lambda: zipf(noise=float("nan")),
    ],
)
def test_numbers_out_of_range_are_refused(build: object) -> None:
    with pytest.raises(ArgumentError, match="got"):
        build()  # type: ignore[operator]


def test_a_family_is_one_pair_of_laws() -> None:
    with pytest.raises(LawError, match="one pair of laws"):
        Family("two", torch.full((2, 2), 0.5), torch.full((2, 2), 0.5), "")


def write(folder: Path, name: str, content: str | list[float]) -> Path:
    path = folder / name
    if isinstance(content, str):
        path.write_text(content)
    elif path.suffix == ".npy":
        np.save(path, np.asarray(content, dtype=np.float32))
    else:
        path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("law.json", LAW),
        ("law.npy", LAW),
        ("law.txt", "0.5\n0.25\n0.125\n0.125\n"),
        ("law.csv", "0.5, 0.25,0.125,0.125"),
        ("law", " [0.5, 0.25, 0.125, 0.125]"),
    ],
)
def test_every_file_format_gives_the_same_law(tmp_path: Path, name: str, content: str | list[float]) -> None:
    path = write(tmp_path, name, content)
    family = from_files(path, str(write(tmp_path, "draft.json", LAW[::-1])))
    assert family.target.tolist() == LAW
    assert family.draft.tolist() == LAW[::-1]
    assert name in family.name


def test_rounded_numbers_are_a_law(tmp_path: Path) -> None:
    thirds = write(tmp_path, "thirds.txt", "0.33333 0.33333 0.33333")
    assert float(from_files(thirds, thirds).target.sum()) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("empty.txt", ""),
        ("words.txt", "0.5, half"),
        ("broken.json", "[0.5, 0.5"),
        ("object.json", '{"law": [0.5, 0.5]}'),
        ("true.json", "[true, false]"),
        ("nested.json", "[[0.5, 0.5]]"),
        ("short.txt", "0.5 0.4"),
        ("negative.txt", "1.5 -0.5"),
        ("nan.txt", "nan 1"),
        ("infinite.txt", "inf 1"),
        ("not.npy", "0.5 0.5"),
        ("empty.npy", ""),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, name: str, content: str) -> None:
    good, bad = write(tmp_path, "good.json", [0.5, 0.5]), write(tmp_path, name, content)
    for pair in ((bad, good), (good, bad)):
        with pytest.raises(LawError) as caught:
            from_files(*pair)
        assert str(bad) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_arrays_that_are_no_vector_of_numbers_are_refused(tmp_path: Path) -> None:
    for name, array in (("matrix.npy", np.full((2, 2), 0.5)), ("words.npy", np.asarray(["a", "b"]))):
        np.save(tmp_path / name, array)
        with pytest.raises(LawError, match=name):
            from_files(tmp_path / name, tmp_path / name)


@pytest.mark.parametrize("name", ["nowhere.json", "."])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(SpectrError, match="cannot read") as caught:
        from_files(tmp_path / name, tmp_path / name)
    assert str(tmp_path / name) in str(caught.value)


def test_two_vocabularies_are_refused(tmp_path: Path) -> None:
    two, four = write(tmp_path, "two.json", [0.5, 0.5]), write(tmp_path, "four.json", LAW)
    with pytest.raises(LawError, match=r"two\.json has 2 tokens.*four\.json 4"):
        from_files(two, four)
