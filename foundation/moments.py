"""Times as people type them: a timestamp, or a span such as 30m from now."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

FORMS = "a time such as 2026-01-31T12:00 (UTC without a zone), or a span: 30s, 30m, 2h or 7d"
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_SPAN = re.compile(r"([0-9]{1,6})([smhd])\Z")


def read_moment(text: str, now: datetime, *, ahead: bool = False) -> datetime:
    """Return the time that a text names. ahead: a span is that long from now, else that long ago.

    Raises ValueError with a text for people."""
    text = text.strip()
    if span := _SPAN.match(text):
        by = timedelta(**{_UNITS[span[2]]: int(span[1])})
        try:
            return now + by if ahead else now - by
        except OverflowError:
            raise ValueError(f"{text!r} is too {'far' if ahead else 'long ago'}") from None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not {FORMS}") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)
