"""No drafter: plain decoding through the same step."""

from typing import ClassVar

from spectr.draft.trie import draft_of_paths
from spectr.types import Draft, Siblings

__all__ = ["NoDrafter"]


class NoDrafter:
    """Every tree is its root."""

    name: ClassVar[str] = "none"
    siblings: ClassVar[Siblings] = "fixed"
    nodes: int = 1

    def propose(self, texts: list[list[int]]) -> Draft:
        """The roots alone."""
        return draft_of_paths([text[-1] for text in texts], [[] for _ in texts], nodes=self.nodes)
