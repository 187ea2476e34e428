"""Charts of one server's last hour or day: runs by slot, and telemetry with model loads and runs as marks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from admin_ui.parts.formatting import seconds
from gpus.leasing.readings import measures_of
from gpus.leasing.values import SUMMARY_SECONDS, Measured, Spread, Summary
from jobs.domain.states import AttemptState
from jobs.reports.server import MAX_LANES, Run

_HEIGHT = 100.0
_LANE = 16
_QUARTERS = 4
_STEPS = 720
"""Steps of a time axis; runs of one slot that are closer than a step are drawn as one bar."""
_LOADS_LISTED = 10


@dataclass(frozen=True, slots=True)
class Window:
    """The time that the charts show. name: in the page's address. longest_gap: seconds without a point that
    break a curve."""

    name: str
    title: str
    seconds: float
    longest_gap: float

    @property
    def step(self) -> float:
        return self.seconds / _STEPS


HOUR = Window("1h", "hour", 3600.0, 60.0)
DAY = Window("24h", "day", 86_400.0, 1.5 * SUMMARY_SECONDS)
WINDOWS = {window.name: window for window in (HOUR, DAY)}


@dataclass(frozen=True, slots=True)
class Point:
    """The measures at one time. second: of the window. loads: how often each model was loaded."""

    second: float
    measures: Mapping[str, Spread]
    loads: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Curve:
    """A measure in the window. name, latest, top: texts. drawing: SVG."""

    name: str
    latest: str
    top: str
    drawing: SafeString


@dataclass(frozen=True, slots=True)
class Bar:
    """Consecutive runs of one slot that are too close to be drawn apart. begin, end: seconds of the window.
    state: of the run that matters most."""

    slot: int
    begin: float
    end: float
    state: str
    runs: tuple[Run, ...]


@dataclass(frozen=True, slots=True)
class _Measure:
    """How a measure is drawn. limit: the measure at the top of the scale, or a number; None: the highest
    value."""

    name: str
    unit: str
    source: str
    divisor: float = 1.0
    limit: str | float | None = None


_GPU = (
    _Measure("GPU utilisation", "%", "utilisation", limit=100.0),
    _Measure("GPU memory", "GB", "used_mb", 1024, "total_mb"),
    _Measure("Temperature", "°C", "temperature", limit=100.0),
    _Measure("Power", "W", "power"),
)
_MACHINE = (
    _Measure("CPU", "%", "cpu_percent", limit=100.0),
    _Measure("Main memory", "GB", "ram_used_mb", 1024, "ram_total_mb"),
)


def points_of_readings(samples: Sequence[Measured], window: Window) -> list[Point]:
    """Return the points of single readings, oldest first. samples: newest first.

    A load is a model that the reading before did not name.
    """
    found: list[Point] = []
    before: set[str] | None = None
    for one in reversed(samples):
        loaded = set(one.reading.get("warm", ()))
        loads = {} if before is None else dict.fromkeys(sorted(loaded - before), 1)
        measures = {name: Spread(value, value, value) for name, value in measures_of(one.reading).items()}
        found.append(Point(max(0.0, window.seconds - one.age_seconds), measures, loads))
        before = loaded
    return found


def points_of_summaries(summaries: Sequence[Summary], window: Window) -> list[Point]:
    """Return a point in the middle of each summary, oldest first. summaries: newest first."""
    middles = (
        (max(0.0, window.seconds - one.age_seconds + min(one.age_seconds, SUMMARY_SECONDS) / 2), one)
        for one in reversed(summaries)
    )
    return [Point(second, one.measures, one.loads) for second, one in middles]


def curves(points: Sequence[Point], bars: Sequence[Bar], window: Window) -> list[Curve]:
    """Return the curves of a server's GPU, or of CPU and memory if no reading has one.

    points: oldest first. bars: runs, drawn as bands behind the curves.
    """
    has_gpu = any(measure.source in one.measures for one in points for measure in _GPU)
    return [
        curve
        for measure in (_GPU if has_gpu else _MACHINE)
        if (curve := _curve(measure, points, bars, window)) is not None
    ]


def listed_loads(points: Sequence[Point], now: datetime, window: Window) -> list[str]:
    """Return the latest model loads as texts, newest first, such as ``flux 14:05 (3 times)``."""
    begin = timezone.localtime(axis_times(now, window)[0])
    return [
        f"{model} {begin + timedelta(seconds=one.second):%H:%M}" + (f" ({times} times)" if times > 1 else "")
        for one in reversed(points)
        for model, times in one.loads.items()
    ][:_LOADS_LISTED]


def bars_of(runs: Iterable[Run], slots: int, now: datetime, window: Window) -> list[Bar]:
    """Return the bars of the runs in the window, in at most 16 lanes."""
    lanes = min(max(slots, 1), MAX_LANES)
    by_slot: dict[int, list[Bar]] = defaultdict(list)
    for run in sorted(runs, key=lambda run: run.started_at):
        span = _span(run, now, window)
        if run.slot >= lanes or span is None:
            continue
        bars, bar = by_slot[run.slot], Bar(run.slot, *span, _shown_state(run), (run,))
        if bars and _is_close(bars[-1], bar, window):
            worst = max(bars[-1].state, bar.state, key=_gravity)
            last = bars[-1]
            bars[-1] = replace(last, end=max(last.end, bar.end), state=worst, runs=(*last.runs, run))
        else:
            bars.append(bar)
    return [bar for slot in sorted(by_slot) for bar in by_slot[slot]]


def run_lanes(bars: Sequence[Bar], slots: int, now: datetime, window: Window) -> SafeString:
    """Draw the runs, one lane per slot, at most 16 lanes."""
    lanes = min(max(slots, 1), MAX_LANES)
    drawn = format_html_join(
        "",
        '<rect class="run run-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
        (
            (
                bar.state,
                f"{bar.begin:.1f}",
                bar.slot * _LANE + 2,
                f"{max(bar.end - bar.begin, window.step):.1f}",
                _LANE - 4,
                _bar_text(bar, now),
            )
            for bar in bars
        ),
    )
    runs = [run for bar in bars for run in bar.runs]
    return format_html(
        '<svg class="lanes-drawing" viewBox="0 0 {} {}" height="{}" preserveAspectRatio="none" role="img" '
        'aria-label="{} runs in the last {}, {} failed">{}{}</svg>',
        int(window.seconds),
        lanes * _LANE,
        lanes * _LANE,
        len(runs),
        window.title,
        sum(run.has_failed for run in runs),
        _grid(window, lanes * _LANE),
        drawn,
    )


def axis_times(now: datetime, window: Window) -> list[datetime]:
    """Return the times below a chart, from its left edge on, without the right one, which is now."""
    quarter = timedelta(seconds=window.seconds / _QUARTERS)
    return [now - quarter * left for left in range(_QUARTERS, 0, -1)]


def _curve(measure: _Measure, points: Sequence[Point], bars: Sequence[Bar], window: Window) -> Curve | None:
    values = [
        (one.second, found, one.measures.get(str(measure.limit)))
        for one in points
        if (found := one.measures.get(measure.source)) is not None
    ]
    if not values:
        return None
    spreads = [(second, spread) for second, spread, _ in values]
    highest = max(spread.highest for _, spread in spreads)
    limits = [limit.highest for _, _, limit in values if limit is not None]
    fixed = measure.limit if isinstance(measure.limit, float) else 0.0
    top = max([highest, fixed, *limits]) or 1.0
    latest = _number(spreads[-1][1].mean / measure.divisor)
    text = (
        f"{measure.name}: {latest} {measure.unit} last, at most {_number(highest / measure.divisor)} "
        f"{measure.unit} in the last {window.title}"
    )
    loaded = ", ".join(dict.fromkeys(model for one in points for model in one.loads))
    drawing = format_html(
        '<svg class="drawing drawing-low" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}{}{}<path class="curve-p50" d="{}"/>{}</svg>',
        int(window.seconds),
        int(_HEIGHT),
        f"{text}; models loaded: {loaded}" if loaded else text,
        _grid(window, _HEIGHT),
        _bands(bars, window),
        _ranges(spreads, top, window),
        _line(((second, spread.mean) for second, spread in spreads), top, window),
        _load_marks(points),
    )
    return Curve(
        measure.name, f"{latest} {measure.unit}", f"{_number(top / measure.divisor)} {measure.unit}", drawing
    )


def _grid(window: Window, height: float) -> SafeString:
    width = window.seconds / _QUARTERS
    lines = "".join(f"M{width * number:.0f} 0V{height:.0f}" for number in range(1, _QUARTERS))
    return format_html('<path class="grid" d="{}"/>', lines)


def _bands(bars: Sequence[Bar], window: Window) -> SafeString:
    """The times in which any slot was busy."""
    merged: list[tuple[float, float]] = []
    for bar in sorted(bars, key=lambda bar: bar.begin):
        begin, end = bar.begin, max(bar.end, bar.begin + window.step)
        if merged and begin <= merged[-1][1] + window.step:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return format_html_join(
        "",
        '<rect class="band" x="{}" y="0" width="{}" height="100"/>',
        ((f"{begin:.1f}", f"{end - begin:.1f}") for begin, end in merged),
    )


def _load_marks(points: Sequence[Point]) -> SafeString:
    marks = (
        (f"{one.second:.1f}", f"{model} loaded" + (f" {times} times" if times > 1 else ""))
        for one in points
        for model, times in one.loads.items()
    )
    return format_html_join("", '<path class="load" d="M{} 0V100"><title>{}</title></path>', marks)


def _line(points: Iterable[tuple[float, float]], top: float, window: Window) -> str:
    parts: list[str] = []
    last: float | None = None
    for second, value in points:
        is_new = last is None or second - last > window.longest_gap
        parts.append(f"{'M' if is_new else 'L'}{second:.0f} {_y(value, top):.1f}")
        last = second
    return "".join(parts)


def _ranges(points: Sequence[tuple[float, Spread]], top: float, window: Window) -> SafeString:
    """Vertical lines from the lowest to the highest value of each point; none if all are single values."""
    if all(spread.lowest == spread.highest for _, spread in points):
        return SafeString("")
    lines = "".join(
        f"M{second:.0f} {_y(spread.lowest, top):.1f}V{_y(spread.highest, top):.1f}"
        for second, spread in points
    )
    return format_html('<path class="spread" d="{}"/>', lines)


def _y(value: float, top: float) -> float:
    return _HEIGHT - min(1.0, max(0.0, value / top)) * (_HEIGHT - 4) - 2


def _span(run: Run, now: datetime, window: Window) -> tuple[float, float] | None:
    """Begin and end of a run in seconds of the window; None if it ended before."""
    whole = window.seconds
    begin = whole - (now - run.started_at).total_seconds()
    end = whole if run.finished_at is None else whole - (now - run.finished_at).total_seconds()
    if end < 0:
        return None
    begin = min(max(begin, 0.0), whole)
    return begin, max(min(end, whole), begin)


def _is_close(last: Bar, bar: Bar, window: Window) -> bool:
    """Runs of one state with less than a step between them, or any that fit in one step."""
    is_same = last.state == bar.state and bar.begin - last.end < window.step
    return is_same or bar.end - last.begin < window.step


def _bar_text(bar: Bar, now: datetime) -> str:
    first, last = bar.runs[0], bar.runs[-1]
    begin = timezone.localtime(first.started_at)
    if len(bar.runs) == 1:
        lasted = ((first.finished_at or now) - first.started_at).total_seconds()
        what = f"slot {bar.slot}, {first.model}, {bar.state} {first.error_code}".rstrip()
        return f"{begin:%H:%M:%S}: {what}, {seconds(lasted)}"
    end = timezone.localtime(last.finished_at or now)
    models = ", ".join(sorted({run.model for run in bar.runs}))
    failed = sum(run.has_failed for run in bar.runs)
    what = f"slot {bar.slot}, {len(bar.runs)} runs, {failed} failed, {models}"
    return f"{begin:%H:%M:%S} to {end:%H:%M:%S}: {what}"


def _shown_state(run: Run) -> str:
    is_live = run.state in (AttemptState.SENT.value, AttemptState.WAITING.value)
    return "running" if is_live else run.state


def _gravity(state: str) -> int:
    order = ("completed", "running", "lost", "failed")
    return order.index(state) if state in order else -1


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"
