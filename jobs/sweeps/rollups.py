"""Ends of jobs and attempts that are in no rollup yet, and rollups past their retention time.

The cursor, the last event that is summed up, is in the row `CURSOR` of `SweepRun`. A step moves it by
compare-and-set in the transaction that writes its sums. So each end counts once, also with concurrent sweeps
and crashes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta

from django.conf import settings
from django.db import connection, transaction
from django.db.models import Max

from jobs.models import Event, Rollup, SweepRun, TagUsage, Tenant
from jobs.ports import Ports
from jobs.reports import counters
from jobs.reports.rollups import (
    BEGINNING,
    CURSOR,
    DAY,
    EVER,
    HOUR,
    KEPT_SECONDS,
    MINUTE,
    TEN_MINUTES,
    EndedEvent,
    Key,
    Sums,
    day_of,
    ended_between,
    span_begin,
    sum_up,
)
from jobs.sweeps.base import SweepCount

PERIOD_SECONDS = 5.0
BATCH = 1000
"""Events per step."""
MAX_STEPS = 50
MAX_FOLDED = 5000
"""Hours that one run of the sweep turns into days."""


@dataclass(slots=True)
class EventHorizon:
    """The highest event id below which no further event can be committed.

    SQLite has one writer, so that is the newest committed id. PostgreSQL assigns ids before the commit: an id
    is final once every transaction has ended that was open when the id was first seen (an event is never the
    first write of its transaction, so that transaction has an id by then). A new process has it at the second
    call.

    event_id: the highest final id. _seen: the highest id seen, and the id of a transaction that began later.
    """

    event_id: int = 0
    _seen: tuple[int, int] | None = field(default=None)

    def advance(self) -> int:
        """Advance the horizon and return `event_id`."""
        last = Event.objects.aggregate(last=Max("id"))["last"] or 0
        if connection.vendor != "postgresql":
            self.event_id = last
            return last
        oldest, coming = _transactions()
        if self._seen is None or oldest >= self._seen[1]:
            self.event_id = self._seen[0] if self._seen else 0
            self._seen = (last, coming)
        return self.event_id


def _transactions() -> tuple[int, int]:
    """Return the ids of the oldest open transaction and of this one; call it after reading the newest event
    id. Not the snapshot's upper bound: open transactions may have higher ids."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text, pg_current_xact_id()::text")
        oldest, coming = cursor.fetchone()
    return int(oldest), int(coming)


def _sum_up_ended(horizon: int, batch: int) -> SweepCount:
    """Add the ends up to this event id to the rollups, at most `MAX_STEPS` batches."""
    looked = written = 0
    for _ in range(MAX_STEPS):
        before = summed_up_to()
        if before >= horizon:
            break
        ended, last = ended_between(before, horizon, batch)
        # retention may have deleted a tenant's last jobs, and then the tenant may be deleted
        known = set(
            Tenant.objects.filter(pk__in={one.tenant_id for one in ended}).values_list("pk", flat=True)
        )
        count = [one for one in ended if one.tenant_id in known]
        sums = {span: sum_up(count, span) for span in (EVER, *KEPT_SECONDS)}
        with transaction.atomic():
            if not _move_cursor(before, last, max((one.at for one in ended), default=None)):
                break  # another process moved the cursor and continues
            written += sum(_add(span, found) for span, found in sums.items())
            written += _add_tags(count)
            counters.add(_attempt_ends(ended))
        looked += len(ended)
    return SweepCount(looked, written)


def _attempt_ends(ended: Iterable[EndedEvent]) -> Mapping[counters.Key, int]:
    return Counter(
        (counters.Name.ATTEMPT_ENDS, one.model, f"{one.attempt}/{one.then}") for one in ended if one.attempt
    )


def _add(span: int, sums: Mapping[Key, Sums]) -> int:
    """Add the sums to the rollups of one span; return the number of rows. The caller's transaction holds the
    cursor's row lock, so no other process writes rollups."""
    if not sums:
        return 0
    found = Rollup.objects.filter(
        span_seconds=span, at__in={at for at, _, _ in sums}, model__in={model for _, model, _ in sums}
    )
    for row in found:
        if (key := (row.at, row.model, row.tenant_id)) in sums:
            sums[key].add(_sums(row))
    Rollup.objects.bulk_create(
        [
            Rollup(
                span_seconds=span,
                at=at,
                model=model,
                tenant_id=tenant,
                completed=one.completed,
                failed=one.failed,
                cancelled=one.cancelled,
                gpu_seconds=one.gpu_seconds,
                waits=one.waits,
                runs=one.runs,
            )
            for (at, model, tenant), one in sums.items()
        ],
        update_conflicts=True,
        unique_fields=["span_seconds", "at", "model", "tenant"],
        update_fields=["completed", "failed", "cancelled", "gpu_seconds", "waits", "runs"],
        batch_size=500,
    )
    return len(sums)


def _add_tags(ended: Iterable[EndedEvent]) -> int:
    """Add the ends to the usage by tag; return the number of rows. The cursor is locked, as in `_add`."""
    used = [(end.at.astimezone(UTC).date(), tag, end) for end in ended for tag in end.tags]
    stored = TagUsage.objects.filter(
        day__in={day for day, _, _ in used}, tenant__in={end.tenant_id for _, _, end in used}
    )
    rows = {(row.day, row.tenant_id, row.tag): row for row in (stored if used else ())}
    number = Counter((day, tenant) for day, tenant, _ in rows)
    changed: dict[tuple[date, int, str], TagUsage] = {}
    for day, tag, end in used:
        key = (day, end.tenant_id, tag)
        if key not in rows and number[key[:2]] >= settings.DISPATCHER.usage_tags:
            key = (day, end.tenant_id, "")
        if key not in rows:
            number[key[:2]] += 1
            rows[key] = TagUsage(day=day, tenant_id=end.tenant_id, tag=key[2])
        row = changed[key] = rows[key]
        row.completed += end.outcome == "completed"
        row.failed += end.outcome == "failed"
        row.cancelled += end.outcome == "cancelled"
        row.gpu_seconds += end.gpu_seconds
    TagUsage.objects.bulk_create(
        changed.values(),
        update_conflicts=True,
        unique_fields=["tenant", "day", "tag"],
        update_fields=["completed", "failed", "cancelled", "gpu_seconds"],
        batch_size=500,
    )
    return len(changed)


def _fold_into_days(now: datetime, most: int) -> int:
    """Replace the oldest hours of days that are past their retention by one row a day; return the hours."""
    before = day_of(now - timedelta(seconds=KEPT_SECONDS[HOUR]))
    with transaction.atomic():
        SweepRun.objects.select_for_update().filter(name=CURSOR).first()
        rows = list(Rollup.objects.filter(span_seconds=HOUR, at__lt=before).order_by("id")[:most])
        sums: dict[Key, Sums] = {}
        for row in rows:
            sums.setdefault((span_begin(row.at, DAY), row.model, row.tenant_id), Sums()).add(_sums(row))
        _add(DAY, sums)
        Rollup.objects.filter(pk__in=[row.pk for row in rows]).delete()
    return len(rows)


def _sums(row: Rollup) -> Sums:
    return Sums(row.completed, row.failed, row.cancelled, row.gpu_seconds, row.waits, row.runs)


def summed_up_to() -> int:
    """Return the id of the last event that is in the rollups; 0 before the first run."""
    line, _ = SweepRun.objects.get_or_create(name=CURSOR, defaults={"at": BEGINNING, "note": "0"})
    return int(line.note)


def _move_cursor(before: int, last: int, at: datetime | None) -> bool:
    values = {"note": str(last)} | ({"at": at} if at else {})
    return bool(SweepRun.objects.filter(name=CURSOR, note=str(before)).update(**values))


class RollupsSweep:
    """Adds ends to the rollups and deletes old rollups; once a UTC day, turns old hours into days.

    Keeps the event horizon of this process, and the last day on which it folded hours. batch: ends summed up
    in one transaction. most_folded: hours turned into days in one run.
    """

    def __init__(
        self, horizon: EventHorizon | None = None, *, batch: int = BATCH, most_folded: int = MAX_FOLDED
    ) -> None:
        self._horizon = horizon or EventHorizon()
        self._batch, self._most_folded = batch, most_folded
        self._folded: datetime | None = None

    def __call__(self, ports: Ports) -> SweepCount:
        """looked: ends summed up. repaired: rollups written or deleted."""
        count = _sum_up_ended(self._horizon.advance(), self._batch)
        now = ports.clock.now()
        for span in (MINUTE, TEN_MINUTES):
            old = Rollup.objects.filter(span_seconds=span, at__lt=now - timedelta(seconds=KEPT_SECONDS[span]))
            count += SweepCount(repaired=old.delete()[0])
        if day_of(now) != self._folded:
            folded = _fold_into_days(now, self._most_folded)
            self._folded = day_of(now) if folded < self._most_folded else None
            count += SweepCount(repaired=folded + _delete_old_days(now))
        return count


def _delete_old_days(now: datetime) -> int:
    first = day_of(now) - timedelta(days=settings.DISPATCHER.usage_days)
    days, _ = Rollup.objects.filter(span_seconds=DAY, at__lt=first).delete()
    return days + TagUsage.objects.filter(day__lt=first.date()).delete()[0]
