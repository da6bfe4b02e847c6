"""Checks import directions, docstrings and hygiene of the repository by reading its files.

Imports inside functions count; the `"module:attribute"` strings of registries do not. Each check is a function of a
folder, so that it can also be run on a small package with a planted fault.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "spectr"

FACADE = "spectr"  # the package itself: what `spectr/__init__.py` exports


def layers(page: str) -> list[list[str]]:
    """Return the modules and folders of each layer, lowest first, as the section "Where things are" lists them."""
    listed = re.search(r"^src/spectr/\n((?:  .*\n)+)", page, re.MULTILINE)
    assert listed is not None
    lines = [re.split(r" {3,}", line.strip())[0].split() for line in listed[1].splitlines()]
    return [[FACADE if unit == "__init__" else unit.rstrip("/") for unit in line] for line in lines]


LAYERS = layers((ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8"))
RANK = {unit: rank for rank, layer in enumerate(LAYERS) for unit in layer}
EVIDENCE = {"train", "theory", "tune", "bench", "audit"}
"""Folders that do not import each other, whatever their order on the page."""

# Stricter than the layers: pure numerics may import only these, and from `types` nothing about trees.
TRANSPORT_SEES = {"errors", "rows", "kernels", "registry", "types", "coins", "transport"}
TREE_NOUNS = {"Draft", "Verdict"}


@dataclass(frozen=True, slots=True)
class Import:
    """One imported name, with its importer and the unit of spectr or foreign package it comes from."""

    where: str  # path:line
    importer: str  # unit: `errors`, `transport`, …
    root: bool  # the importer is a module of src/spectr itself, not of a folder
    package: str  # top-level package imported
    unit: str  # the unit when package is spectr, else empty
    name: str


def modules(package: Path) -> list[Path]:
    return sorted(package.rglob("*.py"))


@cache
def nodes_of(text: str) -> list[ast.AST]:
    """Return all nodes of a module. They are remembered, since several checks read the same files."""
    return list(ast.walk(ast.parse(text)))


def unit_of(package: Path, path: Path) -> str:
    first = path.relative_to(package).parts[0].removesuffix(".py")
    return FACADE if first == "__init__" else first


def dotted(package: Path, path: Path) -> list[str]:
    """Return the package to which a module's relative imports refer."""
    return [package.name, *path.relative_to(package).parent.parts]


def targets(node: ast.AST, home: list[str]) -> list[tuple[str, str]]:
    """Return pairs (dotted module, imported name) of an import statement; none for any other node."""
    if isinstance(node, ast.Import):
        return [(alias.name, "") for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = home[: len(home) - node.level + 1] if node.level else []
        module = ".".join([*base, *([node.module] if node.module else [])])
        return [(module, alias.name) for alias in node.names]
    return []


def resolve(package: Path, module: str, name: str) -> tuple[str, str]:
    """Return package and unit; `from spectr import x` means the unit x if there is one, else the facade."""
    first, _, rest = module.partition(".")
    if first != package.name:
        return first, ""
    if rest:
        return first, rest.partition(".")[0]
    is_unit = (package / name).is_dir() or (package / f"{name}.py").is_file()
    return first, name if name and is_unit else FACADE


def imports(package: Path) -> Iterator[Import]:
    for path in modules(package):
        importer, home = unit_of(package, path), dotted(package, path)
        for node in nodes_of(path.read_text(encoding="utf-8")):
            for module, name in targets(node, home):
                top, unit = resolve(package, module, name)
                where = f"{path.relative_to(package)}:{getattr(node, 'lineno', 0)}"
                yield Import(where, importer, path.parent == package, top, unit, name)


def unplaced(package: Path) -> list[str]:
    return sorted({unit for path in modules(package) if (unit := unit_of(package, path)) not in RANK})


def upward(package: Path) -> list[str]:
    """Return imports that are neither of a lower layer nor of the importer's own folder, and those between folders of
    evidence."""
    faults = []
    for found in imports(package):
        if found.package != package.name or found.importer == FACADE:
            continue
        same_folder = found.importer == found.unit or (found.root and (package / f"{found.unit}.py").is_file())
        below, here = RANK.get(found.unit, len(LAYERS)), RANK.get(found.importer, -1)
        is_between = found.importer != found.unit and {found.importer, found.unit} <= EVIDENCE
        if is_between or not (below < here or (below == here and same_folder)):
            faults.append(f"{found.where}: {found.importer} imports {found.unit}")
    return faults


def impure_transport(package: Path) -> list[str]:
    return [
        f"{found.where}: transport imports {found.unit} {found.name}".rstrip()
        for found in imports(package)
        if found.importer == "transport" and found.package == package.name
        if found.unit not in TRANSPORT_SEES or (found.unit == "types" and found.name in TREE_NOUNS)
    ]


def stray_transformers(package: Path) -> list[str]:
    return [found.where for found in imports(package) if found.package == "transformers" and found.importer != "models"]


INTERNALS = "models/internals.py"  # the one module that may use private names of transformers and torch
PUBLIC_MODULES = {
    "transformers", "transformers.utils", "transformers.utils.hub", "transformers.modeling_outputs",
}  # fmt: skip
"""Modules that transformers documents. `transformers.utils` exports the names of its `hub`, which mypy does not see."""
FOREIGN_PRIVATE = {
    "_attn_implementation", "_buffers", "_device_mesh", "_forward_hooks", "_forward_pre_hooks", "_is_stateful",
    "_model_mapping", "_modules", "_parameters", "_prefix_allowed_tokens_fn", "_raise_exceptions_for_missing_entries",
    "_supports_sdpa", "hf_quantizer", "set_",
}  # fmt: skip
"""Private names of transformers and torch that were in use once, whoever's attribute they are taken to be."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def is_self(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and node.id == "self"


def own_names(package: Path) -> set[str]:
    """Names that spectr itself gives to functions, classes, variables and attributes of `self`."""
    found = set()
    for path in modules(package):
        for node in nodes_of(path.read_text(encoding="utf-8")):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                found.add(node.name)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
                found.add(node.attr)
    return found - FOREIGN_PRIVATE


def mentioned(node: ast.AST) -> list[str]:
    """Names that a node reads or writes on an object, sets in a class body or passes as a keyword. `getattr` counts,
    and `os._exit` does not."""
    if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "os"):
        return [node.attr]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    if isinstance(node, ast.keyword) and node.arg in FOREIGN_PRIVATE:
        return [str(node.arg)]
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id.endswith("attr"):
        return [str(part.value) for part in node.args[1:2] if isinstance(part, ast.Constant)]
    return []


def foreign_private(package: Path) -> list[str]:
    """Uses of modules that transformers does not document, and of private names that spectr does not define."""
    faults, own = [], own_names(package)
    for path in modules(package):
        if path == package / INTERNALS:
            continue
        file, home = path.relative_to(package), dotted(package, path)
        for node in nodes_of(path.read_text(encoding="utf-8")):
            where = f"{file}:{getattr(node, 'lineno', 0)}"
            for module, name in targets(node, home):
                is_deep = module.startswith("transformers") and module not in PUBLIC_MODULES
                is_hidden = module.startswith(("torch", "transformers")) and any(
                    is_private(part) for part in [*module.split("."), name]
                )
                faults += [f"{where}: {module} {name}".rstrip()] * (is_deep or is_hidden)
            names = [name for name in mentioned(node) if name != "_"]
            faults += [f"{where}: {n}" for n in names if n in FOREIGN_PRIVATE or (is_private(n) and n not in own)]
    return faults


def undocumented(package: Path) -> list[str]:
    """Return folders without `__init__.py`, and modules without a docstring."""
    folders = {path.parent for path in modules(package)}
    bare = [folder / "__init__.py" for folder in folders if not (folder / "__init__.py").is_file()]
    mute = [
        p for p in modules(package) if not (ast.get_docstring(ast.parse(p.read_text(encoding="utf-8"))) or "").strip()
    ]
    return sorted(str(path.relative_to(package)) for path in [*bare, *mute])


# Split, so that this file passes its own check.
LOCAL = re.compile(
    r"(?<![\w.])/(?:work|root|home)" + r"/[\w.]"
    r"|pypi" + r"\.org|pythonhosted" + r"\.org|download\.pytorch" + r"\.org|file" + r":///"
)
SKIPPED = {"scratch", "build", "dist", "__pycache__"}
HIDDEN_BUT_OURS = {".ci", ".github", ".gitignore", ".editorconfig", ".pre-commit-config.yaml"}


def text_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.iterdir()):
        if path.name in SKIPPED or (path.name.startswith(".") and path.name not in HIDDEN_BUT_OURS):
            continue
        if path.is_dir():
            yield from text_files(path)
        elif path.is_file() and b"\0" not in path.read_bytes()[:4096]:
            yield path


def local_mentions(root: Path) -> list[str]:
    return [
        f"{path.relative_to(root)}:{number}: {match.group()}"
        for path in text_files(root)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if (match := LOCAL.search(line))
    ]


# On the package index `spectr` is an unrelated program; ours is spectr-lm. Split, as above.
OTHERS_NAME = re.compile(r"(?<![\w.-])spectr\[" + r"[a-z]|pip install (?:--?[\w-]+ )*['\"]?spectr" + r"(?![\w-])")


def others_name(root: Path) -> list[str]:
    """Return hints that would install an unrelated package."""
    return [
        f"{path.relative_to(root)}:{number}"
        for path in text_files(root)
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if path.suffix in {".py", ".md", ".toml", ".html", ".yaml", ""} and OTHERS_NAME.search(line)
    ]


def test_every_hint_names_our_distribution() -> None:
    assert others_name(ROOT) == []


def test_every_module_has_a_layer() -> None:
    assert unplaced(PACKAGE) == [], "give it a place in ARCHITECTURE.md"


def test_imports_point_downward() -> None:
    assert upward(PACKAGE) == []


def test_transport_knows_no_trees() -> None:
    assert impure_transport(PACKAGE) == []


def test_only_models_import_transformers() -> None:
    assert stray_transformers(PACKAGE) == []


def test_private_names_of_others_stay_in_one_module() -> None:
    assert foreign_private(PACKAGE) == [], f"move the name to {INTERNALS}, with a test in test_internals.py"


def test_importing_spectr_leaves_transformers_alone() -> None:
    code = "import sys, spectr; print('transformers' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"


def test_importing_spectr_loads_no_evidence() -> None:
    """Neither `import spectr` nor loading a model imports audits, benchmarks or the theory."""
    code = "import sys, spectr; spectr.load; print(*sorted(m for m in sys.modules if m.startswith('spectr.')))"
    loaded = subprocess.check_output([sys.executable, "-c", code], text=True).split()
    assert "spectr.lm" in loaded
    evidence = {"audit", "bench", "theory", "tune", "train", "cli"}
    assert [name for name in loaded if name.split(".")[1] in evidence] == []


def test_every_module_says_what_it_is() -> None:
    assert undocumented(PACKAGE) == []


def test_text_files_name_no_machine() -> None:
    assert local_mentions(ROOT) == []


def plant(tmp_path: Path, path: str, code: str) -> Path:
    """Write a small valid package with one more module in it."""
    package = tmp_path / "spectr"
    for name in ("__init__", "errors", "types", "coins", "engine", "pairing", "transport/__init__", "cli/__init__"):
        module = package / f"{name}.py"
        module.parent.mkdir(parents=True, exist_ok=True)
        module.write_text('"""Sound."""\n')
    (package / path).parent.mkdir(parents=True, exist_ok=True)
    (package / path).write_text(code)
    return package


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("errors.py", "import spectr.types"),
        ("types.py", "from spectr import coins"),
        ("transport/laws.py", "def f():\n    from spectr.verify import rule"),
        ("transport/laws.py", "from ..engine import step"),
        ("transport/laws.py", "from spectr import coupling"),
        ("bench/__init__.py", "from spectr.audit import law"),
        ("audit/__init__.py", "from spectr.bench import run"),
        ("engine.py", "from spectr.cli import main"),
        ("trees/shape.py", "from spectr.nowhere import x"),
    ],
)
def test_an_upward_import_is_found(tmp_path: Path, path: str, code: str) -> None:
    assert len(upward(plant(tmp_path, path, code))) == 1


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("coins.py", "from spectr.types import Coins\nimport torch"),
        ("transport/laws.py", "from spectr.errors import LawError\nfrom . import maximal\nfrom .maximal import accept"),
        ("transport/laws.py", "from ..types import Siblings"),
        ("pairing.py", "from spectr.verify import rule"),
        ("cli/__init__.py", "from spectr import __version__, engine"),
        ("__init__.py", "from spectr.cli import main"),
    ],
)
def test_a_downward_import_passes(tmp_path: Path, path: str, code: str) -> None:
    package = plant(tmp_path, path, code)
    assert upward(package) == impure_transport(package) == unplaced(package) == []


@pytest.mark.parametrize(
    "code",
    [
        "from transformers.cache_utils import Cache",
        "import transformers.masking_utils",
        "from torch._dynamo import config",
        "from transformers import _x",
        "def f(model):\n    return model.config._attn_implementation",
        "def f(model):\n    return getattr(model, '_is_stateful', False)",
        "class Net:\n    _supports_sdpa = True",
        "def f(module):\n    module._modules = {}",
        "def f(part):\n    return part.set_(part)",
        "import torch\nx = torch._C._something",
        "def f(call):\n    return call(_raise_exceptions_for_missing_entries=False)",
        "class Net:\n    def f(self):\n        return self._device_mesh",
    ],
)
def test_a_foreign_private_name_is_found(tmp_path: Path, code: str) -> None:
    assert foreign_private(plant(tmp_path, "models/hf.py", code)) != []
    assert foreign_private(plant(tmp_path / "internals", INTERNALS, code)) == []


@pytest.mark.parametrize(
    "code",
    [
        "from transformers import Cache\nfrom transformers.utils import logging",
        "import os\nos._exit(0)",
        "class A:\n    def __init__(self):\n        self._own = 1\n\ndef f(a):\n    return a._own",
        "for _ in range(3):\n    print(__name__, [].__len__())",
    ],
)
def test_own_and_documented_names_pass(tmp_path: Path, code: str) -> None:
    assert foreign_private(plant(tmp_path, "models/hf.py", code)) == []


def test_planted_faults_are_found(tmp_path: Path) -> None:
    assert unplaced(plant(tmp_path / "a", "utils.py", "")) == ["utils"]
    assert len(impure_transport(plant(tmp_path / "b", "transport/laws.py", "from spectr.types import Draft"))) == 1
    assert len(impure_transport(plant(tmp_path / "c", "transport/laws.py", "from spectr.policy import law"))) == 1
    lazy = "def f():\n    import transformers.cache_utils"
    assert stray_transformers(plant(tmp_path / "d", "engine.py", lazy)) == ["engine.py:2"]
    assert stray_transformers(plant(tmp_path / "e", "models/hf.py", lazy)) == []
    assert undocumented(plant(tmp_path / "f", "verify/race.py", "x = 1")) == ["verify/__init__.py", "verify/race.py"]
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "notes.md").write_text("see " + "/work" + "/notes, or https://pypi" + ".org")
    assert len(local_mentions(tmp_path / "g")) == 1
    (tmp_path / "h").mkdir()
    ours, install = "spectr", "pip install"
    wrong = (f"{install} {ours}", f"{install} -U '{ours}[plot]'", f"uv add {ours}[models]")
    right = ("pip install 'spectr-lm[plot]'", "pip install spectr-lm", "import spectr", "spectr_lm[x]")
    (tmp_path / "h" / "notes.md").write_text("\n".join([*wrong, *right]))
    assert others_name(tmp_path / "h") == ["notes.md:1", "notes.md:2", "notes.md:3"]
