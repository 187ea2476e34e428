"""The strip of a schedule: what its last hours started, skipped and missed, and the due times of the next
ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from workflows.schedules.domain.policy import Outcome
from workflows.schedules.models import Firing, Schedule
from workflows.schedules.operations.fire_times import fire_times

HOURS = 24
"""The strip shows so many hours back, and as many ahead."""
MAX_TICKS = 500
_SPAN = timedelta(hours=HOURS)
_HOURS_LABELLED = range(0, 2 * HOURS, 6)


def calendar_strip(schedule: Schedule, now: datetime) -> SafeString:
    """Return an SVG with a tick for each firing and due time, and the same as a sentence."""
    past = list(Firing.objects.filter(schedule=schedule, due_at__gte=now - _SPAN)[:MAX_TICKS])
    times = fire_times(schedule, MAX_TICKS + 1, now)
    ahead = [one.fires_at for one in times[:MAX_TICKS] if one.fires_at <= now + _SPAN]
    is_cut = len(ahead) == MAX_TICKS < len(times)
    ticks = [*_past(past, now), *(_tick(at, at, now, "due", f"{at:%a %H:%M:%S} due") for at in ahead)]
    labels = ((now - _SPAN + timedelta(hours=hour), hour) for hour in _HOURS_LABELLED)
    words = _words(past, len(ahead), is_cut=is_cut)
    return format_html(
        '<svg class="strip" width="100%" height="48" role="img" aria-label="{0}">'
        '<rect x="0" y="4" width="100%" height="24" class="strip-well"/>{1}'
        '<rect x="50%" y="0" width="1" height="32" class="tick-now"><title>now</title></rect>{2}</svg>'
        '<p class="note">{0}</p>',
        words,
        format_html_join(
            "", '<rect x="{}" y="4" width="{}" height="24" class="{}"><title>{}</title></rect>', ticks
        ),
        format_html_join(
            "",
            '<text x="{}" y="44" class="tick-hour">{}</text>',
            ((f"{100 * hour / (2 * HOURS):.2f}%", f"{at:%a %H:%M}") for at, hour in labels),
        ),
    )


def _past(firings: list[Firing], now: datetime) -> Iterator[tuple[str, str, str, str]]:
    for one in firings:
        kind = "failed" if _has_failed(one) else one.outcome
        times = f" × {one.count}" if one.count > 1 else ""
        yield _tick(
            one.due_at, one.until_at or one.due_at, now, kind, f"{one.due_at:%a %H:%M:%S}{times} {kind}"
        )


def _has_failed(firing: Firing) -> bool:
    return firing.ended_at is not None and firing.end_state == "failed"


def _tick(begin: datetime, end: datetime, now: datetime, kind: str, title: str) -> tuple[str, str, str, str]:
    """Return left, width, class and title of a tick; several due times in a row are one wide tick."""
    left, right = (
        min(99.7, max(0.0, 50 + 50 * ((at - now) / _SPAN))) for at in (begin, max(begin, min(end, now)))
    )
    width = f"{right - left:.2f}%" if right - left > 0.5 else "3"
    return f"{left:.2f}%", width, f"tick tick-{kind}", title


def _words(past: list[Firing], ahead: int, *, is_cut: bool) -> str:
    counts: Counter[str] = Counter()
    for one in past:
        counts[one.outcome] += one.count
    failed = sum(map(_has_failed, past))
    before = [f"{counts[outcome.value]} {outcome.value}" for outcome in Outcome if counts[outcome.value]]
    before += [f"{failed} of them failed"] if failed else []
    latest = " (the latest)" if len(past) == MAX_TICKS else ""
    return (
        f"Last {HOURS} hours{latest}: {', '.join(before) or 'nothing due'}. "
        f"Next {HOURS} hours: {f'more than {ahead}' if is_cut else ahead} due."
    )
