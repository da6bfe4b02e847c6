"""Draws docs/draft_tree.svg: the tree and the accepted path of a real step of the default model and drafter."""

from html import escape
from pathlib import Path

import spectr
from spectr.engine import Request
from spectr.engine.metrics import child_ranks
from spectr.types import Coins, Draft, LogitsAt, Verdict
from spectr.verify import Rule
from spectr.verify.rule import Descent

PROMPT, SEED, NODES, WANTED = "Why does the sea have tides?", 3, 16, 3
ACROSS, DOWN, LEFT, TOP = 104, 26, 12, 30


class _Watched(Rule):
    """A rule that records the first step that accepts enough drafts, not all of them the most likely child."""

    def __init__(self, inner: Rule) -> None:
        self.inner, self.card = inner, inner.card
        self.step: tuple[Draft, Verdict] | None = None

    def verdict(self, logits: LogitsAt, draft: Draft, coins: Coins, descent: Descent) -> Verdict:
        """Return the inner rule's verdict."""
        found = self.inner.verdict(logits, draft, coins, descent)
        if self.step is None and int(found.length[0]) >= WANTED and int(child_ranks(descent.tree, found)[0].max()) > 0:
            self.step = draft, found
        return found


def _step(lm: spectr.LM) -> tuple[Draft, Verdict]:
    """Return the draft to show, and the verdict on it."""
    rule = _Watched(lm.engine.rule)
    lm.engine.with_parts(rule=rule, captures=False).generate([Request(lm.encode(PROMPT), SEED, 96)])
    assert rule.step is not None
    return rule.step


def _places(parents: list[int]) -> list[tuple[int, float]]:
    """Return the depth and height of each node: leaves below each other, parents centred on their children."""
    depth, rows, height = [0] * len(parents), 0, dict[int, float]()
    for node in range(1, len(parents)):
        depth[node] = depth[parents[node]] + 1

    def put(node: int) -> float:
        nonlocal rows
        children = [put(child) for child in range(1, len(parents)) if parents[child] == node]
        if not children:
            rows += 1
            height[node] = rows - 1
        else:
            height[node] = (children[0] + children[-1]) / 2
        return height[node]

    put(0)
    return [(depth[node], height[node]) for node in range(len(parents))]


def _svg(words: list[str], parents: list[int], kept: set[int], bonus: str) -> str:
    places = _places(parents)
    width = LEFT + ACROSS * (2 + max(depth for depth, _ in places))
    tall = TOP + DOWN * (1 + int(max(height for _, height in places))) + 14

    def at(node: int) -> tuple[float, float]:
        return LEFT + ACROSS * places[node][0], TOP + DOWN * places[node][1]

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{tall}" viewBox="0 0 {width} {tall}" '
        'font-family="ui-monospace, monospace" font-size="13">',
        f'<rect width="{width}" height="{tall}" rx="8" fill="#ffffff"/>',
    ]
    for node in range(1, len(parents)):
        (x, y), (u, v) = at(parents[node]), at(node)
        color, weight = ("#1f9d55", 2.5) if node in kept else ("#b9c0c8", 1)
        parts.append(
            f'<path d="M{x + 88:.0f} {y:.0f} C{x + 98:.0f} {y:.0f} {u - 12:.0f} {v:.0f} {u - 3:.0f} {v:.0f}" '
            f'fill="none" stroke="{color}" stroke-width="{weight}"/>'
        )
    for node, word in enumerate(words):
        x, y = at(node)
        color = "#1f9d55" if node in kept else "#111827" if node == 0 else "#8a939e"
        weight = "bold" if node in kept or node == 0 else "normal"
        parts.append(f'<text x="{x:.0f}" y="{y + 4:.0f}" fill="{color}" font-weight="{weight}">{escape(word)}</text>')
    x, y = at(max(kept))
    y += -14 if max(kept) in parents[1:] else 4  # above the line to its children, if it has any
    parts.append(f'<text x="{x + ACROSS:.0f}" y="{y:.0f}" fill="#b45309" font-weight="bold">{escape(bonus)}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Draw the tree."""
    lm = spectr.load("smollm2-135m", nodes=NODES)
    draft, verdict = _step(lm)
    tokens, parents = draft.tokens[0].tolist(), draft.parents[0].tolist()
    words = [repr(lm.tokenizer.decode([token]))[1:-1].replace(" ", "·")[:10] for token in tokens]
    kept = {int(node) for node in verdict.path[0].tolist() if node >= 0}
    bonus = repr(lm.tokenizer.decode([int(verdict.bonus[0])]))[1:-1].replace(" ", "·")[:10]
    Path("docs/draft_tree.svg").write_text(_svg(words, parents, kept, bonus), encoding="utf-8")


if __name__ == "__main__":
    main()
