"""Charts as inline SVG, without a library or script. An `aria-label` gives each chart's content as text.

Charts stretch to their container, so they contain no text; the templates put figures and times beside them.
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
"""Width of one bucket, in the units of the SVG's viewBox."""
_FILLS = {"completed": "currentColor", "cancelled": "currentColor", "failed": "url(#hatched)"}
_OUTCOMES = tuple(_FILLS)

Value = Callable[[Sums], float | None]


def ended_chart(line: ModelHistory, begin: datetime) -> SafeString:
    """Draw the jobs that finished in each bucket as stacked bars; failed ones are hatched and on top."""
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
    drawn = format_html_join(  # `fill` is an attribute: in a style sheet url(#…) would refer to the sheet
        "",
        '<rect class="bar-{}" fill="{}" x="{}" y="{}" width="{}" height="{}"/>',
        bars,
    )
    return _svg(line, format_html("{}{}", drawn, _tooltips(line, begin, _ended_text)), _summary(line))


def time_chart(line: ModelHistory, begin: datetime, measure: str) -> SafeString:
    """Draw the median and the 95th percentile of a time as two curves. measure: ``wait`` or ``run``."""
    curves = [
        (name, [percentile(_counts(bucket, measure), share) for bucket in line.buckets])
        for name, share in _SHARES
    ]
    top = max((value for _, values in curves for value in values if value is not None), default=0.0) or 1.0
    drawn = format_html_join(
        "", '<path class="curve-{}" d="{}"/>', [(name, _path(v, top)) for name, v in curves]
    )

    def text(sums: Sums) -> str:
        counts = _counts(sums, measure)
        return ", ".join(f"{name} {seconds(percentile(counts, share))}" for name, share in _SHARES)

    label = f"{measure} time: {text(line.total)}"
    return _svg(line, format_html("{}{}", drawn, _tooltips(line, begin, text)), label)


_SHARES = (("p50", 0.5), ("p95", 0.95))


def highest(line: ModelHistory, measure: str) -> float:
    """Return the top of a chart's scale. measure: ``ended`` for jobs per bucket, ``wait`` or ``run`` for
    seconds of the highest 95th percentile."""
    if measure == "ended":
        return max((_ended(bucket) for bucket in line.buckets), default=0)
    found = (percentile(_counts(bucket, measure), 0.95) for bucket in line.buckets)
    return max((value for value in found if value is not None), default=0.0)


def _svg(line: ModelHistory, drawn: SafeString, label: str) -> SafeString:
    return format_html(
        '<svg class="drawing" viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">'
        "{}</svg>",
        len(line.buckets) * WIDTH,
        HEIGHT,
        label,
        drawn,
    )


def _tooltips(line: ModelHistory, begin: datetime, text: Callable[[Sums], str]) -> SafeString:
    """Invisible bars with a tooltip, for each bucket in which a job finished."""
    step = timedelta(seconds=line.window.bucket_seconds)
    time_format = "%H:%M" if line.window.seconds <= 86_400 else "%d %b %H:%M"
    rows = [
        (place * WIDTH, WIDTH, HEIGHT, f"{begin + place * step:{time_format}}", text(bucket))
        for place, bucket in enumerate(line.buckets)
        if _ended(bucket)
    ]
    return format_html_join(
        "",
        '<rect class="hint" x="{}" y="0" width="{}" height="{}"><title>{}: {}</title></rect>',
        rows,
    )


def _path(values: Sequence[float | None], top: float) -> str:
    """A line through the middles of the buckets, with gaps at empty ones; a single bucket is a dash."""
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


def _counts(sums: Sums, measure: str) -> Counts:
    return sums.waits if measure == "wait" else sums.runs


def _ended(sums: Sums) -> int:
    return sums.completed + sums.failed + sums.cancelled


def _ended_text(sums: Sums) -> str:
    return ", ".join(f"{getattr(sums, outcome)} {outcome}" for outcome in _OUTCOMES if getattr(sums, outcome))


def _summary(line: ModelHistory) -> str:
    total = _ended_text(line.total) or "no finished jobs"
    return f"{total}; at most {highest(line, 'ended')} at a time"


PATTERNS = mark_safe(
    '<svg class="patterns" aria-hidden="true"><defs><pattern id="hatched" width="6" height="6" '
    'patternUnits="userSpaceOnUse" patternTransform="rotate(45)"><rect width="6" height="6" '
    'class="hatch-ground"/><rect width="3" height="6" class="hatch-stripe"/></pattern></defs></svg>'
)
"""The hatching of failed bars; each page includes it once."""
