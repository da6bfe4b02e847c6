"""The state of R rows on the device, changed in place by steps: texts, policies, seeds, and which rows are active.

`spectr.engine.placement` says which request is in which row.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from spectr.coins import seed_word
from spectr.engine.request import Request
from spectr.policy import History, PolicyRows
from spectr.policy.history import Text
from spectr.policy.stages import rounded
from spectr.rows import copy_to_device

__all__ = ["Rows"]


class Rows:
    """The state of R rows with room for M tokens each."""

    def __init__(
        self,
        rows: int,
        slots: int,
        vocabulary: int,
        device: torch.device,
        policies: type[PolicyRows] = PolicyRows,
    ) -> None:
        self.device = device
        self.history = History(rows, slots, vocabulary, device)
        self.policies = policies(rows, vocabulary, device)
        with torch.inference_mode(False):
            self.seed = torch.zeros(rows, dtype=torch.int64, device=device)
            self.active = torch.zeros(rows, dtype=torch.bool, device=device)

    def __len__(self) -> int:
        """The number of rows that are allocated."""
        return len(self.seed)

    @property
    def version(self) -> int:
        """A number that changes when a tensor is replaced: captured steps know tensors by their addresses."""
        return self.history.version + self.policies.version

    @torch.inference_mode(False)
    def put(self, first: int, requests: Sequence[Request], stops: frozenset[int]) -> None:
        """Put requests into the rows from `first` on; they take part in steps once they are activated."""
        texts = [Text(r.prompt, r.generated, r.max_new_tokens, stops | r.stop_ids, r.padding) for r in requests]
        self.policies.put(first, [request.policy for request in requests])
        self.history.put(first, texts)
        rows = slice(first, first + len(requests))
        self.seed[rows] = copy_to_device([seed_word(request.seed) for request in requests], self.device)
        self.active[rows] = False

    def policy_stages(self, rows: int, *, exactly: bool) -> frozenset[str]:
        """Return the stages that the policies of the first rows use, and allocate the tables they need. Unless
        `exactly`, the set is rounded up to one of few, so that few graphs are captured."""
        stages: frozenset[str] = frozenset().union(*set(self.policies.used[:rows]))
        stages = stages if exactly else rounded(stages)
        self.history.look_back(seen="repetition_penalty" in stages, counts="count_penalties" in stages)
        if "bias" in stages:
            self.policies.make_bias()
        return stages

    def activate(self, first: int, count: int) -> None:
        """Let rows take part in steps."""
        self.active[first : first + count] = True

    def deactivate(self, first: int, count: int) -> None:
        """End the part of rows in steps."""
        self.active[first : first + count] = False

    def copy_rows(self, sources: list[int], targets: list[int]) -> None:
        """Copy rows `sources` to rows `targets`."""
        self.history.copy_rows(sources, targets)
        self.policies.copy_rows(sources, targets)
        source, target = copy_to_device(sources, self.device), copy_to_device(targets, self.device)
        for table in (self.seed, self.active):
            table[target] = table[source]

    @torch.inference_mode(False)
    def make_room(self, rows: int, slots: int) -> None:
        """Allocate at least `rows` rows of `slots` tokens."""
        extra = max(0, rows - len(self))
        self.history.make_room(rows, slots)
        self.policies.make_room(rows)
        self.seed = torch.nn.functional.pad(self.seed, (0, extra))
        self.active = torch.nn.functional.pad(self.active, (0, extra))

    def window(self, rows: int) -> "Rows":
        """Return a view of the first rows, which is valid until rows are put, moved or allocated."""
        view = Rows.__new__(Rows)
        view.device = self.device
        view.history, view.policies = self.history.window(rows), self.policies.window(rows)
        view.seed, view.active = self.seed[:rows], self.active[:rows]
        return view

    @property
    def root(self) -> Tensor:
        """(B,) int64: the last token of each text."""
        last = (self.history.length - 1).clamp_min(0)
        return self.history.tokens.gather(1, last[:, None])[:, 0].clamp_min(0)
