"""`admin_ui.parts.formatting` for templates."""

from __future__ import annotations

from datetime import datetime

from django import template
from django.utils.html import format_html
from django.utils.safestring import SafeString

from admin_ui.parts import formatting

register = template.Library()


@register.filter
def seconds(value: float | None) -> str:
    return formatting.seconds(value)


@register.filter
def job_state(state: str) -> SafeString:
    return formatting.badge(state, formatting.JOB_LABELS)


@register.filter
def attempt_state(state: str) -> SafeString:
    return formatting.badge(state, formatting.ATTEMPT_LABELS)


@register.filter
def callback_state(state: str) -> SafeString:
    return formatting.badge(state, formatting.CALLBACK_LABELS)


@register.filter
def moment(at: datetime | None) -> SafeString | str:
    """To the second, in UTC; to the microsecond where one points at it."""
    if at is None:
        return "–"
    return format_html(
        '<time datetime="{}" title="{}">{}</time>', at.isoformat(), at.isoformat(), f"{at:%Y-%m-%d %H:%M:%S}"
    )


@register.filter
def clock(at: datetime | None) -> SafeString | str:
    """The time of day, to the millisecond."""
    if at is None:
        return "–"
    text = f"{at:%H:%M:%S}.{at.microsecond // 1000:03d}"
    return format_html('<time datetime="{}" title="{}">{}</time>', at.isoformat(), at.isoformat(), text)


@register.filter
def add_percent(left: float, width: float) -> str:
    return f"{min(left + width, 100.0):.3f}"
