"""A causal language model as a target: prompts in, logits of whole token trees out, accepted paths kept.

Rows advance by different lengths. A row's committed tokens fill its slots 0, 1, 2, … in order; a tree stands in the
slots after them while it is scored, and keeping a path moves its slots down. Positions are depth, not slot order.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spectr.errors import ArgumentError
from spectr.models.cache import SlotCache
from spectr.models.support import needs_of

__all__ = ["Session", "Target"]


@dataclass(slots=True)
class Session:
    """What the target remembers of a batch of rows; the only thing that changes."""

    cache: SlotCache
    position: Tensor  # (B, M) int64: the position each slot holds
    filled: Tensor  # (B,) int64: committed tokens whose keys and values are in the cache


class Target:
    """An unmodified `AutoModelForCausalLM`, scored on trees."""

    def __init__(self, model: PreTrainedModel, chunk: int = 512) -> None:
        self.model = model
        model.eval()  # type: ignore[no-untyped-call]
        self.needs = needs_of(model)
        self.chunk = chunk  # prompt tokens per call
        self.context = int(getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", 1 << 30))

    def memory(self, rows: int, slots: int) -> int:
        """Bytes of a cache, from the widths in the config."""
        config = self.model.config.get_text_config(decoder=True)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return 2 * rows * slots * int(config.num_hidden_layers * heads * width) * self.model.dtype.itemsize

    def open(self, rows: int, slots: int) -> Session:
        """Room for `rows` rows of `slots` tokens, trees included."""
        if rows < 1 or slots < 1:
            raise ArgumentError(f"a session needs at least one row and one slot, got {rows} and {slots}")
        device = self.model.device
        position = torch.zeros(rows, slots, dtype=torch.int64, device=device)
        return Session(SlotCache(slots), position, torch.zeros(rows, dtype=torch.int64, device=device))

    @torch.no_grad()
    def read(self, session: Session, prompts: list[list[int]]) -> None:
        """Commit a prompt to each row, in chunks; an empty one commits nothing."""
        longest = max(map(len, prompts))
        if longest > min(session.cache.size, self.context):
            room = min(session.cache.size, self.context)
            raise ArgumentError(f"a prompt must fit into {room} tokens, got one of {longest}; shorten it")
        device = self.model.device
        tokens = torch.tensor([p + [0] * (longest - len(p)) for p in prompts], device=device)
        counts = torch.tensor([len(p) for p in prompts], device=device)
        for start in range(0, longest, self.chunk):
            part = tokens[:, start : start + self.chunk]
            ids = torch.arange(part.shape[1], device=device)
            within = (ids[:, None] >= ids).expand(len(prompts), -1, -1)  # causal among the fresh tokens
            fresh = (counts - start).clamp(0, part.shape[1])
            self._call(session, part, within, ids.expand_as(part), logits=False)
            session.filled = session.filled + fresh

    @torch.no_grad()
    def score(self, session: Session, tokens: Tensor, ancestors: Tensor, depth: Tensor) -> Tensor:
        """Logits (B, N, V) after every node of trees with `tokens` (B, N), whose roots are the next tokens to commit;
        `ancestors` (B, N, N) says which nodes a node sees, itself included."""
        return self._call(session, tokens, ancestors, depth, logits=True)

    def keep(self, session: Session, path: Tensor) -> None:
        """Commit the root and the nodes of `path` (B, D), padded with -1, of the trees just scored."""
        nodes = torch.nn.functional.pad(path, (1, 0))  # the root first
        places = torch.arange(nodes.shape[1], device=path.device)
        base = session.filled[:, None]
        source = torch.where(nodes >= 0, base + nodes, base + places)
        session.cache.move(source, base + places)
        session.position.scatter_(1, base + places, base + places)
        session.filled = session.filled + (nodes >= 0).sum(-1)

    def take_rows(self, session: Session, rows: Tensor) -> None:
        """Let the other rows leave the batch."""
        session.cache.take_rows(rows)
        session.position, session.filled = session.position[rows], session.filled[rows]

    def _call(self, session: Session, tokens: Tensor, within: Tensor, depth: Tensor, *, logits: bool) -> Tensor:
        """One forward pass of fresh tokens (B, T) in the slots after the filled ones; logits of all, or of one."""
        count = tokens.shape[1]
        slots = session.filled[:, None] + torch.arange(count, device=tokens.device)
        used = int(slots.max()) + 1
        if used > session.cache.size:
            raise ArgumentError(
                f"the cache has {session.cache.size} slots and {used} are needed; open a larger session"
            )
        where = (session.filled[:, None] + depth).clamp_max(self.context - 1)  # beyond it nothing is ever emitted
        session.position.scatter_(1, slots, where)
        session.cache.slots, session.cache.used = slots, used
        seen = self._seen(session, within, slots, used)
        masks = self._masks(seen, where, session.position[:, :used])
        few = {"logits_to_keep": 1} if self.needs.accepts_rows and not logits else {}
        out: Any = self.model(
            input_ids=tokens,
            position_ids=where,
            attention_mask=masks,
            past_key_values=session.cache,
            use_cache=True,
            **few,
        )
        found: Tensor = out.logits
        return found

    def _seen(self, session: Session, within: Tensor, slots: Tensor, used: int) -> Tensor:
        """(B, T, M) bool: all committed slots, and of the fresh ones those that `within` (B, T, T) allows."""
        every = torch.arange(used, device=slots.device)
        seen = (every < session.filled[:, None, None]).expand(-1, slots.shape[1], -1).clone()
        return seen.scatter_(2, slots[:, None, :].expand(-1, slots.shape[1], -1), within)

    def _masks(self, seen: Tensor, query: Tensor, key: Tensor) -> Tensor | dict[str, Tensor]:
        """Additive masks, one or one for each kind of layer; a bool mask is silently wrong in eager attention."""
        window = self.needs.window
        near = seen if window is None else seen & (query[:, :, None] - key[:, None, :] < window)
        if self.needs.layer_kinds is None:
            return self._additive(near)
        return {kind: self._additive(near if "sliding" in kind else seen) for kind in self.needs.layer_kinds}

    def _additive(self, seen: Tensor) -> Tensor:
        dtype = self.model.dtype
        zeros = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
        return zeros.masked_fill_(~seen, torch.finfo(dtype).min)[:, None]
