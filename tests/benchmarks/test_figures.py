"""The atlas: theory and simulation agree, figures and page show every number, and nothing is drawn over something
else."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from benchmarks.figures import SHEETS, Atlas, Panel, Sheet, Surface, make_atlas
from benchmarks.figures import atlas as atlas_module
from benchmarks.figures.__main__ import figures
from benchmarks.figures.draw import draw_sheet
from benchmarks.figures.folder import KINDS, check_out, write_atlas
from benchmarks.figures.sheet import About, Curve, exactly, sampled
from spectr.data.papers import PAPERS
from spectr.errors import ArgumentError
from spectr.theory.estimate import Estimate

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def atlas() -> Atlas:
    counted: list[int] = []
    found = make_atlas(lambda: counted.append(1))
    assert len(counted) == len(SHEETS)
    return found


@pytest.fixture(scope="module")
def folder(atlas: Atlas, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("atlas") / "deep" / "figures"
    write_atlas(atlas, out)
    return out


def test_simulation_meets_theory(atlas: Atlas) -> None:
    """Seeds are fixed. Of 300 normal values one is beyond six with chance 6e-7, and few are beyond three errors."""
    off = atlas.deviations
    assert len(off) > 200
    assert max(map(abs, off)) < 6
    assert sum(abs(value) > 3 for value in off) <= 4
    assert 0.5 < sum(value**2 for value in off) / len(off) < 1.6
    assert atlas.agreement["compared"] == len(off)
    assert 1e-4 < atlas.agreement["chance_of_one_so_large"] <= 1


def test_a_wrong_theory_would_be_seen() -> None:
    """A curve that is off by a tenth of its value is many errors off."""
    found = [Estimate(1.0, 0.01), Estimate(2.0, 0.01)]
    right, wrong = (sampled("x", (1, 2), found, exact) for exact in ((1.0, 2.0), (1.1, 2.2)))
    assert right.deviations() == [0.0, 0.0]
    assert wrong.deviations() == pytest.approx([-10, -20])
    sheet = Sheet(About("a", "b", "c", "d", "e", ()), (Panel("p", "x", "y", (wrong,)),))
    assert Atlas((sheet,)).agreement["chance_of_one_so_large"] < 1e-6


def test_the_sheets_are_those_announced_and_cite_what_is_known(atlas: Atlas) -> None:
    assert tuple(sheet.name for sheet in atlas.sheets) == SHEETS
    for sheet in atlas.sheets:
        assert set(sheet.about.papers) <= set(PAPERS)
        assert sheet.about.says
        assert sheet.about.exact
        assert sheet.about.simulated
        assert sheet.panels


def test_every_curve_is_drawn(atlas: Atlas) -> None:
    for sheet in atlas.sheets:
        axes = [one for one in draw_sheet(sheet).axes if one.get_visible()]
        assert [one.get_title("left") for one in axes] == [panel.title for panel in sheet.panels]
        for one, panel in zip(axes, sheet.panels, strict=True):
            if isinstance(panel, Panel):
                legend = one.get_legend()
                assert legend is not None
                assert {text.get_text() for text in legend.get_texts()} == {curve.label for curve in panel.curves}


def test_no_text_covers_another(atlas: Atlas) -> None:
    for sheet in atlas.sheets:
        figure = draw_sheet(sheet)
        figure.set_dpi(72)
        FigureCanvasAgg(figure).draw()
        texts = [text for axes in figure.axes for text in (axes._left_title, axes.xaxis.label, axes.yaxis.label)]
        legends = [text for axes in figure.axes if (box := axes.get_legend()) for text in box.get_texts()]
        boxes = [(t.get_text(), t.get_window_extent()) for t in (*figure.texts, *texts, *legends) if t.get_text()]
        for at, (name, box) in enumerate(boxes):
            for other, another in boxes[at + 1 :]:
                assert not box.padded(-1).overlaps(another.padded(-1)), (sheet.name, name, other)


def test_the_folder_has_everything(atlas: Atlas, folder: Path) -> None:
    names = {f"{name}.{kind}" for name in SHEETS for kind in KINDS} | {"index.html", "numbers.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert all((folder / f"{name}.png").read_bytes().startswith(b"\x89PNG") for name in SHEETS)
    numbers = json.loads((folder / "numbers.json").read_text())
    assert [sheet["name"] for sheet in numbers["sheets"]] == list(SHEETS)
    assert numbers["agreement"] == dict(atlas.agreement)


class _Page(HTMLParser):
    """Open tags, pictures and references of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.sources: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.sources += [value or "" for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "td" in self.open:
            self.cells.append(data)


def test_the_page_needs_nothing_else_and_has_every_number(atlas: Atlas, folder: Path) -> None:
    text = (folder / "index.html").read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert all(source.startswith(("data:image/svg+xml;base64,", "#")) for source in page.sources)
    assert sum(source.startswith("data:") for source in page.sources) == len(SHEETS)
    assert "<script" not in text
    shown = set(page.cells)
    for sheet in atlas.sheets:
        for panel in sheet.panels:
            if isinstance(panel, Surface):
                assert f"{panel.values[0][0]:.3g}" in shown
            else:
                assert {f"{y:.6g}" for curve in panel.curves for y in curve.ys} <= shown
    assert re.search(r"simulated values are compared with theory", text)


def test_figures_come_out_the_same_every_time(atlas: Atlas, folder: Path, tmp_path: Path) -> None:
    first = Atlas(atlas.sheets[:1])
    write_atlas(first, tmp_path)
    for kind in KINDS:
        assert (tmp_path / f"{SHEETS[0]}.{kind}").read_bytes() == (folder / f"{SHEETS[0]}.{kind}").read_bytes()


def test_what_cannot_be_written_is_refused_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ArgumentError, match="--out must be a folder that can be written"):
        check_out(tmp_path / "file" / "below")
    check_out(tmp_path / "new")
    assert list((tmp_path / "new").iterdir()) == []


def test_exact_curves_have_no_deviations() -> None:
    assert exactly("x", (1, 2), lambda x: x).deviations() == []
    assert Curve("x", (1,), (2,), errors=(0.1,)).deviations() == []


def test_the_command_writes_figures_and_numbers(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With two of the sheets; all of them are drawn above."""
    makers = tuple(maker for maker in atlas_module._MAKERS if maker[1][0] == "speedup")
    monkeypatch.setattr(atlas_module, "_MAKERS", makers)
    out = tmp_path / "new" / "figures"
    ran = command(figures, "--out", str(out))
    assert ran.code == 0, ran.err
    assert ran.out.splitlines()[-1] == str(out / "index.html")
    assert "speedup" in ran.out
    names = {"index.html", "numbers.json", "speedup.png", "speedup.svg", "time.png", "time.svg"}
    assert {path.name for path in out.iterdir()} == names
    found = json.loads(command(figures, "--out", str(out), "--json").out)
    assert set(found["files"]) == names
    assert found["agreement"]["compared"] > 50


def test_the_command_refuses_a_file(command: Callable[..., Any], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    ran = command(figures, "--out", str(tmp_path / "file"))
    assert (ran.code, ran.out) == (2, "")
    assert "--out must be a folder that can be written" in ran.err
