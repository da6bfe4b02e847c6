"""Three kinds of charts as SVG, drawn without any library. Knows numbers and names, nothing of benchmarks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["Bar", "Line", "bars", "lines", "stacks"]

_WIDTH, _LABELS, _ROW, _TOP = 720, 250, 26, 34
_HIGH = 320  # of a line chart
_LEFT, _BOTTOM, _KEYS = 56, 44, 190
_COUNTED = 16  # so many whole numbers get a tick each


@dataclass(frozen=True, slots=True)
class Bar:
    """A value with its spread."""

    label: str
    value: float
    colour: str
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """Points that belong together."""

    label: str
    colour: str
    points: Sequence[tuple[float, float]]


def _ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Round numbers from at most `low` to at least `high`.

    >>> _ticks(0, 2.3)
    [0.0, 0.5, 1.0, 1.5, 2.0, 2.5]
    """
    span = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor * count >= span * 0.999)
    first = math.floor(low / step + 1e-9)
    last = max(first + 1, math.ceil(high / step - 1e-9))
    return [round(at * step, 12) for at in range(first, last + 1)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:g}"


def _text(x: float, y: float, words: str, anchor: str = "start", kind: str = "") -> str:
    extra = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{extra}>{escape(words)}</text>'


def _stroke(points: tuple[float, float, float, float], kind: str) -> str:
    x1, y1, x2, y2 = points
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _rectangle(x: float, y: float, width: float, colour: str, about: str) -> str:
    box = f'<rect x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{_ROW - 10}" fill="{colour}" rx="2">'
    return f"{box}<title>{escape(about)}</title></rect>"


def _svg(width: float, height: float, title: str, parts: Sequence[str]) -> str:
    head = f'<svg viewBox="0 0 {width:.0f} {height:.0f}" role="img" aria-label="{escape(title)}">'
    return "\n".join([head, _text(0, 16, title, kind="title"), *parts, "</svg>"])


def _across(value: float, ticks: Sequence[float]) -> float:
    """Where a value stands on the axis of bars."""
    return _LABELS + (value - ticks[0]) / (ticks[-1] - ticks[0]) * (_WIDTH - _LABELS - 60)


def _scale(ticks: Sequence[float], rows: int) -> list[str]:
    bottom = _TOP + _ROW * rows + 4
    found = []
    for tick in ticks:
        x = _across(tick, ticks)
        found += [_stroke((x, _TOP - 6, x, bottom), "grid"), _text(x, bottom + 14, _number(tick), "middle", "tick")]
    return found


def _bar(bar: Bar, row: int, ticks: Sequence[float]) -> list[str]:
    y, zero = _TOP + _ROW * row, _across(0, ticks)
    middle, end = y + (_ROW - 10) / 2, _across(bar.value, ticks)
    spread = "" if bar.low is None or bar.high is None else f" ({bar.low:.3g} to {bar.high:.3g})"
    found = [
        _text(_LABELS - 8, middle + 4, bar.label, "end"),
        _rectangle(zero, y, end - zero, bar.colour, f"{bar.label}: {bar.value:.3g}{spread}"),
    ]
    reach = end
    if bar.low is not None and bar.high is not None:
        low, reach = _across(bar.low, ticks), max(end, _across(bar.high, ticks))
        found.append(_stroke((low, middle, reach, middle), "spread"))
    return [*found, _text(reach + 6, middle + 4, f"{bar.value:.3g}", kind="value")]


def bars(title: str, found: Sequence[Bar]) -> str:
    """Lying bars from zero, each with a line from low to high."""
    ticks = _ticks(0, max(max(bar.value, bar.high or 0.0) for bar in found))
    parts = _scale(ticks, len(found))
    for row, bar in enumerate(found):
        parts += _bar(bar, row, ticks)
    return _svg(_WIDTH, _TOP + _ROW * len(found) + 24, title, parts)


def stacks(title: str, rows: Mapping[str, Mapping[str, float]], colours: Mapping[str, str]) -> str:
    """Lying bars made of parts, and what their colours mean."""
    ticks = _ticks(0, max(sum(max(0.0, v) for v in parts.values()) for parts in rows.values()))
    found = _scale(ticks, len(rows))
    for at, (label, parts) in enumerate(rows.items()):
        y, x = _TOP + _ROW * at, _across(0, ticks)
        found.append(_text(_LABELS - 8, y + (_ROW - 10) / 2 + 4, label, "end"))
        for name, value in parts.items():
            end = x + _across(max(0.0, value), ticks) - _across(0, ticks)
            found.append(_rectangle(x, y, end - x, colours[name], f"{label}, {name}: {value:.3g}"))
            x = end
    height = _TOP + _ROW * len(rows) + 30
    for place, (name, colour) in enumerate(colours.items()):
        x = _LABELS + 88 * place
        found += [_rectangle(x, height, 14, colour, name), _text(x + 19, height + 12, name, kind="tick")]
    return _svg(_WIDTH, height + 26, title, found)


def _frame(
    xs: Sequence[float], ys: Sequence[float], labels: tuple[str, str], *, log: bool
) -> tuple[list[str], tuple[list[float], list[float]]]:
    """Axes, and their ends."""
    right, bottom = _WIDTH - _KEYS, _HIGH - _BOTTOM
    places = sorted(set(xs))
    counted = all(x == int(x) for x in places) and len(places) <= _COUNTED
    across = [math.log10(x) for x in places] if log else places if counted else _ticks(places[0], places[-1])
    up = _ticks(min(0.0, *ys), max(ys))
    parts = [_text((_LEFT + right) / 2, _HIGH - 6, labels[0], "middle", "tick"), _text(0, 36, labels[1], kind="tick")]
    for tick in across:
        x = _at(tick, across, _LEFT, right)
        name = _number(10**tick) if log else _number(tick)
        parts += [_stroke((x, 44, x, bottom), "grid"), _text(x, bottom + 15, name, "middle", "tick")]
    for tick in up:
        y = _at(tick, up, bottom, 44)
        parts += [_stroke((_LEFT, y, right, y), "grid"), _text(_LEFT - 6, y + 4, _number(tick), "end", "tick")]
    return parts, (across, up)


def _at(value: float, ticks: Sequence[float], start: float, end: float) -> float:
    span = ticks[-1] - ticks[0]
    return start + ((value - ticks[0]) / span if span else 0.5) * (end - start)


def _apart(heights: Sequence[float], gap: float = 15.0) -> list[float]:
    """Heights in the order given, moved down where they would overlap, and up again where that leaves the chart."""
    order = sorted(range(len(heights)), key=lambda at: heights[at])
    found, last = list(heights), -math.inf
    for at in order:
        last = found[at] = max(found[at], last + gap)
    over = max(0.0, last - (_HIGH - _BOTTOM + 4))
    return [height - over for height in found]


def lines(title: str, found: Sequence[Line], labels: tuple[str, str], *, log: bool = False) -> str:
    """Lines with a dot at each point, every one named about as high as it ends; `log`: across, in tenfolds."""
    points = [point for line in found for point in line.points]
    parts, (across, up) = _frame([x for x, _ in points], [y for _, y in points], labels, log=log)
    right, bottom = _WIDTH - _KEYS, _HIGH - _BOTTOM
    ends = []
    for line in found:
        places = [
            (_at(math.log10(x) if log else x, across, _LEFT, right), _at(y, up, bottom, 44)) for x, y in line.points
        ]
        way = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{way}" fill="none" stroke="{line.colour}" stroke-width="2"/>')
        for (x, y), (left, up_to) in zip(places, line.points, strict=True):
            about = escape(f"{line.label}: {left:.4g}, {up_to:.4g}")
            parts.append(
                f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{line.colour}"><title>{about}</title></circle>'
            )
        ends.append(places[-1][1])
    for line, y in zip(found, _apart(ends), strict=True):
        key = f'<line x1="{right + 8}" y1="{y:.1f}" x2="{right + 20}" y2="{y:.1f}" stroke="{line.colour}"'
        parts += [f'{key} stroke-width="3"/>', _text(right + 25, y + 4, line.label, kind="tick")]
    return _svg(_WIDTH, _HIGH, title, parts)
