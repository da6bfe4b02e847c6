"""What a target is asked when no data is given: many kinds of requests about many things, or the user's own file."""

import hashlib
import json
import random
from pathlib import Path

from spectr.errors import ArgumentError

__all__ = ["built_in", "from_file", "split"]

TEMPLATES = (
    "Explain {} to a curious child.",
    "Write a short story in which {} plays a part.",
    "Give me five facts about {}.",
    "What are the advantages and disadvantages of {}?",
    "Write a poem about {}.",
    "Summarise what is known about {} in one paragraph.",
    "How does {} work?",
    "Write a dialogue between two friends who disagree about {}.",
    "Write a formal e-mail that asks for information about {}.",
    "Describe the history of {}.",
    "Write instructions for a beginner who wants to learn about {}.",
    "Compare {} with something similar, point by point.",
    "Why does {} matter? Answer in a few sentences.",
    "Write a Python function that has to do with {}, and explain it.",
    "Make a list of questions for a quiz about {}, with answers.",
    "Tell me a joke about {} and explain why it is funny.",
    "Write a news report about a surprising event around {}.",
    "Imagine you are an expert on {}. Introduce yourself.",
    "What would the world be like without {}?",
    "Write a diary entry of somebody who spent the day with {}.",
    "Translate a simple sentence about {} into plain, short words, and say what changed.",
    "Plan a school lesson of one hour about {}.",
    "Write a product description for something inspired by {}.",
    "Correct the common misunderstandings about {}.",
)
TOPICS = (
    "volcanoes", "bread", "the violin", "photosynthesis", "bicycles", "the Roman Empire", "honey bees", "gravity",
    "chess", "coffee", "glaciers", "the printing press", "dreams", "electric cars", "whales", "mathematics", "cheese",
    "sailing", "the moon", "vaccines", "gardens", "sorting numbers", "railways", "mushrooms", "lighthouses",
    "the heart", "spiders", "film music", "earthquakes", "soap", "prime numbers", "deserts", "football", "elephants",
    "the internet", "rice", "mirrors", "democracy", "rain", "robots", "libraries", "owls", "chocolate", "bridges",
    "pottery", "the alphabet", "wolves", "batteries", "tea", "maps", "dinosaurs", "money", "rivers", "photography",
    "salt", "running", "stars", "wheels", "bacteria", "glass", "memory", "wind power", "trees", "clocks", "cats",
    "recursion", "markets", "mountains", "tomatoes", "insurance", "shadows", "ants", "steel", "language", "the ocean",
    "theatre", "concrete", "binary search", "wool", "friendship", "submarines", "apples", "calendars", "dolphins",
    "probability", "ice cream", "castles", "satellites", "dance", "the stomach", "horses", "text files", "fire",
    "snow", "potatoes", "museums", "magnets", "fashion", "cancer research", "fishing", "the brain", "kites",
    "databases", "frogs", "justice", "olive oil", "thunderstorms", "board games", "airports", "silk", "parrots",
    "teamwork", "water clocks", "the sun",
)  # fmt: skip

TASKS = (
    "reverses the words of a sentence", "finds the longest word in a file", "checks whether a number is even",
    "computes the average of a list", "removes duplicates from a list", "counts the vowels of a string",
    "converts Celsius to Fahrenheit", "prints a multiplication table", "finds the second largest element",
    "merges two sorted lists", "computes the factorial of a number", "checks whether a word is a palindrome",
    "reads a CSV file and sums a column", "generates a random password", "prints the first n square numbers",
    "counts how often each letter occurs", "rotates a list by k places", "validates an e-mail address",
    "computes the greatest common divisor", "flattens a nested list", "simulates rolling two dice",
    "sorts people by their age", "finds all divisors of a number", "computes compound interest",
    "transposes a matrix", "implements a stack", "implements a queue with two stacks", "draws a triangle of stars",
    "finds the missing number from 1 to n", "replaces every tab with four spaces",
    "computes the distance of two points", "groups words by their first letter",
    "converts a number to Roman numerals", "checks for balanced brackets", "computes a running total",
    "splits a bill between friends", "prints the days between two dates", "finds the intersection of two sets",
    "encrypts a text with a Caesar shift", "counts the lines of a file",
)  # fmt: skip
LANGUAGES = ("Python", "JavaScript", "Java", "C", "Go")


def built_in(count: int, seed: int = 0) -> list[str]:
    """`count` prompts, every pair of template and topic at most once before any comes twice."""
    pairs = [template.format(topic) for template in TEMPLATES for topic in TOPICS]
    pairs += [f"Write a {language} program that {task}." for language in LANGUAGES for task in TASKS]
    random.Random(seed).shuffle(pairs)
    return [pairs[at % len(pairs)] for at in range(count)]


def _prompt_in(line: str, where: str) -> str:
    """The prompt in a line of JSON: a string, or an object with one of the usual names."""
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise ArgumentError(f"{where} must be one JSON value a line: {error}") from None
    if isinstance(found, dict):
        found = next((found[name] for name in ("prompt", "text", "instruction", "question") if name in found), None)
    if not isinstance(found, str) or not found:
        raise ArgumentError(f"{where} must be a string, or an object with prompt, text, instruction or question")
    return found


def from_file(path: Path) -> list[str]:
    """Prompts of a file: one a line, or with the ending .jsonl one JSON value a line."""
    if not path.is_file():
        raise ArgumentError(f"--data must be a file, got {path}")
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines:
        raise ArgumentError(f"--data must hold at least one prompt, and {path} is empty")
    if path.suffix == ".jsonl":
        return [_prompt_in(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]
    return lines


def split(prompts: list[str], share: float = 0.02) -> tuple[list[str], list[str]]:
    """Prompts to train on and prompts held out; a prompt is always on the same side, wherever it stands."""

    def held_out(prompt: str) -> bool:
        return int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:4], "big") < share * 2**32

    train, held = [p for p in prompts if not held_out(p)], [p for p in prompts if held_out(p)]
    return (train, held) if train and held else (prompts[1:] or prompts, prompts[:1])
