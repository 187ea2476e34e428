"""How fast jobs have been coming to an end: what a refusal for want of room says as `Retry-After`."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import F, Sum

from jobs.models import Rollup
from jobs.reports.rollups import MINUTE

WINDOW_SECONDS = 600.0
LONGEST_SECONDS = 60.0
"""Also where nothing ended for the whole window: somebody may cancel, or a server come back."""


def seconds_until_one_ends(now: datetime, **of: object) -> float:
    """The mean time between two ends in the last ten minutes, from 1 to 60 s. of: fields of the rollups, as
    in model="flux" or tenant_id=3."""
    since = now - timedelta(seconds=WINDOW_SECONDS)
    rows = Rollup.objects.filter(span_seconds=MINUTE, at__gte=since, **of)
    ended = rows.aggregate(ended=Sum(F("completed") + F("failed") + F("cancelled")))["ended"] or 0
    return min(LONGEST_SECONDS, max(1.0, WINDOW_SECONDS / ended)) if ended else LONGEST_SECONDS
