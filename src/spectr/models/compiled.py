"""Compiles the decoder layers of a model once for all layers, in a few seconds, for any number of nodes and slots.

The layers of a model differ only in their weights and cache buffers. One layer without its weights is compiled as a
function of weights, buffers and states, and every layer calls it with its own. Sizes stay symbolic. The elementwise
work between matrix products becomes a few kernels; the products themselves do not change.
"""

import copy
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from spectr.errors import MismatchError
from spectr.folders import home
from spectr.models.cache import SlotCache
from spectr.models.internals import distinct_sizes
from spectr.models.joint import join_products, joined_weights, joint_groups

__all__ = ["CompiledLayers"]

_SHAPES = 64  # compilations per function: one token or several, one row or several, for each model
_BACKEND = "inductor"
_Run = Callable[[dict[str, Tensor], tuple[Any, ...], dict[str, Any]], Any]


class _OneLayer(SlotCache):
    """The cache buffers of a single layer, so that the compiled function does not depend on the layer's number."""

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
        """Write to the layer's buffers, as `SlotCache.update` does."""
        return super().update(key_states, value_states, 0)


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str | tuple)


def _is_mutable(value: Any) -> bool:
    return isinstance(value, Tensor | list | dict | set)


def _kind(layer: nn.Module) -> tuple[Any, ...]:
    """Return a key of what a layer computes; layers with the same key differ in weights and number only."""
    found: list[Any] = []
    for name, module in layer.named_modules():
        own = {key: value for key, value in vars(module).items() if key != "layer_idx"}
        settings = {key: value for key, value in own.items() if _plain(value)}
        tables = {key: id(value) for key, value in own.items() if _is_mutable(value) and not key.startswith("_")}
        settings |= tables  # layers with different tables that are no weights are not the same
        found.append((name, type(module), tuple(sorted(settings.items(), key=lambda pair: pair[0]))))
    return (*found, *((name, tuple(weights.shape), weights.dtype) for name, weights in layer.named_parameters()))


def _weights(layer: nn.Module) -> dict[str, Tensor]:
    return {**dict(layer.named_parameters()), **dict(layer.named_buffers())}


def _joined(layer: nn.Module) -> dict[str, Tensor]:
    """Return a layer's weights by the names that the compiled function uses."""
    found = {**_weights(layer), **dict(joined_weights(layer, joint_groups(layer)))}
    return {name: weight for name, weight in found.items() if weight is not None}


def _emptied(layer: nn.Module) -> nn.Module:
    """Return a copy of a layer without the memory of its weights."""
    weights = _weights(layer).values()
    memo: dict[int, Any] = {id(w): torch.empty_like(w, device="meta") for w in weights}
    for weight in layer.parameters():
        memo[id(weight)] = nn.Parameter(memo[id(weight)], requires_grad=False)
    return copy.deepcopy(layer, memo)


def _compiled(layer: nn.Module) -> _Run:
    """Return the compiled function for all layers that compute the same as this one."""
    empty = _emptied(layer)
    join_products(empty, joint_groups(layer))

    def run(weights: dict[str, Tensor], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return functional_call(empty, weights, args, kwargs)

    made: _Run = torch.compile(run, dynamic=True, backend=_BACKEND)
    return made


@contextmanager
def _any_shape() -> Iterator[None]:
    """Compile for every shape that calls have. torch keeps these settings for each thread, and compiles in the thread
    of the call, so they are set for every call."""
    config: Any = torch.compiler.config
    with config.patch(recompile_limit=max(config.recompile_limit, _SHAPES)), distinct_sizes():
        yield


class CompiledLayers:
    """Decoder layers, and modules beside them such as the last norm, that can be switched to compiled functions."""

    def __init__(self, layers: Sequence[nn.Module], beside: Sequence[nn.Module] = ()) -> None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(home() / "compiled"))  # kept between runs
        # float32 is not rounded to TensorFloat32, so that texts do not depend on drafts; torch would advise to do so
        warnings.filterwarnings("ignore", message="TensorFloat32 tensor cores")
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
        self._addresses = self._weight_addresses()

    def _weight_addresses(self) -> list[int]:
        """Return the addresses of the weights, which compiled functions keep."""
        return [weight.data_ptr() for layer in self.layers for weight in _weights(layer).values()]

    def _forward(self, at: int, run: _Run) -> Callable[..., Any]:
        layer = self.layers[at]
        weights, usual = _joined(layer), layer.forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            name = next((name for name, value in kwargs.items() if isinstance(value, SlotCache)), None)
            if name is None:
                return usual(*args, **kwargs)
            if len(kwargs[name].layers) <= at or kwargs[name].layers[at].keys is None:
                usual(*args, **kwargs)  # allocates the buffers
            return run(weights, args, {**kwargs, name: _OneLayer(kwargs[name], at)})

        return forward

    @contextmanager
    def on(self) -> Iterator[None]:
        """Run the layers and the modules beside them compiled while the context is open."""
        if self._addresses != self._weight_addresses():
            raise MismatchError("weights were moved or replaced since the layers were compiled; load the model again")
        before = [vars(module).get("forward") for module in self._replaced]
        for module, forward in zip(self._replaced, self._forwards, strict=True):
            module.forward = forward
        try:
            with _any_shape():
                yield
        finally:
            for module, own in zip(self._replaced, before, strict=True):
                if own is None:
                    del module.forward
                else:
                    module.forward = own
