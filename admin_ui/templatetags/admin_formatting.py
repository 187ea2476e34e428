"""Template filters and tags: `admin_ui.parts.formatting`, `admin_ui.dashboard.labels` and `.charts`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from django import template
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from admin_ui.dashboard import charts, labels
from admin_ui.parts import formatting
from gpus.reports import Cell, CellState
from jobs.domain.tracebacks import Traceback, split_message, traceback_in
from jobs.models import Job
from jobs.reports.fleet import FleetSnapshot, LiveAttempt
from jobs.reports.history import ModelHistory, Window
from jobs.reports.progress import Reported

register = template.Library()
register.filter("age", labels.age)
register.filter("rate", labels.rate)


@register.filter
def seconds(value: float | None) -> str:
    return formatting.seconds(value)


@register.filter
def job_state(state: str) -> SafeString:
    return formatting.badge(state, formatting.JOB_LABELS)


@register.filter
def follower(name: str | None) -> SafeString | str:
    return formatting.follower_link(name)


@register.filter
def run_state(state: str) -> SafeString:
    return formatting.badge(state, formatting.RUN_LABELS)


@register.filter
def attempt_state(state: str) -> SafeString:
    return formatting.attempt_badge(state)


@register.filter
def callback_state(state: str) -> SafeString:
    return formatting.badge(state, formatting.CALLBACK_LABELS)


@register.filter
def message_of(error: str) -> str:
    """The message of an attempt's error, without its traceback."""
    return split_message(error)[0]


@register.filter
def traceback_of(error: str) -> Traceback | None:
    return traceback_in(error)


@register.filter
def moment(at: datetime | None) -> SafeString | str:
    """A time in UTC, to the second; its tooltip has microseconds."""
    if at is None:
        return "–"
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', at.isoformat(), at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S}"
    )


@register.filter
def clock(at: datetime | None) -> SafeString | str:
    """A time of day, to the millisecond."""
    if at is None:
        return "–"
    text = f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), at.isoformat(), text)


@register.filter
def add_percent(left: float, width: float) -> str:
    """The right end of a bar in percent, at most 100."""
    return f"{min(left + width, 100.0):.3f}"


@register.filter
def icon_of(state: CellState) -> str:
    return labels.CELL_ICONS[state]


@register.filter
def meaning_of(state: CellState) -> str:
    return labels.CELL_MEANINGS[state]


@register.filter
def cell_words(cell: Cell) -> str:
    """Return a slot's state in words: `box-1/0: busy, flux 12 s, job …7GS2`."""
    parts = [f"{cell.slot}: {cell.state}"]
    if cell.model:
        parts.append(f"{cell.model} {labels.age(cell.age_seconds)}".rstrip())
    if cell.job_id:
        parts.append(f"job {short_id(cell.job_id)}")
    return ", ".join(parts) + (f" ({cell.reason})" if cell.reason else "")


@register.filter
def ago(at: datetime | None) -> str:
    return "never" if at is None else f"{labels.age((timezone.now() - at).total_seconds())} ago"


@register.filter
def measured(telemetry: Mapping[str, Any]) -> list[tuple[str, str]]:
    return labels.measured(telemetry)


@register.filter
def as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@register.filter
def percent(share: float) -> str:
    return formatting.percent(share)


@register.filter
def spoken(job: Job, progress: Reported | None) -> str:
    """Return what a screen reader announces of a job: its state, and the progress in steps of ten percent."""
    text = f"Job {job.state}"
    if job.error_code and job.finished_at:
        text += f", {job.error_code}"
    return text if progress is None else f"{text}, {int(progress.value * 10) * 10} %"


@register.filter
def first_line(text: str) -> str:
    """The first line of an error message; a traceback follows it."""
    return text.partition("\n")[0]


@register.filter
def short_id(job_id: str) -> str:
    """The end of an id: ids made at about the same time have the same beginning."""
    return f"…{job_id[-6:]}"


@register.simple_tag
def ended_chart(line: ModelHistory, begin: datetime) -> SafeString:
    return charts.ended_chart(line, begin)


@register.simple_tag
def time_chart(line: ModelHistory, begin: datetime, measure: str) -> SafeString:
    return charts.time_chart(line, begin, measure)


@register.simple_tag
def highest(line: ModelHistory, measure: str) -> float:
    return charts.highest(line, measure)


@register.filter
def axis(at: datetime, window: Window) -> str:
    """A time of day; with the date if the window is longer than a day."""
    return f"{at:%H:%M}" if window.seconds <= 86_400 else f"{at:%d %b %H:%M}"


@register.filter
def attempt_in(slot: str, fleet: FleetSnapshot) -> LiveAttempt | None:
    return fleet.attempts.get(slot)


@register.simple_tag
def patterns() -> SafeString:
    return charts.PATTERNS


@register.simple_tag
def wait_of(line: ModelHistory, share: float) -> float | None:
    return line.wait(share)


@register.simple_tag
def run_of(line: ModelHistory, share: float) -> float | None:
    return line.run(share)
