"""Predictions for tests, and a direct implementation of how a text follows its prediction."""

from dataclasses import dataclass, field

from spectr.engine import Result

__all__ = ["KINDS", "Follower", "counted", "edited"]

LENGTH, FEW, MATCH, NEAR = 16, 8, 4, 12


@dataclass
class Follower:
    """Follows the prediction of one row, on the host and one token at a time."""

    prediction: list[int]
    start: int  # tokens of the preceding text
    place: int = 0
    reach: int = FEW
    since: int = field(init=False)

    def __post_init__(self) -> None:
        self.since = self.start

    def follow(self, text: list[int]) -> tuple[list[int], int]:
        """Return the next tokens of the prediction after a text, and how many of them are drafted."""
        came, meant = text[self.since :], self.prediction[self.place : self.place + LENGTH + 1]
        right = 0
        while right < min(len(came), len(meant)) and came[right] == meant[right]:
            right += 1
        expected = min(self.place + len(came), len(self.prediction))
        self.place = expected if right == len(came) else self._search(text[self.start :], expected)
        if came:
            whole = right == len(came) and self.reach > 0
            self.reach = 0 if right == 0 else LENGTH if whole else max(self.reach, FEW)
        self.since = len(text)
        predicted = self.prediction[self.place : self.place + LENGTH + 1]
        return predicted, min(self.reach, LENGTH, len(predicted))

    def _search(self, text: list[int], expected: int) -> int:
        best, found = (0, 0), expected
        for place in range(1, len(self.prediction) + 1):
            matched = 0
            while matched < min(MATCH, place, len(text)) and self.prediction[place - 1 - matched] == text[-1 - matched]:
                matched += 1
            ahead = place - expected
            if matched and (abs(ahead) <= NEAR or matched == MATCH):
                rank = (matched, -2 * abs(ahead) + (ahead > 0))
                if best == (0, 0) or rank > best:
                    best, found = rank, place
        return found


def counted(result: Result, prediction: list[int], prompt: list[int], generated: list[int]) -> int:
    """Return how many tokens of a text were predicted, step by step."""
    follower, text, total = Follower(prediction, len(prompt)), [*prompt, *generated], 0
    for step in result.steps:
        predicted, _ = follower.follow(text)
        same = [a == b for a, b in zip(predicted, step.tokens, strict=False)]
        total += same.index(False) if False in same else len(same)
        text += step.tokens
    return min(total, len(prediction))


KINDS = ("right", "changed", "inserted", "shortened", "swapped", "wrong", "brief")


def edited(text: list[int], kind: str, size: int) -> list[int]:
    """Return a prediction of a text that differs from it in one way."""
    half = len(text) // 2
    match kind:
        case "changed":  # every seventh token is changed
            return [(token + 1) % size if at % 7 == 3 else token for at, token in enumerate(text)]
        case "inserted":
            return [*text[:half], 0, 1, 2, *text[half:], 5, 5, 5]
        case "shortened":
            return [*text[: half - 2], *text[half + 2 :]]
        case "swapped":
            return [*text[half:], *text[:half]]
        case "wrong":
            return [(token + 1) % size for token in text]
        case "brief":
            return text[:3]
    return list(text)
