"""A language model as a target: texts in, logits of whole token trees out, accepted paths kept.

Rows advance by different lengths. A row's committed tokens fill its slots 0, 1, 2, … in order; scratch nodes stand in
the slots after them, and keeping a path moves its slots down. Positions are depth, not slot order.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spectr.errors import ArgumentError, MismatchError
from spectr.kernels import usable
from spectr.models.cache import SlotCache
from spectr.models.compiled import CompiledLayers
from spectr.models.digest import weights_digest
from spectr.models.drivers.call import Call
from spectr.models.encoder import check_sources, encode
from spectr.models.hidden_states import capture_hidden_states, last_state
from spectr.models.layers import beside_layers, layers_of
from spectr.models.memory import kv_bytes, require_memory
from spectr.models.modes import evaluation_mode
from spectr.models.prefill import GraphPrefill
from spectr.models.session import Session, Store, round_up_16
from spectr.models.support import driver_of, needs_of
from spectr.rows import cached_arange, copy_to_device, pick_rows
from spectr.types import Layers

__all__ = ["Fresh", "Session", "Target"]

_FEWER = "use fewer rows or a smaller max_new_tokens"


@dataclass(frozen=True, slots=True)
class Fresh:
    """Tokens of one call, where they go, and which scratch slots they see."""

    tokens: Tensor  # (B, T)
    where: Tensor  # (B, T) positions
    slots: Tensor  # (B, S + T) of the scratch: that scored before, then these tokens
    within: Tensor  # (B, T, S + T) bool
    attended: int  # slots looked at


class Target:
    """An unmodified causal or encoder-decoder model of transformers, scored on trees."""

    keeps_beginnings = True
    is_sharded = False  # other processes take part in every call

    def __init__(self, model: PreTrainedModel, chunk: int = 512) -> None:
        self.model = model
        self._all_modules = tuple(model.modules())  # as found; a user's model stays in the mode it is in between calls
        self.needs = needs_of(model)
        self.driver = driver_of(model, self.needs)
        self.chunk = chunk  # prompt tokens per call
        self.context = self.needs.context
        self.device = model.device
        self.head: torch.nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        own = getattr(model, "vocabulary", None) or getattr(self.head, "out_features", None)
        self.vocabulary = int(own or model.config.vocab_size)
        width = getattr(self.head, "in_features", None) or model.config.get_text_config(decoder=True).hidden_size
        self.width = int(width)  # of what enters the output layer
        self.joint = self.device.type == "cuda"  # one buffer for all layers, where launches cost more than copies
        self._compiled: CompiledLayers | None = None

    def compile(self) -> None:
        """Score trees with compiled layers from now on, and read prompts with them where graphs are replayed; the first
        call of every kind takes seconds."""
        if self._compiled is None and any("forward" in vars(layer) for layer in self.layers):
            raise MismatchError("layers with a forward of their own, as device_map makes them, are not compiled")
        self._compiled = self._compiled or CompiledLayers(self.layers, beside_layers(self.model))

    @property
    def lender(self) -> Any:
        """What a drafter may borrow from: the model, with an embedding and an output layer that are whole."""
        return self.model

    def first_layers(self, layers: int) -> "Target | None":
        """A target of the first layers that other processes know as well; None where there are none of them."""
        return None

    def digest(self) -> str:
        """Of all weights."""
        return weights_digest(self.model)

    def memory(self, rows: int, slots: int) -> int:
        """Bytes of a cache, from the widths in the config."""
        whole = self.model.config
        config = whole if whole.is_encoder_decoder else whole.get_text_config(decoder=True)
        return kv_bytes(config, rows, slots, self.model.dtype)

    def open(self, rows: int, slots: int, *, features: Layers | None = None, lasting: bool = True) -> Session:
        """Room for `rows` rows of `slots` tokens, trees included; with `features`, those of every token are kept: what
        entered the output layer, and after it what left these layers. Unless they are lasting, only those of the last
        call."""
        if rows < 1 or slots < 1:
            raise ArgumentError(f"a session needs at least one row and one slot, got {rows} and {slots}")
        slots = round_up_16(slots)
        require_memory(self.memory(rows, slots), self.device, f"a cache of {rows} rows of {slots} tokens", _FEWER)
        position = torch.zeros(rows, slots + 1, dtype=torch.int64, device=self.device)
        filled = torch.zeros(rows, dtype=torch.int64, device=self.device)
        store = Store(SlotCache(slots, rows, self._alike if self.joint else 0), position, filled)
        if features is not None and lasting:
            width = (1 + len(features)) * self.width
            store.features = torch.zeros(rows, slots + 1, width, dtype=self.model.dtype, device=self.device)
        return Session(store, wants_features=features is not None, extra_layers=features or ())

    @cached_property
    def _alike(self) -> int:
        """How many layers the model has, if all of them keep the same of a token, in one place; else 0."""
        config = self.model.config.get_text_config(decoder=True)
        kinds = set(getattr(config, "layer_types", None) or ())
        apart = self.model.config.is_encoder_decoder or len(kinds) > 1 or getattr(self.model, "hf_device_map", None)
        return 0 if apart else int(config.num_hidden_layers)

    @cached_property
    def layers(self) -> list[torch.nn.Module]:
        """The decoder layers, the first first."""
        return layers_of(self.model)

    def share(self, session: Session) -> Session:
        """A view of a session with scratch of its own, in the same slots: for a drafter made of the target's first
        layers. The owner alone commits; to keep, rewind or take rows of a view only forgets its scratch."""
        return Session(session.store, is_view=True)

    def check_source(self, source: Sequence[int] | None) -> None:
        """Refuse a text that this model cannot answer to, and the lack of one that it needs."""
        name = type(self.model).__name__
        if self.needs.source is None and source is not None:
            raise MismatchError(f"{name} has no encoder; put the source into the prompt instead")
        if self.needs.source is None:
            return
        if source is None:
            raise MismatchError(f"{name} answers to a source: give every request one")
        check_sources([list(source)], 1, self.needs.source)
        size = int(self.model.config.vocab_size)
        if max(source) >= size or min(source) < 0:
            raise ArgumentError(f"tokens of a source must lie in 0 … {size - 1}, got {list(source)}")

    @torch.no_grad()
    def encode(self, session: Session, sources: list[list[int]]) -> None:
        """Give an encoder-decoder model the text its rows answer to; before anything is read."""
        if self.needs.source is None:
            raise MismatchError(f"{type(self.model).__name__} has no encoder; put the source into the prompt instead")
        check_sources(sources, session.rows, self.needs.source)
        size = self.memory(len(sources), max(map(len, sources)))
        require_memory(size, self.device, f"{len(sources)} encoded sources", "use fewer rows or shorter sources")
        with evaluation_mode(self._all_modules):
            session.store.memory = encode(self.model, sources, session.cache)

    @torch.no_grad()
    def encode_row(self, session: Session, row: int, source: list[int]) -> None:
        """Give one row of a session the text it answers to; the others keep theirs."""
        self.check_source(source)
        with evaluation_mode(self._all_modules):
            made = encode(self.model, [source], session.cache)
        if session.store.memory is None:
            session.store.memory = made.for_rows(session.rows)
        session.store.memory.put_row(row, made)
        session.windows.clear()

    @torch.no_grad()
    def read(self, session: Session, texts: list[list[int]], filled: list[int] | None = None) -> None:
        """Commit more tokens to each row, in chunks; a row may get none. Scratch nodes are forgotten. With `filled`,
        the lengths of the rows so far, the device is not asked for them."""
        filled = self._room(session, texts, filled)
        session.pending = 0
        if session.prefill is None or not session.prefill.can_read(session, texts, filled):
            self._read(session, texts, filled)
        else:
            session.prefill.read(session, texts, filled)
            session.features = None
        session.store.longest, session.store.bound_slack = (
            max(f + len(t) for f, t in zip(filled, texts, strict=True)),
            0,
        )

    def _read(self, session: Session, texts: list[list[int]], filled: list[int]) -> None:
        """All rows at once, one chunk after the other."""
        longest = max(map(len, texts))
        tokens = copy_to_device([t + [0] * (longest - len(t)) for t in texts], self.device)
        counts = copy_to_device([len(t) for t in texts], self.device)
        features: list[Tensor] = []
        given = session.given
        for start in range(0, longest, self.chunk):
            part = tokens[:, start : start + self.chunk]
            session.given = None if given is None else given[:, start : start + self.chunk]
            attended = max(f + min(len(t), start + part.shape[1]) for f, t in zip(filled, texts, strict=True))
            self._prefill_part(session, part, (counts - start).clamp(0, part.shape[1]), attended)
            features.extend([] if session.features is None else [session.features])
        session.features, session.given = torch.cat(features, 1) if features else None, None

    def _prefill_part(self, session: Session, tokens: Tensor, counts: Tensor, attended: int) -> None:
        """One pass: the first `counts` (B,) of the tokens (B, T) of each row are committed, the rest is padding."""
        self._run(session, self._chunk(session, tokens, counts, attended), last_state)
        session.store.filled += counts

    def capture_prefill(self, session: Session) -> None:
        """Read prompts into this session by replayed graphs from now on, as far as its model can be captured."""
        if self.device.type == "cuda" and self.needs.source is None and self._alike and not session.is_view:
            session.prefill = self.graph_prefill(session)

    def graph_prefill(self, session: Session) -> GraphPrefill:
        """What reads for a session in rows set apart."""
        features, lasting = session.extra_layers if session.wants_features else None, session.store.features is not None

        def read(apart: Session, tokens: Tensor, counts: Tensor, attended: int) -> None:
            with nullcontext() if self._compiled is None else self._compiled.on():
                self._prefill_part(apart, tokens, counts, attended)

        return GraphPrefill(read, lambda rows, slots: self.open(rows, slots, features=features, lasting=lasting))

    @torch.no_grad()
    def score(
        self, session: Session, tokens: Tensor, ancestors: Tensor, depth: Tensor, *, only: Tensor | None = None
    ) -> Tensor:
        """Logits (B, T, V), or (B, M, V) of `only` (B, M), after fresh scratch nodes with `tokens` (B, T), `depth`
        (B, T) below the next position; `ancestors` (B, T, S + T) says which of the S scratch nodes before and of these
        each sees, itself included."""
        self._ready(session)
        scratch = session.pending + tokens.shape[1]
        if ancestors.shape != (*tokens.shape, scratch):
            raise ArgumentError(
                f"ancestors must be {(*tokens.shape, scratch)}: {session.pending} scratch nodes were scored before "
                f"these {tokens.shape[1]}; got {tuple(ancestors.shape)}"
            )
        attended = session.store.attended_slots(scratch)
        slots = session.filled[:, None] + cached_arange(scratch, self.device)
        where = (session.filled[:, None] + depth).clamp_max(self.context - 1)  # beyond it nothing is ever emitted
        select = None if only is None else partial(pick_rows, nodes=only)
        with nullcontext() if self._compiled is None else self._compiled.on():
            logits = self._run(session, Fresh(tokens, where, slots, ancestors, attended), select)
        session.pending = scratch
        return logits

    def keep(self, session: Session, nodes: Tensor) -> None:
        """Commit scratch `nodes` (B, L) in this order; -1 is padding, anywhere. The others are forgotten."""
        session.pending = 0
        if session.is_view:
            return
        store, trash = session.store, session.cache.size
        real, order = torch.sort((nodes >= 0).long(), dim=1, descending=True, stable=True)  # padding last
        places = store.filled[:, None] + cached_arange(nodes.shape[1], nodes.device)
        source = torch.where(real > 0, store.filled[:, None] + nodes.gather(1, order), trash)
        target = torch.where(real > 0, places, trash)
        store.cache.move(source, target)
        if store.features is not None:
            store.features.scatter_(1, _wide(target, store.features), pick_rows(store.features, source))
        store.position.scatter_(1, target, places)
        store.advance(real.sum(-1), nodes.shape[1])

    def rewind(self, session: Session, lengths: list[int]) -> None:
        """Forget scratch nodes, and committed tokens beyond these lengths."""
        if len(lengths) != session.rows or min(lengths) < 0:
            raise ArgumentError(f"each of {session.rows} rows needs a length of at least 0, got {lengths}")
        session.pending = 0
        if not session.is_view:
            session.store.cut(copy_to_device(lengths, self.device), max(lengths))

    def take_rows(self, session: Session, rows: Tensor) -> None:
        """The rows become these, in this order; a row may be repeated, so a prompt read once serves many samples."""
        if session.is_view:
            session.pending = 0
            return
        if (extra := len(rows) - session.rows) > 0:
            size = self.memory(extra, session.cache.size)
            require_memory(size, self.device, f"a cache for {extra} rows more", _FEWER)
        session.store.take_rows(rows)
        session.features = None if session.features is None else session.features[rows]

    def features_at(self, session: Session, positions: Tensor) -> Tensor:
        """(B, L, F): the features that the session keeps at committed `positions` (B, L); zeros before the first."""
        held = session.store.features
        if held is None:
            raise ArgumentError("this session keeps no features; open it with features=()")
        found = pick_rows(held, positions.clamp_min(0))
        return torch.where(positions[..., None] >= 0, found, 0.0)

    def grow(self, session: Session, slots: int) -> None:
        """Room for `slots` tokens a row, contents kept; a session never shrinks."""
        slots = round_up_16(slots)
        extra = slots - session.cache.size
        if extra > 0:
            require_memory(
                self.memory(session.rows, extra), self.device, f"a cache of {extra} tokens more a row", _FEWER
            )
            session.store.grow(slots)

    def window(self, session: Session, start: int, stop: int, longest: int) -> Session:
        """A session on the rows from `start` to `stop`, none of which has more than `longest` tokens."""
        return session.window(start, stop, longest)

    def copy_rows(self, session: Session, sources: list[int], targets: list[int], most: int) -> None:
        """The first `most` tokens of each source, or all if it has fewer, become those of the target."""
        session.copy_rows(sources, targets, most)

    def make_room(self, session: Session, rows: int, slots: int) -> None:
        """Room for `rows` rows of `slots` tokens at least, contents kept."""
        slots, rows = max(round_up_16(slots), session.cache.size), max(rows, session.rows)
        size = self.memory(rows, slots)
        if size > self.memory(session.rows, session.cache.size):
            require_memory(size, self.device, f"a cache of {rows} rows of {slots} tokens", _FEWER)
            session.make_room(rows, slots)

    def _ready(self, session: Session) -> None:
        if self.needs.source is not None and session.memory is None:
            raise MismatchError(f"{type(self.model).__name__} answers to a source: call encode before read and score")

    def _room(self, session: Session, texts: list[list[int]], filled: list[int] | None) -> list[int]:
        """The committed lengths, once it is clear that the texts fit after them."""
        self._ready(session)
        if session.is_view:
            raise ArgumentError("a view reads nothing: its owner commits; read with the session it was shared from")
        if len(texts) != session.rows:
            raise ArgumentError(f"each of {session.rows} rows needs a text, an empty one at least; got {len(texts)}")
        filled = session.filled.tolist() if filled is None else filled
        room = min(session.cache.size, self.context)
        if (longest := max(f + len(t) for f, t in zip(filled, texts, strict=True))) > room:
            raise ArgumentError(f"a row must fit into {room} tokens, got one of {longest}; shorten it")
        return filled

    def _chunk(self, session: Session, part: Tensor, fresh: Tensor, attended: int) -> Fresh:
        """The first `fresh` (B,) of the tokens (B, T) of each row follow its text; the rest is padding."""
        ids = torch.arange(part.shape[1], device=self.device)
        places = session.filled[:, None] + ids
        slots = torch.where(ids < fresh[:, None], places, session.cache.size)
        within = (ids[:, None] >= ids).expand(len(part), -1, -1)  # causal among the fresh tokens
        return Fresh(part, places.clamp_max(self.context - 1), slots, within, attended)

    def _run(self, session: Session, fresh: Fresh, select: Callable[[Tensor], Tensor] | None) -> Tensor:
        """One forward pass; logits of all fresh tokens, or of those chosen."""
        store, count = session.store, fresh.tokens.shape[1]
        slots = fresh.slots[:, -count:]
        store.position.scatter_(1, slots, fresh.where)
        store.cache.slots, store.cache.attended = slots, fresh.attended
        key = store.position[:, : fresh.attended]
        given, session.given = session.given, None
        call = Call(fresh.tokens, fresh.where, key, _seen(store.filled, fresh), store.cache, store.memory, given)
        wanted = select is not None or session.wants_features
        extra_layers = [self.layers[at] for at in session.extra_layers]
        looking = capture_hidden_states(self.head, select, extra_layers) if wanted else nullcontext(list[Tensor]())
        with looking as entered, evaluation_mode(self._all_modules):
            logits = self.driver(call)
        session.features = entered[0] if session.wants_features else None
        if store.features is not None and session.features is not None and not session.is_view:
            store.features.scatter_(1, _wide(slots, session.features), session.features)
        return logits


def _wide(slots: Tensor, features: Tensor) -> Tensor:
    """Slots (B, T) as an index into features (B, …, H)."""
    return slots[..., None].expand(-1, -1, features.shape[-1])


def _seen(filled: Tensor, fresh: Fresh) -> Tensor:
    """(B, T, M) bool: all committed slots, and of the scratch what `within` allows. Padding stands past the end."""
    if usable(filled):
        from spectr.kernels.mask import seen_slots

        return seen_slots(filled, fresh.slots, fresh.within, fresh.attended)
    count = fresh.tokens.shape[1]
    every = cached_arange(fresh.attended + 1, filled.device)
    seen = (every < filled[:, None, None]).expand(-1, count, -1).clone()
    where = fresh.slots.clamp_max(fresh.attended)[:, None, :].expand(-1, count, -1)
    return seen.scatter_(2, where, fresh.within)[:, :, : fresh.attended]
