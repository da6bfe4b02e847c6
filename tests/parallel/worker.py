"""The program that torchrun starts in tests: `worker.py tiny FOLDER OTHER OUT` or `worker.py default OUT`.

All ranks call `spectr.load`, which returns only on rank 0. That rank writes its results to OUT.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.parallel.cases import DEFAULT, default_texts, tiny_texts, verdicts

import spectr

SIZE = int(os.environ.get("WORLD_SIZE", "1"))  # set by torchrun; pytest also imports this file when it collects tests


def _counts(lm: Any) -> dict[str, int]:
    group = lm.opened.target.group
    return {"calls": group.calls, "rows": group.rows, "rounded": group.rounded}


def tiny(folder: str, other: str) -> dict[str, Any]:
    """Run every rule and drafter, then many verdicts, on a small model in float64."""
    lm = spectr.load(folder, "none", dtype="float64", tensor_parallel=SIZE)
    texts = tiny_texts(lm.opened, Path(other))
    many = verdicts(lm.opened, 64, 160)
    return {"texts": texts, "many": many, "digest": lm.opened.target.digest(), **_counts(lm)}


def default() -> dict[str, Any]:
    """Run every rule and drafter on the default model."""
    lm = spectr.load(DEFAULT, weights="float32", tensor_parallel=SIZE)
    return {"texts": {name: texts for name, (_, texts) in default_texts(lm).items()}, "name": repr(lm), **_counts(lm)}


if __name__ == "__main__":
    *asked, out = sys.argv[1:]
    found = {"tiny": tiny, "default": default}[asked[0]](*asked[1:])
    Path(out).write_text(json.dumps(found))
