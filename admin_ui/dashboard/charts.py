"""Charts as inline SVG, drawn here: no library, no script, and what they show is also said in words.

They stretch to whatever they are put into, so they hold no text; figures and times stand beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe

from admin_ui.parts.formatting import seconds
from jobs.reports.history import ModelHistory
from jobs.reports.rollups import Counts, Sums, percentile

HEIGHT = 100.0
WIDTH = 10.0
"""Of one bucket, in the chart's own units."""
_FILLS = {"completed": "currentColor", "cancelled": "currentColor", "failed": "url(#hatched)"}
_OUTCOMES = tuple(_FILLS)

Value = Callable[[Sums], float | None]


def ended_chart(line: ModelHistory, begin: datetime) -> SafeString:
    """Bars: what ended in each bucket; failed ones are hatched and stand on top."""
    top = max((_ended(bucket) for bucket in line.buckets), default=0) or 1
    bars = []
    for place, bucket in enumerate(line.buckets):
        base = 0.0
        for outcome in _OUTCOMES:
            height = getattr(bucket, outcome) / top * HEIGHT
            if height:
                box = (place * WIDTH, HEIGHT - base - height, WIDTH * 0.8, height)
                bars.append((outcome, _FILLS[outcome], *(f"{value:.2f}" for value in box)))
            base += height
    drawn = format_html_join(  # the fill stands here: in a style sheet its address would be the sheet's
        "",
        '<rect class="bar-{}" fill="{}" x="{}" y="{}" width="{}" height="{}"/>',
        bars,
    )
    return _svg(line, format_html("{}{}", drawn, _hints(line, begin, _ended_words)), _summary(line))


def time_chart(line: ModelHistory, begin: datetime, what: str) -> SafeString:
    """Two curves: the median and the 95th percentile. what: ``wait`` or ``run``."""
    curves = [
        (name, [percentile(_counts(bucket, what), share) for bucket in line.buckets])
        for name, share in _SHARES
    ]
    top = max((value for _, values in curves for value in values if value is not None), default=0.0) or 1.0
    drawn = format_html_join(
        "", '<path class="curve-{}" d="{}"/>', [(name, _path(v, top)) for name, v in curves]
    )

    def words(bucket: Sums) -> str:
        counts = _counts(bucket, what)
        return ", ".join(f"{name} {seconds(percentile(counts, share))}" for name, share in _SHARES)

    total = _counts(line.total, what)
    said = ", ".join(f"{name} {seconds(percentile(total, share))}" for name, share in _SHARES)
    return _svg(line, format_html("{}{}", drawn, _hints(line, begin, words)), f"{what}: {said}")


_SHARES = (("p50", 0.5), ("p95", 0.95))


def highest(line: ModelHistory, what: str) -> float:
    """The top of a chart's scale: jobs in a bucket, or seconds of the highest 95th percentile."""
    if what == "ended":
        return max((_ended(bucket) for bucket in line.buckets), default=0)
    found = (percentile(_counts(bucket, what), 0.95) for bucket in line.buckets)
    return max((value for value in found if value is not None), default=0.0)


def _svg(line: ModelHistory, drawn: SafeString, said: str) -> SafeString:
    return format_html(
        '<svg class="drawing" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        "{}</svg>",
        len(line.buckets) * WIDTH,
        HEIGHT,
        said,
        drawn,
    )


def _hints(line: ModelHistory, begin: datetime, words: Callable[[Sums], str]) -> SafeString:
    """What the pointer finds in each bucket that has something to say."""
    step = timedelta(seconds=line.window.bucket_seconds)
    look = "%H:%M" if line.window.seconds <= 86_400 else "%d %b %H:%M"
    rows = [
        (place * WIDTH, WIDTH, HEIGHT, f"{begin + place * step:{look}}", words(bucket))
        for place, bucket in enumerate(line.buckets)
        if _ended(bucket)
    ]
    return format_html_join(
        "",
        '<rect class="hint" x="{}" y="0" width="{}" height="{}"><title>{}: {}</title></rect>',
        rows,
    )


def _path(values: Sequence[float | None], top: float) -> str:
    """A line through the middles of the buckets, broken where nothing ended; one alone is a dash."""
    parts: list[str] = []
    broken = True
    for place, value in enumerate(values):
        if value is None:
            broken = True
            continue
        x, y = (place + 0.5) * WIDTH, HEIGHT - min(1.0, value / top) * HEIGHT
        parts.append(f"M{x - WIDTH / 2:.1f} {y:.1f}L{x:.1f} {y:.1f}" if broken else f"L{x:.1f} {y:.1f}")
        broken = False
    return "".join(parts)


def _counts(sums: Sums, what: str) -> Counts:
    return sums.waits if what == "wait" else sums.runs


def _ended(sums: Sums) -> int:
    return sums.completed + sums.failed + sums.cancelled


def _ended_words(sums: Sums) -> str:
    return ", ".join(f"{getattr(sums, outcome)} {outcome}" for outcome in _OUTCOMES if getattr(sums, outcome))


def _summary(line: ModelHistory) -> str:
    most = highest(line, "ended")
    return f"{_ended_words(line.total) or 'nothing'} ended; most at once: {most}"


PATTERNS = mark_safe(
    '<svg class="patterns" aria-hidden="true"><defs><pattern id="hatched" width="6" height="6" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" '
    'class="hatch-ground"/><rect width="3" height="6" class="hatch-stripe"/></pattern></defs></svg>'
)
"""Once per page: what failed bars are filled with."""
