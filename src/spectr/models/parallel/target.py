"""A target whose layers are spread over several processes. Every rank has such a target over its own shards.

Rank 0 announces each call to the other ranks before it runs: the tree with its rows and slots, and after the verdict
the nodes to keep. Messages refer to sessions, windows and views by name. After each call all ranks compare hashes of
what they ran.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from spectr.errors import MismatchError, NoRoomError
from spectr.models.early import truncated
from spectr.models.fresh_tokens import FreshTokens
from spectr.models.internals import copy_with_parameters
from spectr.models.memory import available, format_bytes
from spectr.models.parallel.group import RankGroup
from spectr.models.parallel.message import Message
from spectr.models.session import Session, round_up_16
from spectr.models.target import Target
from spectr.types import Layers

__all__ = ["LeadingTarget", "ModelForDrafters", "SessionName", "ShardedTarget", "free_bytes"]

_NUMBERS = count(1)  # numbers for sessions, views and models


@dataclass(slots=True, weakref_slot=True, eq=False)
class SessionName:
    """The name under which the other ranks hold a session: its number, and the window or view of it, if it is one."""

    number: int
    window: tuple[int, int, int] | None = None  # first row, end of rows, maximum number of tokens
    view: int = 0  # number of the view; 0 if it is not a view
    is_new: bool = False  # the other ranks must create it before they use it
    parent: "SessionName | None" = None  # of a window or view: keeps the name of its session alive

    def announced(self) -> list[Any]:
        """Return the name as a message carries it, and clear `is_new`: the message makes the other ranks create it."""
        fields = [self.number, self.window, self.view, self.is_new]
        self.is_new = False
        return fields


class ModelForDrafters:
    """Stands in for a sharded model where a drafter is built on it: holds the model's config, and its embedding and
    output layer gathered from all ranks."""

    def __init__(self, model: PreTrainedModel, embedding: nn.Module, output: nn.Module) -> None:
        self.config, self.device, self.dtype = model.config, model.device, model.dtype
        self._embedding, self._output = embedding, output

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding."""
        return self._embedding

    def get_output_embeddings(self) -> nn.Module:
        """Return the output layer."""
        return self._output


def _gathered(tensor: Any) -> Tensor:
    """Assemble a tensor from its shards; every rank must call this."""
    full: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return full.detach()


def _unsharded_copy(module: nn.Module, weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    """Copy an embedding or a linear layer with full weights. The copy has the `forward` of its class, whereas
    transformers gives a sharded layer one that communicates with the other ranks."""
    bias_parameter = None if bias is None else nn.Parameter(bias, requires_grad=False)
    return copy_with_parameters(module, {"weight": nn.Parameter(weight, requires_grad=False), "bias": bias_parameter})


class ShardedTarget(Target):
    """The target of one rank, over its shards. It runs calls without announcing them."""

    is_sharded = True

    def __init__(self, model: PreTrainedModel, group: RankGroup) -> None:
        super().__init__(model)
        self.group = group
        if self.needs.family != "causal":
            raise MismatchError(
                "tensor_parallel needs a decoder-only model with rotary or learned positions, which "
                f"{type(model).__name__} is not; load it without tensor_parallel"
            )

    def compile(self) -> None:
        """Refuse to compile: compiled layers have not been tested with several processes."""
        raise MismatchError(
            "a model spread over several processes cannot be compiled; leave out compile or tensor_parallel"
        )

    def cache_bytes(self, rows: int, slots: int) -> int:
        """Return the bytes of this rank's part of a cache."""
        return super().cache_bytes(rows, slots) // self.group.size

    def gather_embeddings(self) -> ModelForDrafters:
        """Gather the embedding and the output layer from all ranks; every rank must call this."""
        embedding, output = self.model.get_input_embeddings(), self.output_layer
        rows = _gathered(embedding.weight)
        weight = rows if output.weight is embedding.weight else _gathered(output.weight)
        bias = getattr(output, "bias", None)
        full_output = _unsharded_copy(output, weight, None if bias is None else _gathered(bias))
        return ModelForDrafters(self.model, _unsharded_copy(embedding, rows), full_output)

    def keep(self, session: Session, nodes: Tensor) -> None:
        """Commit the accepted nodes, and include them in the next comparison of the ranks."""
        self.group.record_commit(nodes)
        super().keep(session, nodes)

    def rewind(self, session: Session, lengths: list[int]) -> None:
        """Shorten rows to these lengths, and include the lengths in the next comparison of the ranks."""
        self.group.record_commit(torch.tensor([lengths], device=self.device))
        super().rewind(session, lengths)

    def copy_rows(self, session: Session, sources: list[int], targets: list[int], most: int) -> None:
        """Copy the beginnings of rows, and include the copy in the next comparison of the ranks."""
        self.group.record_commit(torch.tensor([[*sources, *targets, most]], device=self.device))
        super().copy_rows(session, sources, targets, most)

    def _run(self, session: Session, fresh: FreshTokens, choose: Callable[[Tensor], Tensor] | None) -> Tensor:
        before = session.filled.clone()
        logits = super()._run(session, fresh, choose)
        self.group.compare(before, fresh.tokens, fresh.positions, fresh.slots, fresh.within, logits=logits)
        return logits


class LeadingTarget(ShardedTarget):
    """The target of rank 0. It announces every call to the other ranks."""

    def __init__(self, model: PreTrainedModel, group: RankGroup, number: int = 0) -> None:
        super().__init__(model, group)
        self.number = number  # 0 for the full model; a target of its first layers has another number
        self._dropped: list[int] = []  # numbers of sessions that have been garbage-collected
        self._model_for_drafters: ModelForDrafters | None = None

    @property
    def model_for_drafters(self) -> ModelForDrafters:
        """The model's embedding and output layer, gathered from all ranks on first use."""
        if self._model_for_drafters is None:
            with self.group.announce(Message("gather")):
                self._model_for_drafters = self.gather_embeddings()
        return self._model_for_drafters

    def first_layers(self, layers: int) -> "LeadingTarget":
        """Return a target of the first layers of this model, on every rank."""
        number, model = next(_NUMBERS), truncated(self.model, layers)
        with self.group.announce(Message("truncate", {"model": number, "layers": layers})):
            return LeadingTarget(model, self.group, number)

    def digest(self) -> str:
        """Return a digest of all weights, from the shards of all ranks."""
        with self.group.announce(Message("digest")):
            return super().digest()

    def open(self, rows: int, slots: int, *, feature_layers: Layers | None = None, lasting: bool = True) -> Session:
        """Open a session on every rank, if all of them have the memory. Only rank 0 keeps features."""
        self._require_memory(rows, round_up_16(slots))
        number = next(_NUMBERS)
        arguments = {"model": self.number, "session": number, "rows": rows, "slots": slots}
        with self.group.announce(Message("open", arguments)):
            session = super().open(rows, slots, feature_layers=feature_layers, lasting=lasting)
        session.name = SessionName(number)
        weakref.finalize(session.name, self._dropped.append, number)
        return session

    def make_room(self, session: Session, rows: int, slots: int) -> None:
        """Enlarge a session on every rank, if all of them have the memory."""
        rows, slots = max(rows, session.rows), max(round_up_16(slots), session.cache.size)
        if self.cache_bytes(rows, slots) > self.cache_bytes(session.rows, session.cache.size):
            self._require_memory(rows, slots)
            with self._announce("make_room", session, {"rows": rows, "slots": slots}):
                super().make_room(session, rows, slots)

    def _require_memory(self, rows: int, slots: int) -> None:
        """Raise if some rank lacks the memory for a cache. Tell the other ranks first which sessions they can drop."""
        size = self.cache_bytes(rows, slots)
        dropped, self._dropped[:] = list(self._dropped), []
        with self.group.announce(Message("free", {"dropped": dropped})):
            free = self.group.minimum(free_bytes(self.group))
        if size > free:
            raise NoRoomError(
                f"a cache of {rows} rows of {slots} tokens takes {format_bytes(size)} on each of {self.group.size} "
                f"ranks, but one of them has only {format_bytes(free)} free; use fewer rows or a smaller max_new_tokens"
            )

    def window(self, session: Session, start: int, stop: int, longest: int) -> Session:
        """Return a session on some rows of another; the other ranks create it when it is first used."""
        window = super().window(session, start, stop, longest)
        window.name = SessionName(session.name.number, (start, stop, longest), 0, True, session.name)
        return window

    def share(self, session: Session) -> Session:
        """Return a view of a session; the other ranks create it when it is first used."""
        view, name = super().share(session), session.name
        view.name = SessionName(name.number, name.window, next(_NUMBERS), True, name)
        return view

    def read(self, session: Session, texts: list[list[int]], filled: list[int] | None = None) -> None:
        """Commit more tokens to each row, on every rank."""
        with self._announce("read", session, {"texts": texts, "filled": filled}):
            super().read(session, texts, filled)

    def score(
        self, session: Session, tokens: Tensor, ancestors: Tensor, depth: Tensor, *, only: Tensor | None = None
    ) -> Tensor:
        """Return the logits of a tree, after sending the tree to the other ranks."""
        with self._announce("score", session, {}, tokens, ancestors, depth, only):
            return super().score(session, tokens, ancestors, depth, only=only)

    def keep(self, session: Session, nodes: Tensor) -> None:
        """Commit the accepted nodes, on every rank."""
        with self._announce("keep", session, {}, nodes):
            super().keep(session, nodes)

    def rewind(self, session: Session, lengths: list[int]) -> None:
        """Discard scratch nodes and the committed tokens beyond these lengths, on every rank."""
        with self._announce("rewind", session, {"lengths": lengths}):
            super().rewind(session, lengths)

    def copy_rows(self, session: Session, sources: list[int], targets: list[int], most: int) -> None:
        """Copy the beginnings of rows, on every rank."""
        with self._announce("copy_rows", session, {"sources": sources, "targets": targets, "most": most}):
            super().copy_rows(session, sources, targets, most)

    def _announce(self, name: str, session: Session, arguments: dict[str, Any], *tensors: Tensor | None) -> Any:
        """Announce a call on a session."""
        arguments = {"model": self.number, "session": session.name.announced(), **arguments}
        return self.group.announce(Message(name, arguments, tensors))


def free_bytes(group: RankGroup) -> int:
    """Return the bytes that a cache of this rank may take. Ranks on the CPU of one host divide its memory evenly."""
    free = available(group.device)
    sharers = group.ranks_on_host if group.device.type == "cpu" else 1
    return (1 << 62) if free is None else free // sharers
