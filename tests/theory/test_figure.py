"""The figure has every curve of every family and no overlapping labels, and is written to the requested file."""

import builtins
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg

from spectr.errors import ArgumentError, MissingExtraError
from spectr.theory import COLUMNS, bernoulli, compare, uniform, zipf
from spectr.theory.figure import check_figure, draw, save_figure

STARTS = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF"}


@pytest.mark.parametrize("ending", list(STARTS))
def test_the_ending_is_the_format(tmp_path: Path, ending: str) -> None:
    path = tmp_path / f"figure{ending}"
    save_figure([compare(bernoulli(), (1, 2))], path)
    assert path.read_bytes().startswith(STARTS[ending])
    assert path.stat().st_size > 5000


@pytest.mark.parametrize("ks", [(1, 2, 4), (4,)])
def test_every_curve_of_every_family_is_drawn(ks: tuple[int, ...]) -> None:
    found = [compare(family, ks) for family in (bernoulli(), uniform(), zipf(20))]
    panels = [axes for axes in draw(found).axes if axes.get_visible()]
    assert [axes.get_title("left") for axes in panels] == [one.family.name for one in found]
    for axes, one in zip(panels, found, strict=True):
        curves = {line.get_label(): list(line.get_ydata()) for line in axes.lines}
        meant = {f"{values[-1]:.3f}  {COLUMNS[name].label}": list(values) for name, values in one.acceptance.items()}
        assert curves == meant
        key = [text.get_text() for text in axes.get_legend().get_texts()]
        assert sorted(key) == sorted(meant)
        assert key == sorted(key, key=lambda line: -float(line.split()[0]))  # the highest curve first
    assert panels[0].get_xscale() == ("log" if len(ks) > 1 else "linear")


@pytest.mark.parametrize("families", [(bernoulli(), uniform(), zipf(20), zipf(20, temperature=0.3)), (zipf(20),)])
def test_no_text_covers_another(families: tuple[Any, ...]) -> None:
    figure = draw([compare(family) for family in families])
    FigureCanvasAgg(figure).draw()
    shown = [axes for axes in figure.axes if axes.get_visible()]
    keys = [text for axes in shown for text in axes.get_legend().get_texts()]
    inside = [text for axes in shown for text in (axes._left_title, *axes.texts)]
    boxes = [(text.get_text(), text.get_window_extent()) for text in (*figure.texts, *keys, *inside)]
    boxes = [(name, box) for name, box in boxes if name]
    assert len(boxes) == (len(COLUMNS) + 2) * len(families) + 1
    overlaps = [(a, b) for (a, x), (b, y) in itertools.combinations(boxes, 2) if x.padded(-1).overlaps(y.padded(-1))]
    assert overlaps == []
    width, height = figure.bbox.size
    assert [name for name, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height] == []


def test_what_cannot_be_drawn_is_refused_first(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"\*\.png, \*\.svg, \*\.pdf, got figure\.jpg"):
        check_figure(tmp_path / "figure.jpg")
    with pytest.raises(ArgumentError, match="there is no folder"):
        check_figure(tmp_path / "nowhere" / "figure.png")
    (tmp_path / "folder.png").mkdir()
    with pytest.raises(ArgumentError, match=r"cannot write .*folder\.png"):
        save_figure([compare(bernoulli(), (1,))], tmp_path / "folder.png")


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = builtins.__import__

    def without_matplotlib(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] == "matplotlib":
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    with pytest.raises(MissingExtraError, match=r"pip install 'spectr-lm\[plot\]'"):
        check_figure(tmp_path / "figure.png")
