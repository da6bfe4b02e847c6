"""The drafters that come with spectr: each is for a model of the catalog, complete and small."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import spectr
from spectr.models.catalog import CATALOG
from spectr.models.few_bits import decoded
from spectr.models.head import FeatureHead, HeadShape
from spectr.models.trained import description, shipped_targets

FOLDERS = sorted(path for path in (Path(spectr.__file__).parent / "drafters").iterdir() if path.is_dir())


def test_there_is_one_for_every_model_of_the_catalog() -> None:
    assert shipped_targets() == set(CATALOG) == {folder.name for folder in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_weights_fit_the_description(folder: Path) -> None:
    about, tensors = description(folder), load_file(folder / "drafter.safetensors")
    order = tensors.pop("tokens")
    assert len(order.unique()) == len(order)
    assert max(about.learnt_tokens or 0, about.drafted_tokens or 0) <= len(order)
    head = FeatureHead(HeadShape(**about.shape))
    head.load_state_dict(decoded(tensors))  # raises if a tensor is missing or has another shape
    assert all(bool(torch.isfinite(weights).all()) for weights in head.parameters())
    assert about.fingerprint[:16] in (folder / "drafter_card.md").read_text()


def test_all_of_them_together_are_small() -> None:
    assert sum(path.stat().st_size for folder in FOLDERS for path in folder.iterdir()) < 48 * 2**20
