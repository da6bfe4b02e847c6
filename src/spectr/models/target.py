"""The target: a language model that reads texts, scores whole token trees in one call, and keeps accepted paths.

Rows advance by different lengths. The committed tokens of a row fill its slots 0, 1, 2, … in order, and scratch nodes
use the slots after them. Keeping a path moves its slots down to the end of the text. A node's position is the length of
the text plus its depth in the tree, whatever slot it uses.
"""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spectr.errors import ArgumentError, MismatchError
from spectr.models.cache import SlotCache
from spectr.models.compiled import CompiledLayers
from spectr.models.digest import weights_digest
from spectr.models.drivers.call import Call
from spectr.models.encoder import encode
from spectr.models.features import capture_features, last_state
from spectr.models.fresh_tokens import FreshTokens, feature_index, prompt_tokens, visible_slots
from spectr.models.layers import layers_of, norms_and_rotary
from spectr.models.memory import kv_bytes, require_memory
from spectr.models.modes import evaluation_mode
from spectr.models.prefill import GraphPrefill
from spectr.models.session import Session, Store, round_up_16
from spectr.models.support import driver_of, needs_of
from spectr.rows import cached_arange, copy_to_device, pick_rows
from spectr.types import Layers

__all__ = ["Session", "Target"]

_FEWER = "use fewer rows or a smaller max_new_tokens"


class Target:
    """Scores token trees with an unmodified causal or encoder-decoder model of transformers."""

    keeps_prefixes = True
    is_sharded = False  # True: other processes take part in every call

    def __init__(self, model: PreTrainedModel, chunk: int = 512) -> None:
        self.model = model
        self._all_modules = tuple(model.modules())  # between calls a user's model stays in its own mode
        self.needs = needs_of(model)
        self.driver = driver_of(model, self.needs)
        self.chunk = chunk  # prompt tokens per call
        self.context = self.needs.context
        self.device = model.device
        self.output_layer: torch.nn.Module = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        own = getattr(model, "vocabulary", None) or getattr(self.output_layer, "out_features", None)
        self.vocabulary = int(own or model.config.vocab_size)
        width = (
            getattr(self.output_layer, "in_features", None) or model.config.get_text_config(decoder=True).hidden_size
        )
        self.width = int(width)  # width of what enters the output layer
        self.joint = self.device.type == "cuda"  # one buffer for all layers, where launches cost more than copies
        self._compiled: CompiledLayers | None = None

    def compile(self) -> None:
        """Score trees with compiled layers from now on, and read prompts with them where CUDA graphs are replayed. The
        first call of each shape takes seconds."""
        if self._compiled is None and any("forward" in vars(layer) for layer in self.layers):
            raise MismatchError("layers with a forward of their own, as device_map makes them, are not compiled")
        self._compiled = self._compiled or CompiledLayers(self.layers, norms_and_rotary(self.model))

    @property
    def model_for_drafters(self) -> Any:
        """The model whose embedding and output layer a drafter may use; both are whole, not sharded."""
        return self.model

    def first_layers(self, layers: int) -> "Target | None":
        """Return a target of the first layers that all processes of a sharded model have, None for other models."""
        return None

    def digest(self) -> str:
        """Return a digest of all weights."""
        return weights_digest(self.model)

    def cache_bytes(self, rows: int, slots: int) -> int:
        """Return the bytes of a cache, computed from the widths in the config."""
        whole = self.model.config
        config = whole if whole.is_encoder_decoder else whole.get_text_config(decoder=True)
        return kv_bytes(config, rows, slots, self.model.dtype)

    def open(self, rows: int, slots: int, *, feature_layers: Layers | None = None, lasting: bool = True) -> Session:
        """Open a session with room for `rows` rows of `slots` tokens, trees included.

        With `feature_layers` the session keeps the features of every token: what entered the output layer, followed by
        what left these layers. With `lasting=False` it keeps only those of the last call."""
        if rows < 1 or slots < 1:
            raise ArgumentError(f"a session needs at least one row and one slot, got {rows} and {slots}")
        slots = round_up_16(slots)
        require_memory(self.cache_bytes(rows, slots), self.device, f"a cache of {rows} rows of {slots} tokens", _FEWER)
        position = torch.zeros(rows, slots + 1, dtype=torch.int64, device=self.device)
        filled = torch.zeros(rows, dtype=torch.int64, device=self.device)
        store = Store(SlotCache(slots, rows, self._uniform_layers if self.joint else 0), position, filled)
        if feature_layers is not None and lasting:
            width = (1 + len(feature_layers)) * self.width
            store.features = torch.zeros(rows, slots + 1, width, dtype=self.model.dtype, device=self.device)
        return Session(store, feature_layers=feature_layers)

    @cached_property
    def _uniform_layers(self) -> int:
        """The number of layers if all of them cache keys and values of one shape on one device, else 0."""
        config = self.model.config.get_text_config(decoder=True)
        kinds = set(getattr(config, "layer_types", None) or ())
        apart = self.model.config.is_encoder_decoder or len(kinds) > 1 or getattr(self.model, "hf_device_map", None)
        return 0 if apart else int(config.num_hidden_layers)

    @cached_property
    def layers(self) -> list[torch.nn.Module]:
        """The decoder layers, in order."""
        return layers_of(self.model)

    def share(self, session: Session) -> Session:
        """Return a view of a session that shares its cache and has scratch nodes of its own, in the same slots.

        A drafter made of the target's first layers uses it. Only the owner commits tokens: `keep` and `rewind` on
        a view discard its scratch nodes and do nothing else."""
        return Session(session.store, is_view=True)

    def check_source(self, source: Sequence[int] | None) -> None:
        """Raise if a decoder-only model is given a source, or an encoder-decoder model none, or one that is invalid."""
        name = type(self.model).__name__
        if self.needs.source is None and source is not None:
            raise MismatchError(f"{name} has no encoder; put the source into the prompt instead")
        if self.needs.source is None:
            return
        if source is None:
            raise MismatchError(f"{name} has an encoder and needs a source; give every request one")
        if not source:
            raise ArgumentError("a source must have at least one token, got an empty one; drop that row")
        if len(source) > self.needs.source:
            raise ArgumentError(
                f"a source must fit into the encoder's {self.needs.source} positions, got one of {len(source)}; "
                "shorten it"
            )
        size = int(self.model.config.vocab_size)
        if max(source) >= size or min(source) < 0:
            raise ArgumentError(f"tokens of a source must lie in 0 … {size - 1}, got {list(source)}")

    @torch.no_grad()
    def encode_row(self, session: Session, row: int, source: list[int]) -> None:
        """Encode the source of one row; the other rows keep theirs."""
        self.check_source(source)
        with evaluation_mode(self._all_modules):
            made = encode(self.model, source, session.cache)
        if session.store.sources is None:
            session.store.sources = made.for_rows(session.rows)
        session.store.sources.put_row(row, made)
        session.windows.clear()

    @torch.no_grad()
    def read(self, session: Session, texts: list[list[int]], filled: list[int] | None = None) -> None:
        """Prefill: commit more tokens to each row, in chunks; a row may get none. Scratch nodes are discarded. If
        `filled` gives the committed lengths of the rows, they are not copied from the device."""
        filled = self._check_room(session, texts, filled)
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
        """Read all rows together, one chunk after the other."""
        longest = max(map(len, texts))
        tokens = copy_to_device([t + [0] * (longest - len(t)) for t in texts], self.device)
        counts = copy_to_device([len(t) for t in texts], self.device)
        features: list[Tensor] = []
        inputs = session.input_features
        for start in range(0, longest, self.chunk):
            part = tokens[:, start : start + self.chunk]
            session.input_features = None if inputs is None else inputs[:, start : start + self.chunk]
            attended = max(f + min(len(t), start + part.shape[1]) for f, t in zip(filled, texts, strict=True))
            self._prefill_part(session, part, (counts - start).clamp(0, part.shape[1]), attended)
            features.extend([] if session.features is None else [session.features])
        session.features, session.input_features = torch.cat(features, 1) if features else None, None

    def _prefill_part(self, session: Session, tokens: Tensor, counts: Tensor, attended: int) -> None:
        """Run one pass and commit the first `counts` (B,) of the tokens (B, T) of each row; the rest is padding."""
        fresh = prompt_tokens(session, tokens, counts, attended=attended, context=self.context)
        self._run(session, fresh, last_state)
        session.store.filled += counts

    def capture_prefill(self, session: Session) -> None:
        """Read prompts into this session by replaying CUDA graphs from now on, if the model can be captured."""
        if self.device.type == "cuda" and self.needs.source is None and self._uniform_layers and not session.is_view:
            session.prefill = self.graph_prefill(session)

    def graph_prefill(self, session: Session) -> GraphPrefill:
        """Return a reader that prefills this session's rows in buffers of its own, with captured passes."""
        layers, lasting = session.feature_layers, session.store.features is not None

        def read(apart: Session, tokens: Tensor, counts: Tensor, attended: int) -> None:
            with nullcontext() if self._compiled is None else self._compiled.on():
                self._prefill_part(apart, tokens, counts, attended)

        return GraphPrefill(read, lambda rows, slots: self.open(rows, slots, feature_layers=layers, lasting=lasting))

    @torch.no_grad()
    def score(
        self, session: Session, tokens: Tensor, ancestors: Tensor, depth: Tensor, *, only: Tensor | None = None
    ) -> Tensor:
        """Add scratch nodes with `tokens` (B, T) and return the logits after each of them, (B, T, V).

        `depth` (B, T) is added to the length of the text to give positions. `ancestors` (B, T, S + T) says which of the
        S scratch nodes before and of these T each node attends to, itself included. With `only` (B, M), indices into
        the T nodes, the output layer runs for those nodes alone and the result is (B, M, V)."""
        self._check_encoded(session)
        scratch = session.pending + tokens.shape[1]
        if ancestors.shape != (*tokens.shape, scratch):
            raise ArgumentError(
                f"ancestors must be {(*tokens.shape, scratch)}: {session.pending} scratch nodes were scored before "
                f"these {tokens.shape[1]}; got {tuple(ancestors.shape)}"
            )
        attended = session.store.attended_slots(scratch)
        slots = session.filled[:, None] + cached_arange(scratch, self.device)
        where = (session.filled[:, None] + depth).clamp_max(self.context - 1)  # nothing is emitted beyond it
        select = None if only is None else partial(pick_rows, nodes=only)
        with nullcontext() if self._compiled is None else self._compiled.on():
            logits = self._run(session, FreshTokens(tokens, where, slots, ancestors, attended), select)
        session.pending = scratch
        return logits

    def keep(self, session: Session, nodes: Tensor) -> None:
        """Commit the scratch nodes `nodes` (B, L) in this order and discard the others. Entries of -1 are padding and
        may stand anywhere."""
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
            index = feature_index(target, store.features)
            store.features.scatter_(1, index, pick_rows(store.features, source))
        store.position.scatter_(1, target, places)
        store.advance(real.sum(-1), nodes.shape[1])

    def rewind(self, session: Session, lengths: list[int]) -> None:
        """Discard all scratch nodes, and the committed tokens of each row beyond its length in `lengths`."""
        if len(lengths) != session.rows or min(lengths) < 0:
            raise ArgumentError(f"each of {session.rows} rows needs a length of at least 0, got {lengths}")
        session.pending = 0
        if not session.is_view:
            session.store.cut(copy_to_device(lengths, self.device), max(lengths))

    def features_at(self, session: Session, positions: Tensor) -> Tensor:
        """Return the features (B, L, F) kept at committed `positions` (B, L), zeros at negative positions."""
        features = session.store.features
        if features is None:
            raise ArgumentError("this session keeps no features; open it with feature_layers=()")
        return torch.where(positions[..., None] >= 0, pick_rows(features, positions.clamp_min(0)), 0.0)

    def window(self, session: Session, start: int, stop: int, longest: int) -> Session:
        """Return a session on the rows from `start` to `stop`, none of which has more than `longest` tokens."""
        return session.window(start, stop, longest)

    def copy_rows(self, session: Session, sources: list[int], targets: list[int], most: int) -> None:
        """Copy the first `most` tokens of each source row, or all if it has fewer, to the matching target row."""
        session.copy_rows(sources, targets, most)

    def make_room(self, session: Session, rows: int, slots: int) -> None:
        """Make room for at least `rows` rows of `slots` tokens and keep the contents."""
        slots, rows = max(round_up_16(slots), session.cache.size), max(rows, session.rows)
        size = self.cache_bytes(rows, slots)
        if size > self.cache_bytes(session.rows, session.cache.size):
            require_memory(size, self.device, f"a cache of {rows} rows of {slots} tokens", _FEWER)
            session.make_room(rows, slots)

    def _check_encoded(self, session: Session) -> None:
        if self.needs.source is not None and session.sources is None:
            raise MismatchError(
                f"{type(self.model).__name__} has an encoder and needs a source; call encode_row before read and score"
            )

    def _check_room(self, session: Session, texts: list[list[int]], filled: list[int] | None) -> list[int]:
        """Raise if the texts do not fit behind the committed tokens; return the committed lengths."""
        self._check_encoded(session)
        if session.is_view:
            raise ArgumentError(
                "a view cannot read: only its owner commits tokens; read with the session that it was shared from"
            )
        if len(texts) != session.rows:
            raise ArgumentError(
                f"texts must hold one text for each of {session.rows} rows, empty ones included; got {len(texts)}"
            )
        filled = session.filled.tolist() if filled is None else filled
        room = min(session.cache.size, self.context)
        if (longest := max(f + len(t) for f, t in zip(filled, texts, strict=True))) > room:
            raise ArgumentError(f"a row must fit into {room} tokens, got one of {longest}; shorten it")
        return filled

    def _run(self, session: Session, fresh: FreshTokens, select: Callable[[Tensor], Tensor] | None) -> Tensor:
        """Run one forward pass and return the logits of all fresh tokens, or of those that `select` picks."""
        store, count = session.store, fresh.tokens.shape[1]
        slots = fresh.slots[:, -count:]
        store.position.scatter_(1, slots, fresh.positions)
        store.cache.slots, store.cache.attended = slots, fresh.attended
        key = store.position[:, : fresh.attended]
        features, session.input_features = session.input_features, None
        seen, ends = visible_slots(store.filled, fresh), store.filled + fresh.within.shape[-1]
        call = Call(fresh.tokens, fresh.positions, key, seen, ends, store.cache, store.sources, features)
        wanted = select is not None or session.feature_layers is not None
        layers = [self.layers[at] for at in session.feature_layers or ()]
        hooks = capture_features(self.output_layer, select, layers) if wanted else nullcontext(list[Tensor]())
        with hooks as entered, evaluation_mode(self._all_modules):
            logits = self.driver(call)
        session.features = None if session.feature_layers is None else entered[0]
        if store.features is not None and session.features is not None and not session.is_view:
            store.features.scatter_(1, feature_index(slots, session.features), session.features)
        return logits
