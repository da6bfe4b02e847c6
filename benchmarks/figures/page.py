"""Renders the sheets as one self-contained HTML page with the figures and all of their numbers."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape

from benchmarks.figures.atlas import Atlas
from benchmarks.figures.sheet import Curve, Panel, Sheet, Surface
from spectr.data.papers import PAPERS

__all__ = ["page"]

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 64rem; margin: 2rem auto; padding: 0 1rem; color: #1d1d1f; }
h1 { margin-bottom: 0.2rem; } h2 { margin-top: 3rem; border-top: 1px solid #ddd; padding-top: 1.2rem; }
img { width: 100%; height: auto; border: 1px solid #eee; } nav a { margin-right: 1rem; }
table { border-collapse: collapse; font-size: 0.82rem; margin: 0.6rem 0 1.2rem; }
td, th { padding: 0.15rem 0.6rem; border-bottom: 1px solid #eee; text-align: right; }
th { text-align: right; vertical-align: bottom; } th:first-child { text-align: left; }
.wide { overflow-x: auto; } .small { color: #555; font-size: 0.9rem; } details { margin: 0.6rem 0; }
.off { color: #b3261e; font-weight: 600; }
"""


def _number(value: float) -> str:
    return f"{value:.6g}"


def _row(cells: Sequence[str], tag: str = "td") -> str:
    return "<tr>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells) + "</tr>"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    body = "".join(_row(row) for row in rows)
    heads = _row([escape(cell) for cell in head], "th")
    return f'<div class="wide"><table><thead>{heads}</thead><tbody>{body}</tbody></table></div>'


def _curve_table(panel: Panel, curve: Curve) -> str:
    """Return the table of a curve; a sampled one has columns for standard error, theory and deviation."""
    columns = {panel.x: curve.xs, curve.label: curve.ys}
    if curve.errors is not None:
        columns["standard error"] = curve.errors
    if curve.exact is not None:
        columns["theory"] = curve.exact
    rows = [[_number(value) for value in row] for row in zip(*columns.values(), strict=True)]
    if off := curve.deviations():
        columns["deviation / error"] = tuple(off)
        rows = [[*row, _off(value)] for row, value in zip(rows, off, strict=True)]
    return _table(list(columns), rows)


def _off(value: float) -> str:
    return f'<span class="off">{value:.2f}</span>' if abs(value) > 3 else f"{value:.2f}"


def _surface_table(surface: Surface) -> str:
    """Return a table of every fourth row and column; the whole grid would be too much to read."""
    xs, ys = range(0, len(surface.xs), 4), range(0, len(surface.ys), 4)
    head = [f"{surface.y} \\ {surface.x}", *(f"{surface.xs[x]:g}" for x in xs)]
    return _table(head, [[f"{surface.ys[y]:.3g}", *(f"{surface.values[y][x]:.3g}" for x in xs)] for y in ys])


def _numbers(panel: Panel | Surface) -> str:
    tables = [_surface_table(panel)] if isinstance(panel, Surface) else [_curve_table(panel, c) for c in panel.curves]
    return f"<h4>{escape(panel.title)}</h4>" + "".join(tables)


def _cited(keys: Sequence[str]) -> str:
    return "; ".join(escape(f"{PAPERS[key].short} [{key}]") for key in keys)


def _told(off: Sequence[float]) -> str:
    """Say how well the simulated values of a sheet agree with the theory."""
    if not off:
        return ""
    worst = max(map(abs, off))
    return f" {len(off)} values are compared with theory; the largest deviation is {worst:.2f} standard errors."


def _section(sheet: Sheet, picture: bytes) -> str:
    about, source = sheet.about, "data:image/svg+xml;base64," + b64encode(picture).decode("ascii")
    title, numbers = escape(about.title), "".join(_numbers(panel) for panel in sheet.panels)
    return (
        f'<section id="{about.name}"><h2>{title}</h2><p>{escape(about.says)}</p><img alt="{title}" src="{source}">'
        f'<p class="small"><b>Exact:</b> {escape(about.exact)}. <b>Simulated:</b> {escape(about.simulated)}.'
        f"{_told(sheet.deviations())}<br><b>After:</b> {_cited(about.papers)}</p>"
        f"<details><summary>Numbers</summary>{numbers}</details></section>"
    )


def _summary(atlas: Atlas) -> str:
    found = atlas.agreement
    expected = 0.0455 * found["compared"]
    return (
        f"<p>{found['compared']} simulated values are compared with theory. {found['beyond_two_errors']} of them "
        f"deviate by more than two standard errors, and {expected:.0f} would be expected to. The largest deviation is "
        f"{found['largest_deviation']:.2f} standard errors; the largest of as many independent normal values is at "
        f"least as large with probability {found['chance_of_one_so_large']:.2f}. Seeds are fixed, so this page is "
        "reproducible. Lines are exact: closed forms, finite sums or quadrature to 1e-12. Bars and bands are two "
        "standard errors.</p>"
    )


def page(atlas: Atlas, pictures: Mapping[str, bytes]) -> str:
    """Return the page, given the SVG `pictures` of all sheets by name."""
    links = "".join(f'<a href="#{sheet.name}">{escape(sheet.about.title)}</a> ' for sheet in atlas.sheets)
    sections = "".join(_section(sheet, pictures[sheet.name]) for sheet in atlas.sheets)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Speculative decoding: theory and simulation</title><style>{_STYLE}</style></head><body>"
        f"<h1>Speculative decoding: theory and simulation</h1>{_summary(atlas)}<nav>{links}</nav>{sections}"
        "</body></html>\n"
    )
