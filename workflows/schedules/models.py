"""The tables of schedules: what is started when, and what became of each due time."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta

from django.db import models
from django.db.models import F, Q

from foundation.ids import new_id
from foundation.names import NameField
from workflows.schedules.domain.policy import CatchUp, Lateness, Outcome, Overlap
from workflows.schedules.domain.timetable import Timetable, jitter_of, zone_of

NO_BACKFILL = ""
"""Value of `Firing.backfill` of a firing by the timetable."""


class Schedule(models.Model):
    """Starts a job or a workflow run at its due times.

    cron, every_seconds, at: one of them. timezone: IANA name, of cron. anchor_at: from which every_seconds
    counts. target: ``{"submit": body}`` or ``{"workflow": {"name", "inputs", …}}``. key_models: models that
    it may use, those of the key that stored it last; null: all of the tenant's. paused_from, paused_until:
    due times in between are skipped; paused_until None: until it is resumed. failures: ends in a row that
    failed. handled_at: the due times up to here have their firings. next_due_at: the one after it; None:
    there is none, or its time zone is unknown. next_at: when the sweep looks at the schedule; None:
    never. tries: errors in a row of the sweep at this due time. error_code, error_message: why no due
    time can be computed. version: raised by each change; all of them compare and set it.
    """

    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE, related_name="schedules")
    name = NameField()
    cron = models.CharField(max_length=200, blank=True, default="")
    timezone = models.CharField(max_length=64, default="UTC")
    every_seconds = models.FloatField(null=True, blank=True)
    at = models.DateTimeField(null=True, blank=True)
    anchor_at = models.DateTimeField()
    target = models.JSONField()
    key_models = models.JSONField(null=True, blank=True, default=None)
    overlap = models.CharField(
        max_length=15, choices=[(o.value, o.value) for o in Overlap], default=Overlap.SKIP.value
    )
    catch_up = models.CharField(
        max_length=4, choices=[(c.value, c.value) for c in CatchUp], default=CatchUp.LAST.value
    )
    catch_up_seconds = models.FloatField(default=3600.0)
    jitter_seconds = models.FloatField(default=0.0)
    start_at = models.DateTimeField(null=True, blank=True)
    end_at = models.DateTimeField(null=True, blank=True)
    paused_from = models.DateTimeField(null=True, blank=True)
    paused_until = models.DateTimeField(null=True, blank=True)
    pause_reason = models.CharField(max_length=200, blank=True, default="")
    pause_after_failures = models.PositiveIntegerField(null=True, blank=True)
    failures = models.PositiveIntegerField(default=0)
    handled_at = models.DateTimeField()
    next_due_at = models.DateTimeField(null=True, blank=True)
    next_at = models.DateTimeField(null=True, blank=True)
    tries = models.PositiveSmallIntegerField(default=0)
    error_code = models.CharField(max_length=64, blank=True, default="")
    error_message = models.TextField(blank=True, default="")
    version = models.PositiveIntegerField(default=1)
    created_at = models.DateTimeField()
    updated_at = models.DateTimeField()

    class Meta:
        ordering = ["name"]
        constraints = [models.UniqueConstraint(fields=["tenant", "name"], name="one_schedule_per_name")]
        indexes = [
            models.Index(fields=["next_at"], name="schedule_due_idx", condition=Q(next_at__isnull=False))
        ]

    def __str__(self) -> str:
        return self.name

    @property
    def timetable(self) -> Timetable:
        """Its due times. Raises UnknownTimezone."""
        return Timetable(
            cron=self.cron,
            zone=zone_of(self.timezone),
            every_seconds=self.every_seconds,
            at=self.at,
            anchor=self.start_at or self.anchor_at,
            start=self.start_at,
            end=self.end_at,
        )

    @property
    def jitter(self) -> timedelta:
        """By how much its firings are delayed."""
        return jitter_of(f"{self.tenant_id}:{self.name}", self.jitter_seconds)

    def lateness(self, grace_seconds: float) -> Lateness:
        """Return its rules for due times that have come."""
        return Lateness(
            CatchUp(self.catch_up),
            self.catch_up_seconds,
            grace_seconds,
            self.jitter,
            self.paused_from,
            self.paused_until,
        )


class Firing(models.Model):
    """The outcome of a due time.

    until_at, count: of a row for several missed or skipped due times, the last of them and their number.
    backfill: of a backfill or a trigger, its request; empty: by the timetable. may_overlap: of a backfill,
    starts while others run. by: its user or key. reason, detail: why it was not started. job_id, run_id:
    what it started; no foreign keys, because retention deletes them. at: when it was decided. ended_at,
    end_state: of its job or run; without ended_at, end_state is that of an earlier end.
    """

    id = models.CharField(max_length=26, primary_key=True, default=new_id, editable=False)
    schedule = models.ForeignKey(Schedule, on_delete=models.CASCADE, related_name="firings")
    due_at = models.DateTimeField()
    until_at = models.DateTimeField(null=True, blank=True)
    count = models.PositiveIntegerField(default=1)
    backfill = models.CharField(max_length=26, blank=True, default=NO_BACKFILL)
    may_overlap = models.BooleanField(default=False)
    by = models.CharField(max_length=200, blank=True, default="")
    outcome = models.CharField(max_length=8, choices=[(o.value, o.value) for o in Outcome])
    reason = models.CharField(max_length=64, blank=True, default="")
    detail = models.TextField(blank=True, default="")
    job_id = models.CharField(max_length=26, null=True, blank=True, default=None)
    run_id = models.CharField(max_length=26, null=True, blank=True, default=None)
    at = models.DateTimeField()
    ended_at = models.DateTimeField(null=True, blank=True)
    end_state = models.CharField(max_length=10, blank=True, default="")

    class Meta:
        ordering = ["-id"]
        constraints = [
            # the guard against a due time that is started twice
            models.UniqueConstraint(
                fields=["schedule", "due_at", "backfill"], name="one_firing_per_due_time"
            ),
            models.UniqueConstraint(fields=["job_id"], condition=~Q(job_id=None), name="one_firing_per_job"),
            models.UniqueConstraint(fields=["run_id"], condition=~Q(run_id=None), name="one_firing_per_run"),
            models.CheckConstraint(
                name="firing_started_something",
                condition=(
                    Q(outcome=Outcome.STARTED.value)
                    & (Q(job_id=None, run_id__isnull=False) | Q(job_id__isnull=False, run_id=None))
                    | ~Q(outcome=Outcome.STARTED.value) & Q(job_id=None, run_id=None)
                ),
            ),
        ]
        indexes = [
            models.Index(fields=["schedule", "-id"], name="firing_of_schedule_idx"),
            models.Index(
                fields=["schedule", "id"],
                name="firing_open_idx",
                condition=Q(outcome=Outcome.STARTED.value, ended_at=None),
            ),
            models.Index(
                fields=["schedule", "id"],
                name="firing_waiting_idx",
                condition=Q(outcome=Outcome.WAITING.value),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.schedule_id} {self.due_at.isoformat()}"

    @property
    def is_backfilled(self) -> bool:
        """True of a backfill, which runs beside the timetable's own firings. A trigger is due when it is
        decided."""
        return self.backfill != NO_BACKFILL and self.due_at != self.at


def reopen(ids: Collection[str]) -> None:
    """Open the firings of these jobs and runs, which go on after their end. Rows that are open are written
    too: the sweep that is about to close one waits for that, and looks again."""
    started = Firing.objects.filter(Q(job_id__in=ids) | Q(run_id__in=ids))
    started.update(ended_at=None)


OF_BACKFILL = ~Q(backfill=NO_BACKFILL) & ~Q(due_at=F("at"))
"""`Firing.is_backfilled` as a condition, of firings that have started."""
