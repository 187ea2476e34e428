"""What tenants used, by UTC day, model or tag: jobs that ended and GPU-seconds of their attempts.

Read from the rollups: hours of the last days, and the days that older hours became (`jobs.sweeps.rollups`).
The values lag by about 10 s, and count each attempt on the day on which it ended.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from enum import StrEnum
from io import StringIO

from django.db.models import F, Sum
from django.db.models.functions import TruncDate

from jobs.models import Rollup, TagUsage
from jobs.reports.rollups import DAY, HOUR, Counts, percentile, sum_of_buckets


class UsageBy(StrEnum):
    """The subject of a usage row."""

    DAY = "day"
    MODEL = "model"
    TAG = "tag"


@dataclass(frozen=True, slots=True)
class UsageRow:
    """key: ISO date, model or tag. completed, failed, cancelled: jobs. gpu_seconds: of all their attempts."""

    key: str
    completed: int
    failed: int
    cancelled: int
    gpu_seconds: float


_EARLIEST, _LATEST = date(1970, 1, 1), date(9998, 12, 31)
"""Leave room for the days before and after, in `date` and in the database."""
_FORMULA = tuple("=+-@＝＋－＠")
DEFAULT_DAYS = 30
"""Of a report without a first day."""
COLUMNS = ("completed", "failed", "cancelled", "gpu_seconds")


def usage(tenant_id: int, first: date, last: date, by: UsageBy) -> list[UsageRow]:
    """Return a tenant's usage from `first` to `last`, both included, sorted by key, without rows of zeros.
    One query."""
    if by is UsageBy.TAG:
        tags = TagUsage.objects.filter(tenant=tenant_id, day__range=(first, last)).order_by("tag")
        return _rows(tags.values_list("tag").annotate(*map(Sum, COLUMNS)))
    rollups = Rollup.objects.filter(
        tenant=tenant_id, span_seconds__in=(HOUR, DAY), at__gte=_begin(first), at__lt=_end(last)
    ).annotate(key=TruncDate("at", tzinfo=UTC) if by is UsageBy.DAY else F("model"))
    return _rows(rollups.order_by("key").values_list("key").annotate(*map(Sum, COLUMNS)))


def usage_of_all(first: date, last: date) -> list[UsageRow]:
    """Return the usage of each tenant with an ended job, by name; one query."""
    rollups = Rollup.objects.filter(span_seconds__in=(HOUR, DAY), at__gte=_begin(first), at__lt=_end(last))
    return _rows(rollups.order_by("tenant__name").values_list("tenant__name").annotate(*map(Sum, COLUMNS)))


def read_day(text: str) -> date:
    """Return the UTC day of a text such as ``2026-01-31``. Raises ValueError."""
    day = date.fromisoformat(text)
    if day.isoformat() != text or not _EARLIEST <= day <= _LATEST:
        raise ValueError(text)
    return day


def _begin(day: date) -> datetime:
    return datetime(day.year, day.month, day.day, tzinfo=UTC)


def _end(day: date) -> datetime:
    return _begin(day) + timedelta(days=1)


def _rows(found: Iterable[tuple[object, ...]]) -> list[UsageRow]:
    return [UsageRow(str(key), *sums) for key, *sums in found]  # type: ignore[arg-type]


def total(rows: Sequence[UsageRow]) -> UsageRow:
    return UsageRow(
        "",
        sum(row.completed for row in rows),
        sum(row.failed for row in rows),
        sum(row.cancelled for row in rows),
        sum(row.gpu_seconds for row in rows),
    )


DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t"}
"""Of CSV, by the name that clients give. A semicolon comes with decimal commas."""


def as_csv(title: str, rows: Iterable[UsageRow], delimiter: str = "comma") -> str:
    """Return the rows as CSV, a line each. title: of the keys' column. delimiter: a key of `DELIMITERS`. In
    keys, unprintable characters are escaped; one that a spreadsheet would take for a formula begins with
    ``'``."""
    text = StringIO()
    writer = csv.writer(text, delimiter=DELIMITERS[delimiter])
    writer.writerow((title, *COLUMNS))
    for row in rows:
        key = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in row.key)
        if key.lstrip().startswith(_FORMULA):
            key = f"'{key}"
        spent = str(round(row.gpu_seconds, 3))
        if delimiter == "semicolon":
            spent = spent.replace(".", ",")
        writer.writerow((key, row.completed, row.failed, row.cancelled, spent))
    return text.getvalue()


def typical_run_seconds(tenant_id: int) -> dict[str, float]:
    """Return the median run time of the tenant's jobs in the last days, by model; one query."""
    rows = Rollup.objects.filter(tenant=tenant_id, span_seconds=HOUR).order_by().values_list("model", "runs")
    runs: dict[str, Counts] = {}
    for model, counts in rows:
        runs[model] = sum_of_buckets(runs.get(model, ()), counts)
    medians = {model: percentile(counts, 0.5) for model, counts in runs.items()}
    return {model: round(median, 3) for model, median in medians.items() if median is not None}
