"""Charts of one server's last hour: runs by slot, and telemetry with model loads and runs as marks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from admin_ui.parts.formatting import seconds
from gpus.leasing.values import Measured
from jobs.domain.states import AttemptState
from jobs.reports.server import Run

HOUR = 3600.0
_HEIGHT = 100.0
_LANE = 16
_MOST_LANES = 16
_LONGEST_GAP = 60.0
"""Seconds without a reading that break a curve."""

_Value = Callable[[Mapping[str, Any]], float | None]
_Measure = tuple[str, str, _Value, _Value]


@dataclass(frozen=True, slots=True)
class Load:
    """A model that appears among the loaded ones. second: of the hour, 0 to 3600."""

    second: float
    model: str


@dataclass(frozen=True, slots=True)
class Curve:
    """A measure in the last hour. name, latest, top: texts. drawing: SVG."""

    name: str
    latest: str
    top: str
    drawing: SafeString


def run_lanes(runs: Sequence[Run], slots: int, now: datetime) -> SafeString:
    """Draw the runs of the last hour, one lane per slot, at most 16 lanes."""
    lanes = min(max(slots, 1), _MOST_LANES)
    shown = [run for run in runs if run.slot < lanes and _span(run, now) is not None]
    bars = []
    for run in shown:
        begin, width = _span(run, now) or (0.0, 0.0)
        lasted = ((run.finished_at or now) - run.started_at).total_seconds()
        what = f"slot {run.slot}, {run.model}, {_shown_state(run)} {run.error_code}".rstrip()
        box = (f"{begin:.1f}", run.slot * _LANE + 2, f"{max(width, 4.0):.1f}", _LANE - 4)
        bars.append((_shown_state(run), *box, f"{run.started_at:%H:%M:%S}: {what}, {seconds(lasted)}"))
    drawn = format_html_join(
        "",
        '<rect class="run run-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
        bars,
    )
    failed = sum(run.has_failed for run in shown)
    return format_html(
        '<svg class="lanes-drawing" viewBox="0 0 {} {}" height="{}" preserveAspectRatio="none" role="img" '
        'aria-label="{} runs in the last hour, {} failed">{}</svg>',
        int(HOUR),
        lanes * _LANE,
        lanes * _LANE,
        len(shown),
        failed,
        drawn,
    )


def curves(samples: Sequence[Measured], runs: Sequence[Run], now: datetime) -> list[Curve]:
    """Return the curves of a server's readings: of its GPU, or of CPU and memory without one.

    samples: newest first, of the last hour. runs: drawn as bands behind the curves.
    """
    if not samples:
        return []
    has_gpu = any(one.reading.get("gpu") for one in samples)
    loads = model_loads(samples)
    bands = [span for run in runs if (span := _span(run, now)) is not None]
    return [
        curve
        for measure in (_GPU if has_gpu else _MACHINE)
        if (curve := _curve(measure, samples, loads, bands)) is not None
    ]


def model_loads(samples: Sequence[Measured]) -> list[Load]:
    """Return the model loads, oldest first: models in a reading that were missing in the previous one."""
    found: list[Load] = []
    before: set[str] | None = None
    for one in reversed(samples):
        loaded = set(one.reading.get("warm", ()))
        if before is not None:
            found += [Load(max(0.0, HOUR - one.age_seconds), name) for name in sorted(loaded - before)]
        before = loaded
    return found


def _curve(
    measure: _Measure,
    samples: Sequence[Measured],
    loads: Sequence[Load],
    bands: Sequence[tuple[float, float]],
) -> Curve | None:
    name, unit, value, top_of = measure
    points = [
        (HOUR - one.age_seconds, found)
        for one in reversed(samples)
        if (found := value(one.reading)) is not None
    ]
    if not points:
        return None
    limits = [limit for one in samples if (limit := top_of(one.reading)) is not None]
    top = max([*limits, *(found for _, found in points)]) or 1.0
    behind = format_html_join(
        "",
        '<rect class="band" x="{}" y="0" width="{}" height="100"/>',
        ((f"{begin:.1f}", f"{max(width, 4.0):.1f}") for begin, width in bands),
    )
    marks = format_html_join(
        "",
        '<rect class="load" x="{}" y="0" width="8" height="100"><title>{} loaded</title></rect>',
        ((f"{load.second:.1f}", load.model) for load in loads),
    )
    values = [found for _, found in points]
    text = (
        f"{name}: {_number(values[-1])} {unit} last, at most {_number(max(values))} {unit} in the last hour"
    )
    loaded = ", ".join(load.model for load in loads)
    drawing = format_html(
        '<svg class="drawing drawing-low" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" '
        'aria-label="{}">{}<path class="curve-p50" d="{}"/>{}</svg>',
        int(HOUR),
        int(_HEIGHT),
        f"{text}; models loaded: {loaded}" if loaded else text,
        behind,
        _path(points, top),
        marks,
    )
    return Curve(name, f"{_number(values[-1])} {unit}", f"{_number(top)} {unit}", drawing)


def _path(points: Sequence[tuple[float, float]], top: float) -> str:
    parts: list[str] = []
    last: float | None = None
    for x, value in points:
        y = _HEIGHT - min(1.0, value / top) * (_HEIGHT - 4) - 2
        is_new = last is None or x - last > _LONGEST_GAP
        parts.append(f"{'M' if is_new else 'L'}{x:.0f} {y:.1f}")
        last = x
    return "".join(parts)


def _span(run: Run, now: datetime) -> tuple[float, float] | None:
    """Begin and length of a run in seconds of the last hour; None if it ended before."""
    begin = HOUR - (now - run.started_at).total_seconds()
    end = HOUR if run.finished_at is None else HOUR - (now - run.finished_at).total_seconds()
    if end < 0:
        return None
    begin = min(max(begin, 0.0), HOUR)
    return begin, max(min(end, HOUR) - begin, 0.0)


def _shown_state(run: Run) -> str:
    is_live = run.state in (AttemptState.SENT.value, AttemptState.WAITING.value)
    return "running" if is_live else run.state


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.1f}"


def _of_gpu(name: str, divisor: float = 1.0) -> _Value:
    def read(reading: Mapping[str, Any]) -> float | None:
        value = (reading.get("gpu") or {}).get(name)
        return None if value is None else float(value) / divisor

    return read


def _of_machine(name: str, divisor: float = 1.0) -> _Value:
    def read(reading: Mapping[str, Any]) -> float | None:
        value = reading.get(name)
        return None if value is None else float(value) / divisor

    return read


def _hundred(reading: Mapping[str, Any]) -> float | None:
    return 100.0


def _none(reading: Mapping[str, Any]) -> float | None:
    return None


_GPU: tuple[_Measure, ...] = (
    ("GPU utilisation", "%", _of_gpu("utilisation"), _hundred),
    ("GPU memory", "GB", _of_gpu("used_mb", 1024), _of_gpu("total_mb", 1024)),
    ("Temperature", "°C", _of_gpu("temperature"), _hundred),
    ("Power", "W", _of_gpu("power"), _none),
)
_MACHINE: tuple[_Measure, ...] = (
    ("CPU", "%", _of_machine("cpu_percent"), _hundred),
    ("Main memory", "GB", _of_machine("ram_used_mb", 1024), _of_machine("ram_total_mb", 1024)),
)
"""Name, unit, value and top of the scale, of a reading."""


def axis_begin(now: datetime) -> datetime:
    """Return the time at the left edge of the charts."""
    return now - timedelta(seconds=HOUR)
