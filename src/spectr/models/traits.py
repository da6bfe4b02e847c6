"""What models may have beyond `TreeModel` in `spectr.types`, with what holds for one that lacks it.

A plain class with the members of `TreeModel` is a whole target or draft model. The engine asks for everything else
here, and looks for no attribute by its name.
"""

from collections.abc import Sequence
from typing import Any

from spectr.types import TreeModel

__all__ = ["ModelTraits"]


class ModelTraits:
    """The optional attributes and methods of a model, which has them under the same names unless stated otherwise."""

    __slots__ = ("_model",)

    def __init__(self, model: TreeModel | None) -> None:
        self._model: Any = model

    def compile(self) -> None:
        """Compile the model's layers. Default: do nothing."""
        getattr(self._model, "compile", lambda: None)()

    def check_source(self, source: Sequence[int] | None) -> None:
        """Raise if the model cannot encode `source`, the encoder's input of a request. Default: take everything."""
        getattr(self._model, "check_source", lambda _: None)(source)

    @property
    def runs_own_threads(self) -> bool:
        """Whether the model's calls use threads of their own, so that torch should use one. Default: False."""
        return bool(getattr(self._model, "runs_own_threads", False))

    @property
    def is_sharded(self) -> bool:
        """Whether other processes take part in every call. Default: False."""
        return bool(getattr(self._model, "is_sharded", False))

    @property
    def has_encoder(self) -> bool:
        """Whether the model encodes a source (`needs.source` of a `Target`). Default: False."""
        return bool(getattr(getattr(self._model, "needs", None), "source", None))

    @property
    def devices(self) -> frozenset[str]:
        """The devices over which transformers has spread the model (`model.hf_device_map` of a `Target`). Default:
        none, the model is on one device."""
        return frozenset(map(str, (getattr(getattr(self._model, "model", None), "hf_device_map", None) or {}).values()))
