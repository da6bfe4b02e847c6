"""Reads the tokenizer and chat template of a GGUF file, through transformers."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from transformers import TOKENIZER_MAPPING, TokenizersBackend

from spectr.errors import MissingExtraError
from spectr.models.catalog import FetchError
from spectr.models.gguf.reader import GgufFile

__all__ = ["tokenizer_of"]


def tokenizer_of(file: GgufFile, config: Any) -> Any:
    """Return the tokenizer in a file whose model has this config, with its chat template.

    The class is the one that `AutoTokenizer` would choose. `AutoTokenizer` itself would first read the config from the
    file again, with the package `gguf`, which takes seconds for each 50,000 tokens."""
    path = file.path
    kind: Any = TOKENIZER_MAPPING.get(type(config), TokenizersBackend)
    try:
        made = _read(kind, path)
    except ImportError:  # of transformers 5.17, which reads the tokenizer with that package too
        raise MissingExtraError("gguf", "models", f"reading the tokenizer of {path.name}") from None
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise FetchError(f"{str(path)!r} has no tokenizer that can be read ({said}); give one: tokenizer=…") from error
    made.chat_template = file.setting("tokenizer.chat_template")
    for name in ("bos", "eos"):  # as the file says; older versions of transformers guess them
        if (token := file.setting(f"tokenizer.ggml.{name}_token_id")) is not None:
            setattr(made, f"{name}_token", made.convert_ids_to_tokens(int(token)))
    made.name_or_path = str(path)
    made.clean_up_tokenization_spaces = False  # older versions of transformers would, and llama.cpp never does
    return made


def _read(kind: Any, path: Path) -> Any:
    """Read a tokenizer of a class. transformers gets a folder with a link to this file alone, because other files
    beside it may belong to other models."""
    with TemporaryDirectory(prefix="spectr-") as folder:
        (Path(folder) / path.name).symlink_to(path.resolve())
        return kind.from_pretrained(folder, gguf_file=path.name)
