"""A target whose layers are spread over several processes. Every rank has one, over its own shards.

On rank 0 each call is announced to the others before it runs: its tree, which rows and slots it concerns, and after the
verdict what is kept. Sessions, windows and views are known to the others by names. After each call all ranks compare
hashes of what they ran.
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

__all__ = ["LeadingTarget", "Lender", "SessionName", "ShardedTarget", "free_bytes"]

_NUMBERS = count(1)  # of sessions, views and models


@dataclass(slots=True, weakref_slot=True, eq=False)
class SessionName:
    """How the other ranks know a session: by number, and by the window or the view of it that is meant."""

    number: int
    window: tuple[int, int, int] | None = None  # first row, last row, most tokens
    view: int = 0  # number of a view; 0: none
    is_new: bool = False  # to be made before it is used
    whole: "SessionName | None" = None  # of which this is a part, kept as long as the part

    def announced(self) -> list[Any]:
        """The name as a message has it; from then on the others have made it."""
        made = [self.number, self.window, self.view, self.is_new]
        self.is_new = False
        return made


class Lender:
    """A model's embedding and output layer, gathered from all ranks, and what else a drafter asks of its target."""

    def __init__(self, model: PreTrainedModel, embedding: nn.Module, output: nn.Module) -> None:
        self.config, self.device, self.dtype = model.config, model.device, model.dtype
        self._ends = embedding, output

    def get_input_embeddings(self) -> nn.Module:
        """The embedding."""
        return self._ends[0]

    def get_output_embeddings(self) -> nn.Module:
        """The output layer."""
        return self._ends[1]


def _whole(tensor: Any) -> Tensor:
    """A tensor from its shards; all ranks must call this."""
    found: Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return found.detach()


def _unsharded(module: nn.Module, weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    """A copy of an embedding or a linear layer with whole weights that does what its class does: transformers lets the
    sharded one talk to other ranks by a `forward` of its own."""
    own_bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
    return copy_with_parameters(module, {"weight": nn.Parameter(weight, requires_grad=False), "bias": own_bias})


class ShardedTarget(Target):
    """The shards of one rank."""

    is_sharded = True

    def __init__(self, model: PreTrainedModel, group: RankGroup) -> None:
        super().__init__(model)
        self.group = group
        if self.needs.family != "causal":
            raise MismatchError(
                f"{type(model).__name__} cannot be spread over processes: tensor_parallel is for decoder-only models "
                "with rotary or learned positions"
            )

    def compile(self) -> None:
        """Refused: it was never tried."""
        raise MismatchError("layers over several processes are not compiled; leave compile out, or tensor_parallel")

    def memory(self, rows: int, slots: int) -> int:
        """Bytes of this rank's part of a cache."""
        return super().memory(rows, slots) // self.group.size

    def gather_ends(self) -> Lender:
        """The whole embedding and output layer; all ranks must call this."""
        embedding, output = self.model.get_input_embeddings(), self.head
        rows = _whole(embedding.weight)
        weight = rows if output.weight is embedding.weight else _whole(output.weight)
        bias = getattr(output, "bias", None)
        ends = _unsharded(embedding, rows), _unsharded(output, weight, None if bias is None else _whole(bias))
        return Lender(self.model, *ends)

    def keep(self, session: Session, nodes: Tensor) -> None:
        """As the others must do, too."""
        self.group.note(nodes)
        super().keep(session, nodes)

    def rewind(self, session: Session, lengths: list[int]) -> None:
        """As the others must do, too."""
        self.group.note(torch.tensor([lengths], device=self.device))
        super().rewind(session, lengths)

    def copy_rows(self, session: Session, sources: list[int], targets: list[int], most: int) -> None:
        """As the others must do, too."""
        self.group.note(torch.tensor([[*sources, *targets, most]], device=self.device))
        super().copy_rows(session, sources, targets, most)

    def _run(self, session: Session, fresh: FreshTokens, choose: Callable[[Tensor], Tensor] | None) -> Tensor:
        before = session.filled.clone()
        logits = super()._run(session, fresh, choose)
        self.group.compare(before, fresh.tokens, fresh.positions, fresh.slots, fresh.within, logits=logits)
        return logits


class LeadingTarget(ShardedTarget):
    """The target of rank 0, which announces every call."""

    def __init__(self, model: PreTrainedModel, group: RankGroup, number: int = 0) -> None:
        super().__init__(model, group)
        self.number = number  # 0 is the whole model; its first layers have others
        self._dropped: list[int] = []  # sessions that nobody holds any more
        self._lender: Lender | None = None

    @property
    def lender(self) -> Lender:
        """The embedding and the output layer from all ranks, gathered when they are first asked for."""
        if self._lender is None:
            with self.group.calling(Message("gather")):
                self._lender = self.gather_ends()
        return self._lender

    def first_layers(self, layers: int) -> "LeadingTarget":
        """The first layers of this model, on all ranks."""
        number, made = next(_NUMBERS), truncated(self.model, layers)
        with self.group.calling(Message("truncate", {"model": number, "layers": layers})):
            return LeadingTarget(made, self.group, number)

    def digest(self) -> str:
        """Of all weights, from all ranks."""
        with self.group.calling(Message("digest")):
            return super().digest()

    def open(self, rows: int, slots: int, *, features: Layers | None = None, lasting: bool = True) -> Session:
        """Room for rows on every rank, if all of them have it. Features are kept on this one alone."""
        self._afford(rows, round_up_16(slots))
        number = next(_NUMBERS)
        given = {"model": self.number, "session": number, "rows": rows, "slots": slots}
        with self.group.calling(Message("open", given)):
            made = super().open(rows, slots, features=features, lasting=lasting)
        made.name = SessionName(number)
        weakref.finalize(made.name, self._dropped.append, number)
        return made

    def make_room(self, session: Session, rows: int, slots: int) -> None:
        """More room on every rank, if all of them have it."""
        rows, slots = max(rows, session.rows), max(round_up_16(slots), session.cache.size)
        if self.memory(rows, slots) > self.memory(session.rows, session.cache.size):
            self._afford(rows, slots)
            with self._calling("make_room", session, {"rows": rows, "slots": slots}):
                super().make_room(session, rows, slots)

    def _afford(self, rows: int, slots: int) -> None:
        """Refuse a cache that some rank has no room for. Ranks of one machine without GPUs share its memory."""
        size = self.memory(rows, slots)
        dropped, self._dropped[:] = list(self._dropped), []
        with self.group.calling(Message("free", {"dropped": dropped})):
            free = self.group.least(free_bytes(self.group))
        if size > free:
            raise NoRoomError(
                f"a cache of {rows} rows of {slots} tokens takes {format_bytes(size)} on each of {self.group.size} "
                f"ranks, and one of them has {format_bytes(free)} free; use fewer rows or a smaller max_new_tokens"
            )

    def window(self, session: Session, start: int, stop: int, longest: int) -> Session:
        """A session on some rows; the others make it when it is used."""
        made = super().window(session, start, stop, longest)
        made.name = SessionName(session.name.number, (start, stop, longest), 0, True, session.name)
        return made

    def share(self, session: Session) -> Session:
        """A view of a session; the others make it when it is used."""
        made, name = super().share(session), session.name
        made.name = SessionName(name.number, name.window, next(_NUMBERS), True, name)
        return made

    def read(self, session: Session, texts: list[list[int]], filled: list[int] | None = None) -> None:
        """Commit more tokens to each row, on every rank."""
        with self._calling("read", session, {"texts": texts, "filled": filled}):
            super().read(session, texts, filled)

    def score(
        self, session: Session, tokens: Tensor, ancestors: Tensor, depth: Tensor, *, only: Tensor | None = None
    ) -> Tensor:
        """Logits of a tree, which the other ranks are sent before the call."""
        with self._calling("score", session, {}, tokens, ancestors, depth, only):
            return super().score(session, tokens, ancestors, depth, only=only)

    def keep(self, session: Session, nodes: Tensor) -> None:
        """Commit the accepted nodes, on every rank."""
        with self._calling("keep", session, {}, nodes):
            super().keep(session, nodes)

    def rewind(self, session: Session, lengths: list[int]) -> None:
        """Forget scratch nodes and committed tokens beyond these lengths, on every rank."""
        with self._calling("rewind", session, {"lengths": lengths}):
            super().rewind(session, lengths)

    def copy_rows(self, session: Session, sources: list[int], targets: list[int], most: int) -> None:
        """Copy the beginnings of rows, on every rank."""
        with self._calling("copy_rows", session, {"sources": sources, "targets": targets, "most": most}):
            super().copy_rows(session, sources, targets, most)

    def take_rows(self, session: Session, rows: Tensor) -> None:
        """Refused: nothing announces it."""
        raise MismatchError("rows of a model over several processes are copied with copy_rows")

    def grow(self, session: Session, slots: int) -> None:
        """The same as more room for the rows that there are."""
        self.make_room(session, session.rows, slots)

    def _calling(self, name: str, session: Session, numbers: dict[str, Any], *tensors: Tensor | None) -> Any:
        """Announce a call on a session."""
        given = {"model": self.number, "session": session.name.announced(), **numbers}
        return self.group.calling(Message(name, given, tensors))


def free_bytes(group: RankGroup) -> int:
    """Memory that a cache of this rank may take; ranks of one machine without GPUs share what it has."""
    free = available(group.device)
    shared = group.neighbours if group.device.type == "cpu" else 1
    return (1 << 62) if free is None else free // shared
