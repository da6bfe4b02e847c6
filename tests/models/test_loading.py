"""Folders and loaded models become targets; models and caches that do not fit into memory are refused beforehand."""

import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModel, PreTrainedTokenizerFast

from spectr.errors import ArgumentError, MismatchError
from spectr.models import memory
from spectr.models.catalog import FetchError
from spectr.models.hf import model_size, open_loaded, open_model
from spectr.models.loading import Loading, chosen_dtype
from spectr.models.memory import available, kv_bytes, weights_on_disk


def tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "<end>": 3} | {f"w{n}": n for n in range(4, 61)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "<pad>")), eos_token="<end>")


@pytest.fixture
def folder(tmp_path: Path, make: Any) -> Any:
    """Return a function that saves a model of an architecture and returns its folder."""

    def made(name: str) -> Path:
        make(name).model.save_pretrained(tmp_path / name)
        tokenizer().save_pretrained(tmp_path / name)
        return tmp_path / name

    return made


@pytest.mark.parametrize(("name", "start"), [("llama", None), ("t5", (0,)), ("bart", (2,))])
def test_a_folder_opens_with_its_dtype_and_attention(name: str, start: tuple[int, ...] | None, folder: Any) -> None:
    """A folder opens with its start and stop tokens, and with the requested dtype and attention."""
    opened = open_model(str(folder(name)), device="cpu")
    assert (opened.start, opened.stops) == (start, {2, 3})
    assert opened.target.model.config.is_encoder_decoder == (name != "llama")
    assert opened.target.model.dtype == torch.float32
    half = open_model(str(folder(name)), device="cpu", dtype="bfloat16", attn_implementation="eager")
    assert half.target.model.dtype == torch.bfloat16
    assert half.target.model.config._attn_implementation == "eager"


def test_a_loaded_model_is_used_in_place(make: Any) -> None:
    """A loaded model is not copied, and the tokenizer adds its stop token."""
    model = make("llama").model
    opened = open_loaded(model)
    assert opened.target.model is model
    assert (opened.tokenizer, opened.stops, opened.start) == (None, {2}, None)
    assert open_loaded(model, tokenizer()).stops == {2, 3}


def test_unknown_and_invalid_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="did you mean dtype"):
        open_model(str(tmp_path), dtyp="float32")
    with pytest.raises(ArgumentError, match="float64 or auto, got 'int8'"):
        open_model(str(tmp_path), dtype="int8")
    with pytest.raises(FetchError, match=r"could not be loaded: .* Should have a `model_type`"):
        open_model(str(tmp_path))
    if not torch.cuda.is_available():
        with pytest.raises(ArgumentError, match="there is no CUDA device"):
            open_model(str(tmp_path), device="cuda")
        assert Loading().place.type == "cpu"


def test_models_that_do_not_generate_text_are_refused(tmp_path: Path) -> None:
    AutoModel.from_config(AutoConfig.for_model("vit", hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
                                               intermediate_size=16)).save_pretrained(tmp_path)  # fmt: skip
    with pytest.raises(MismatchError, match="vit model, which does not generate text"):
        open_model(str(tmp_path))


def test_what_does_not_fit_is_refused(folder: Any, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, caches and rows that need more than the free memory are refused with both sizes and advice."""
    play, path = make("llama"), folder("llama")
    size = weights_on_disk(path, None)
    assert size == sum(p.numel() * 4 for p in play.model.parameters())
    assert weights_on_disk(path, torch.bfloat16) * 2 == size == weights_on_disk(path, torch.float32)
    assert model_size(str(path)) == (size // 4, 2 * 3 * 2 * 8, 128)
    monkeypatch.setattr(memory, "available", lambda _: size - 1)
    with pytest.raises(
        ArgumentError, match=r"in float32 takes 0\.1 MiB and cpu has 0\.1 MiB free; use a smaller dtype"
    ):
        open_model(str(path), device="cpu")
    open_model(str(path), device="cpu", dtype="bfloat16")
    monkeypatch.setattr(memory, "available", lambda _: 3 << 20)
    with pytest.raises(
        ArgumentError, match=r"8 rows of 4096 tokens takes 12\.0 MiB and cpu has 3\.0 MiB free; use fewer"
    ):
        play.target.open(8, 4096)
    with pytest.raises(ArgumentError, match="2 rows of 9008 tokens takes"):
        play.target.make_room(play.session, 2, 9000)
    with pytest.raises(ArgumentError, match="1001 rows of 48 tokens takes"):
        play.target.make_room(play.session, 1001, 48)


def test_available_memory_is_read_from_the_system(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert available(torch.device("meta")) is None
    table = tmp_path / "meminfo"
    monkeypatch.setattr(memory, "_MEMINFO", table)
    assert available(torch.device("cpu")) is None
    table.write_text("MemTotal: 9 kB\nMemAvailable:     7 kB\n")
    assert available(torch.device("cpu")) == 7 * 1024
    table.write_text("MemTotal: 9 kB\n")
    assert available(torch.device("cpu")) is None


@pytest.mark.parametrize("name", ["llama", "gpt2", "bloom", "deepseek_v3", "t5 gated", "bart", "gemma3_text"])
def test_the_size_of_a_cache_is_known_from_the_config(name: str, make: Any) -> None:
    """The size computed from the config equals that of the buffers without their slot for padding."""
    play = make(name)
    buffers = [b for layer in play.session.cache.layers for b in (layer.keys, layer.values)]
    taken = sum(b[:, :, :48].numel() * b.element_size() for b in buffers)
    assert play.target.cache_bytes(2, 48) == taken
    assert kv_bytes(play.model.config, 2, 48, torch.bfloat16) * 2 == taken


@pytest.mark.parametrize(
    ("device", "stored", "meant"),
    [
        ("cpu", torch.bfloat16, torch.float32),
        ("cpu", None, torch.float32),
        ("cuda", torch.bfloat16, torch.bfloat16),
        ("cuda", torch.float16, torch.float16),
        ("cuda", torch.float32, torch.float32),
        ("cuda", None, torch.bfloat16),
    ],
)
def test_the_default_dtype_depends_on_device_and_checkpoint(
    device: str, stored: torch.dtype | None, meant: torch.dtype
) -> None:
    config = AutoConfig.for_model("llama")
    config.dtype = stored
    dtype, reason = chosen_dtype(config, torch.device(device))
    assert dtype == meant
    assert reason


def test_an_unknown_model_is_refused_without_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unreachable hub is asked once, and not at all for a path that cannot be a hub id."""
    asked: list[str] = []

    def refuse(request: Any, **_: float) -> None:
        asked.append(request.full_url)
        raise urllib.error.URLError("unreachable")

    monkeypatch.setattr(urllib.request, "urlopen", refuse)
    with pytest.raises(FetchError, match="no such folder, and the hub cannot be reached"):
        open_model("nobody/nothing-of-this-name")
    assert len(asked) == 1
    with pytest.raises(FetchError, match="a hub id has the form owner/name"):
        open_model("./no/such/folder")
    assert len(asked) == 1
