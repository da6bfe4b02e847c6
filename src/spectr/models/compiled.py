"""Decoder layers compiled once for all of them, in a few seconds, whatever the number of layers, nodes and slots.

The layers of a model do the same with different weights and different buffers of the cache. So one of them, emptied of
its weights, is compiled as a function of weights, buffers and states, and every layer calls it with its own. Sizes stay
symbols. Elementwise work between the products becomes a handful of kernels; the products stay as they are.
"""

import copy
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spectr.errors import MismatchError
from spectr.folders import home
from spectr.models.cache import SlotCache
from spectr.models.joint import families, join_in, joined_weights

__all__ = ["CompiledLayers"]

_SHAPES = 64  # how often a function may be compiled again: one token or several, one row or several, for each model
_BACKEND = "inductor"
_Run = Callable[[dict[str, Tensor], tuple[Any, ...], dict[str, Any]], Any]


class _OneLayer(SlotCache):
    """The buffers of one layer, whichever it is."""

    def __init__(self, cache: SlotCache, layer: int) -> None:
        super().__init__(cache.size, cache.rows)
        self.attended, self.past, self.slots, self.layers = (
            cache.attended,
            cache.past,
            cache.slots,
            [cache.layers[layer]],
        )

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object
    ) -> tuple[Tensor, Tensor]:
        """As the whole cache."""
        return super().update(key_states, value_states, 0)


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | tuple)


def _holds(value: Any) -> bool:
    return isinstance(value, Tensor | list | dict | set)


def _kind(layer: nn.Module) -> tuple[Any, ...]:
    """What a layer does, weights and number aside."""
    found: list[Any] = []
    for name, module in layer.named_modules():
        own = {key: value for key, value in vars(module).items() if key != "layer_idx"}
        said = {key: value for key, value in own.items() if _plain(value)}
        held = {key: id(value) for key, value in own.items() if _holds(value) and not key.startswith("_")}
        said |= held  # a table that is no weight is the layer's own: it is not taken for another's
        found.append((name, type(module), tuple(sorted(said.items(), key=lambda pair: pair[0]))))
    return (*found, *((name, tuple(weights.shape), weights.dtype) for name, weights in layer.named_parameters()))


def _weights(layer: nn.Module) -> dict[str, Tensor]:
    return {**dict(layer.named_parameters()), **dict(layer.named_buffers())}


def _joined(layer: nn.Module) -> dict[str, Tensor]:
    """Weights by the names of the compiled form."""
    found = {**_weights(layer), **dict(joined_weights(layer, families(layer)))}
    return {name: weight for name, weight in found.items() if weight is not None}


def _emptied(layer: nn.Module) -> nn.Module:
    """A copy without weights."""
    weights = _weights(layer).values()
    memo: dict[int, Any] = {id(w): torch.empty_like(w, device="meta") for w in weights}
    for name, weight in layer.named_parameters():
        memo[id(weight)] = nn.Parameter(memo[id(weight)], requires_grad=False)
        del name
    return copy.deepcopy(layer, memo)


def _compiled(layer: nn.Module) -> _Run:
    """One function for all layers of this kind."""
    empty = _emptied(layer)
    join_in(empty, families(layer))

    def run(weights: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return functional_call(empty, weights, args, kwargs)

    made: _Run = torch.compile(run, dynamic=True, backend=_BACKEND)
    return made


class CompiledLayers:
    """Layers that can be switched to their compiled form, and modules beside them, such as the last norm."""

    def __init__(self, layers: Sequence[nn.Module], beside: Sequence[nn.Module] = ()) -> None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(home() / "compiled"))  # kept between runs
        config: Any = torch.compiler.config
        config.recompile_limit = max(config.recompile_limit, _SHAPES)
        self.layers, kinds = layers, dict[tuple[Any, ...], _Run]()
        self._replaced = [*layers, *beside]
        self._forwards: list[Callable[..., Any]] = []
        for at, layer in enumerate(layers):
            kind = _kind(layer)
            if kind not in kinds:
                kinds[kind] = _compiled(layer)
            self._forwards.append(self._forward(at, kinds[kind]))
        self._forwards += [torch.compile(module.forward, dynamic=True, backend=_BACKEND) for module in beside]
        self.kinds = len(kinds)
        self._where = self._places()

    def _places(self) -> list[int]:
        """Where the weights lie, which the compiled form was told."""
        return [weight.data_ptr() for layer in self.layers for weight in _weights(layer).values()]

    def _forward(self, at: int, run: _Run) -> Callable[..., Any]:
        layer = self.layers[at]
        weights, usual = _joined(layer), layer.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            name = next((name for name, value in kwargs.items() if isinstance(value, SlotCache)), None)
            if name is None:
                return usual(*args, **kwargs)
            if len(kwargs[name].layers) <= at or kwargs[name].layers[at].keys is None:
                usual(*args, **kwargs)  # makes the buffers
            return run(weights, args, {**kwargs, name: _OneLayer(kwargs[name], at)})

        return forward

    @contextmanager
    def on(self) -> Iterator[None]:
        """While this is open the layers, and what is beside them, run compiled."""
        if self._where != self._places():
            raise MismatchError("weights were moved or replaced since the layers were compiled; load the model again")
        before = [vars(module).get("forward") for module in self._replaced]
        for module, forward in zip(self._replaced, self._forwards, strict=True):
            module.forward = forward
        try:
            yield
        finally:
            for module, own in zip(self._replaced, before, strict=True):
                if own is None:
                    del module.forward
                else:
                    module.forward = own
