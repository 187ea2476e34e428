"""Plots as plain SVG: three kinds, light and dark, no script, no font, no links. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from statistics import median

WIDTH = 760
_LABELS, _RIGHT, _TOP, _BOTTOM = 190, 70, 46, 34
_ROW = 26
_STYLE = (
    "text{font:13px system-ui,sans-serif;fill:#24292f}.t{font-size:15px;font-weight:600}"
    ".s{font-size:11px;fill:#6e7781}.g{stroke:#d0d7de;stroke-width:1}.a{fill:#8c959f}.o{fill:#0969da}.b{fill:#c8cdd3}"
    ".l{fill:none;stroke-width:2}.us{font-weight:600}"
    "@media(prefers-color-scheme:dark){text{fill:#e6edf3}.s{fill:#8d96a0}.g{stroke:#30363d}.a{fill:#6e7681}"
    ".o{fill:#4493f8}.b{fill:#3d444d}}"
)
_LINES = ("#0969da", "#bf3989", "#1a7f37", "#9a6700")


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a plot. samples: of the rounds, or p50 and p99. ours: highlighted. more: drawn as
    continuation of the first sample."""

    label: str
    samples: Sequence[float]
    ours: bool = False
    more: float = 0.0


@dataclass(frozen=True, slots=True)
class Axis:
    """The horizontal axis. log: for positive values only."""

    low: float
    high: float
    log: bool = False

    def place(self, value: float) -> float:
        """Return the position, 0 at the low end to 1 at the high end; values outside are clipped."""
        value = min(max(value, self.low), self.high)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        """Return round values inside the axis."""
        if self.log:
            first, last = math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9)
            return [10.0**power for power in range(first, last + 1)]
        rough = (self.high - self.low) / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough)
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first
        return [round((first + number) * step, 10) for number in range(count + 1)]


def axis_for(values: Sequence[float], *, log: bool = False, low: float | None = None) -> Axis:
    """Return an axis with round ends around the values. low: its low end, instead of one below the lowest."""
    if log:
        positive = [value for value in values if value > 0] or [1.0]
        begin = 10.0 ** math.floor(math.log10(min(positive)))
        return Axis(begin, max(10.0 ** math.ceil(math.log10(max(positive))), begin * 10), log=True)
    begin = min(values) if low is None else low
    end = max([*values, begin + 1e-6])
    return Axis(begin, end if low is None else end * 1.02)


def strips(title: str, note: str, rows: Sequence[Row], axis: Axis, *, digits: int) -> str:
    """A dot for each round, a bar for their median, whose value is at the right."""

    def draw(row: Row, y: float) -> Iterator[str]:
        middle = median(row.samples)
        kind = "o" if row.ours else "a"
        for value in row.samples:
            yield f"<circle class={kind!r} cx='{_x(axis, value):.1f}' cy='{y:.1f}' r='3.5' opacity='.45'/>"
        x = _x(axis, middle) - 1.5
        yield f"<rect class={kind!r} x='{x:.1f}' y='{y - 9:.1f}' width='3' height='18' rx='1'/>"

    return _rows(title, note, rows, axis, draw=draw, value=lambda row: f"{median(row.samples):.{digits}f}")


def spans(title: str, note: str, rows: Sequence[Row], axis: Axis) -> str:
    """A line from the first sample to the second, as p50 and p99."""

    def draw(row: Row, y: float) -> Iterator[str]:
        kind = "o" if row.ours else "a"
        begin, end = (_x(axis, value) for value in row.samples[:2])
        yield (
            f"<rect class={kind!r} x='{begin:.1f}' y='{y - 3:.1f}' width='{max(1.0, end - begin):.1f}' "
            "height='6' rx='3' opacity='.55'/>"
        )
        yield f"<circle class={kind!r} cx='{begin:.1f}' cy='{y:.1f}' r='5'/>"

    return _rows(
        title, note, rows, axis, draw=draw, value=lambda row: f"{row.samples[0]:.3g} – {row.samples[1]:.3g}"
    )


def bars(title: str, note: str, rows: Sequence[Row], axis: Axis, *, digits: int = 2) -> str:
    """The first sample as a bar, `more` as its lighter continuation; the sum is at the right."""

    def draw(row: Row, y: float) -> Iterator[str]:
        kind = "o" if row.ours else "a"
        begin, end, sequel = (
            _x(axis, value) for value in (axis.low, row.samples[0], row.samples[0] + row.more)
        )
        yield f"<rect class={kind!r} x='{begin:.1f}' y='{y - 8:.1f}' width='{end - begin:.1f}' height='16'/>"
        if row.more:
            yield f"<rect class='b' x='{end:.1f}' y='{y - 8:.1f}' width='{sequel - end:.1f}' height='16'/>"

    return _rows(
        title, note, rows, axis, draw=draw, value=lambda row: f"{row.samples[0] + row.more:,.{digits}f}"
    )


def lines(
    title: str,
    note: str,
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    *,
    log_x: bool = False,
    height: int = 300,
) -> str:
    """A line for each series. series: name, and points (x, y); y begins at 0."""
    across = axis_for([x for _, points in series for x, _ in points], log=log_x, low=None if log_x else 0.0)
    up = axis_for([y for _, points in series for _, y in points], low=0.0)
    bottom = height - _BOTTOM

    def y_of(value: float) -> float:
        return bottom - up.place(value) * (bottom - _TOP)

    def x_of(value: float) -> float:
        return 60 + across.place(value) * (WIDTH - 60 - 150)

    parts = []
    for tick in up.ticks():
        y = y_of(tick)
        parts.append(f"<line class='g' x1='60' x2='{WIDTH - 150}' y1='{y:.1f}' y2='{y:.1f}'/>")
        parts.append(_text(52, y + 4, _short(tick), anchor="end", small=True))
    for tick in across.ticks():
        parts.append(_text(x_of(tick), bottom + 18, _short(tick), anchor="middle", small=True))
    for number, (name, points) in enumerate(series):
        colour = _LINES[number % len(_LINES)]
        path = " ".join(f"{x_of(x):.1f},{y_of(y):.1f}" for x, y in points)
        parts.append(f"<polyline class='l' stroke='{colour}' points='{path}'/>")
        if len(points) < 30:
            parts += [
                f"<circle fill='{colour}' cx='{x_of(x):.1f}' cy='{y_of(y):.1f}' r='3.5'/>" for x, y in points
            ]
        y = _TOP + 6 + number * 20
        parts.append(f"<rect fill='{colour}' x='{WIDTH - 136}' y='{y - 5}' width='14' height='3'/>")
        parts.append(_text(WIDTH - 116, y, name, small=True))
    return _svg(title, note, height, parts)


def _rows(
    title: str,
    note: str,
    rows: Sequence[Row],
    axis: Axis,
    *,
    draw: Callable[[Row, float], Iterator[str]],
    value: Callable[[Row], str],
) -> str:
    height = _TOP + len(rows) * _ROW + _BOTTOM
    parts = []
    for tick in axis.ticks():
        x = _x(axis, tick)
        parts.append(f"<line class='g' x1='{x:.1f}' x2='{x:.1f}' y1='{_TOP}' y2='{height - _BOTTOM}'/>")
        parts.append(_text(x, height - _BOTTOM + 16, _short(tick), anchor="middle", small=True))
    for number, row in enumerate(rows):
        y = _TOP + (number + 0.5) * _ROW
        parts.append(_text(_LABELS - 12, y + 4, row.label, anchor="end", bold=row.ours))
        parts += draw(row, y)
        parts.append(_text(WIDTH - 4, y + 4, value(row), anchor="end", bold=row.ours))
    return _svg(title, note, height, parts)


def _x(axis: Axis, value: float) -> float:
    return _LABELS + axis.place(value) * (WIDTH - _LABELS - _RIGHT - 20)


def _text(
    x: float, y: float, text: str, *, anchor: str = "start", small: bool = False, bold: bool = False
) -> str:
    kind = " class='s'" if small else " class='us'" if bold else ""
    return f"<text{kind} x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}'>{escape(text)}</text>"


def _short(value: float) -> str:
    for limit, unit in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= limit:
            return f"{value / limit:g}{unit}"
    return f"{value:g}"


def _svg(title: str, note: str, height: float, parts: Sequence[str]) -> str:
    return (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height:g}' width='{WIDTH}' "
        f"height='{height:g}' role='img' aria-label='{escape(title, quote=True)}'><style>{_STYLE}</style>"
        f"<text class='t' x='0' y='16'>{escape(title)}</text>{_text(0, 34, note, small=True)}"
        + "".join(parts)
        + "</svg>\n"
    )
