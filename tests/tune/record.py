"""Makes `recorded.json`: how many draft tokens each plan of a small menu would have had accepted, at every position of
real texts. `python tests/tune/record.py` writes it again (a few minutes on two cores); tests only read it."""

import json
from pathlib import Path

import spectr
from spectr.draft.profile import Way
from spectr.engine import Job, Request
from spectr.policy import Policy
from spectr.tune.pool import Pool, accepted
from spectr.tune.ways import Bench, Reach
from spectr.tune.yields import Text, census

CODE = (
    "Write a Python function that merges two sorted lists, with tests.",
    "Write a Python class for a stack with push, pop and peek, and show how it is used.",
    "Print the multiplication table from 1 to 10 in Java.",
    "Write a C program that counts the words of its input.",
)
POETRY = (
    "Write a poem about a heron who has forgotten the river.",
    "Write a sad song of a lighthouse in a country without a sea.",
    "Write free verse about rust, velvet and the number nine.",
    "Write an ode to an umbrella that was left on a train.",
)
PLANS = ((1, 1, 2), (1, 2, 3), (2, 2, 4), (2, 3, 6), (4, 3, 8), (4, 4, 16))  # beam, depth, nodes: the menu of a CPU
TOKENS = 160


def accepted_by_plan(text: Text) -> list[list[int]]:
    """For each plan, at each position."""
    found = []
    for beam, depth, nodes in PLANS:
        lengths = []
        for at, (pool,) in enumerate(text.records):
            assert isinstance(pool, Pool)
            lengths.append(accepted(pool.places(text.tokens[at : at + depth], beam, 1.0), nodes, depth))
        found.append(lengths)
    return found


def main() -> None:
    lm = spectr.load("smollm2-135m", "none")
    bench = Bench(lm, ("auto",), ("race",), Reach((2, 16), (1, 4), 4))
    widest = bench.drafter(Way("auto", "race", 4, 4, 16))
    found: dict[str, list[list[list[int]]]] = {}
    for heat in (1.0, 1.5):
        requests = [Request(lm.encode(prompt), at, TOKENS) for at, prompt in enumerate((*CODE, *POETRY))]
        texts = census(bench.engine(Way()), [widest], (1.0,), Job(requests, Policy(heat)))
        every = [accepted_by_plan(text) for text in texts]
        found |= {f"code T={heat:g}": every[: len(CODE)], f"poetry T={heat:g}": every[len(CODE) :]}
    data = {"plans": [{"drafts": b, "length": d, "nodes": n} for b, d, n in PLANS], "accepted": found}
    Path(__file__).with_name("recorded.json").write_text(json.dumps(data) + "\n")


if __name__ == "__main__":
    main()
