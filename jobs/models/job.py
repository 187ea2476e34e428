"""Jobs with their tags, attempts and events; idempotency keys; results pushed by GPU servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from foundation.ids import new_id
from gpus.protocol import Ticket
from jobs.domain.errors import CLIENT_ERRORS
from jobs.domain.states import FINAL_JOB_STATES, LIVE_ATTEMPT_STATES, AttemptState, JobState

# sorted, because migrations must not depend on hashes. "leased" is only in the conditions of the indexes
_FINAL = sorted(state.value for state in FINAL_JOB_STATES)
_LIVE = sorted({"leased", *(state.value for state in LIVE_ATTEMPT_STATES)})
_USUAL = ["accepted", "completed", "partial", "progress", "queued", "started"]
"""Frequent types of events, which are left out of the index of rare ones."""


@dataclass(frozen=True, slots=True)
class Timings:
    """Durations of a job, in seconds, of all its rounds; of what goes on, until now.

    waited: from the submit, or `run_at`, to the start of the first attempt. ran: of the last attempt; None
    before the first. gpu: for which all attempts held their slots, as charged to the tenant. total: from the
    submit to the end.
    """

    waited: float
    ran: float | None
    gpu: float
    total: float


DEAD_LETTER = Q(state=JobState.FAILED.value, dismissed_at=None)
"""Condition of a dead letter: a failed job that was not dismissed."""
CLIENT_ERROR = Q(error_code__in=sorted(CLIENT_ERRORS))
ACTIONABLE = DEAD_LETTER & ~CLIENT_ERROR
"""Condition of a dead letter that an operator decides about: its client's input did not cause it."""


class Job(models.Model):
    """A job of a client. Its state changes only by `jobs.transitions`; Redis is rebuilt from these rows.

    live_attempt: id of the current attempt, while RUNNING. place_us: place in the queue, in microseconds
    since the epoch; retries keep it. round: starts at 1; an operator's retry opens a new one with its own
    budget. tries, free_connects, deaths, same_failures: counts of this round, see `jobs.domain.retry`.
    event_seq: number of the last event.
    """

    id = models.CharField(max_length=26, primary_key=True, default=new_id, editable=False)
    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.PROTECT, related_name="jobs")
    model = models.CharField(max_length=64)
    pool = models.CharField(max_length=64)
    fleet = models.CharField(max_length=64, default="main")
    payload = models.JSONField()
    priority = models.PositiveSmallIntegerField(
        default=5, validators=[MinValueValidator(1), MaxValueValidator(9)]
    )
    tags = models.JSONField(default=list, blank=True)
    metadata = models.JSONField(default=dict, blank=True)
    callback_url = models.CharField(max_length=2000, blank=True, default="")
    max_retries = models.PositiveIntegerField(null=True, blank=True, help_text="Empty: the model's.")
    max_run_seconds = models.FloatField(
        null=True, blank=True, default=None, help_text="Longest run of one attempt. Empty: the model's."
    )

    state = models.CharField(
        max_length=10, choices=[(s.value, s.value) for s in JobState], default=JobState.QUEUED.value
    )
    error_code = models.CharField(max_length=64, blank=True, default="")
    error_message = models.TextField(blank=True, default="")
    error_fingerprint = models.CharField(
        max_length=16,
        blank=True,
        default="",
        db_default="",  # during an upgrade, processes of the previous release insert jobs without it
        help_text="Kind of failure of a FAILED job; of an unfinished job, that of its last charged attempt.",
    )
    result = models.JSONField(null=True, blank=True, default=None)

    place_us = models.BigIntegerField()
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    run_at = models.DateTimeField(
        null=True,
        blank=True,
        default=None,
        help_text="Earliest start: queued at this time; its deadlines count from it.",
    )
    due_at = models.DateTimeField(
        null=True, blank=True, help_text="Time at which a RETRYING job is queued again."
    )
    deadline_at = models.DateTimeField(null=True, blank=True)
    start_deadline_at = models.DateTimeField(null=True, blank=True)
    queue_deadline_at = models.DateTimeField(
        null=True,
        blank=True,
        help_text="Time at which it has waited for max_queued_seconds; running time does not count.",
    )
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    cancelled_by_operator = models.BooleanField(
        default=False, db_default=False, help_text="An operator cancelled the job."
    )
    dismissed_at = models.DateTimeField(null=True, blank=True, help_text="Removed from the dead letters.")

    round = models.PositiveIntegerField(default=1)
    live_attempt = models.CharField(max_length=26, null=True, blank=True, default=None)
    attempts_made = models.PositiveIntegerField(default=0)
    refusals_folded = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Deleted attempts that a busy server had refused."
    )
    tries = models.PositiveIntegerField(default=0)
    free_connects = models.PositiveIntegerField(default=0)
    deaths = models.PositiveIntegerField(default=0)
    same_failures = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Equal failures in a row, up to the last counted attempt."
    )
    avoid_server = models.CharField(max_length=64, blank=True, default="")
    near_server = models.CharField(
        max_length=64,
        null=True,  # no default in the database: adding it rewrites no row
        blank=True,
        default=None,
        help_text="Server that has files of the job, so that it is tried first, for a while.",
    )
    followed_by = models.CharField(
        max_length=80, null=True, blank=True, default=None, editable=False,
        help_text="Gets an EndNotice when the job ends, such as run:ID of a workflow.",
    )  # fmt: skip
    event_seq = models.PositiveIntegerField(default=0)
    rerun_of = models.CharField(
        max_length=26,
        null=True,  # no default in the database: adding it rewrites no row
        blank=True,
        default=None,
        help_text="Id of the job that this one runs again; that one may be removed.",
    )

    class Meta:
        ordering = ["-id"]
        permissions = [("view_payload", "Can see the payloads and results of jobs")]
        constraints = [
            models.CheckConstraint(
                name="finished_at_iff_final",
                condition=(
                    Q(state__in=_FINAL, finished_at__isnull=False)
                    | (~Q(state__in=_FINAL) & Q(finished_at__isnull=True))
                ),
            ),
            models.CheckConstraint(
                name="live_attempt_iff_running",
                condition=(
                    Q(state=JobState.RUNNING.value, live_attempt__isnull=False)
                    | (~Q(state=JobState.RUNNING.value) & Q(live_attempt__isnull=True))
                ),
            ),
        ]
        indexes = [
            models.Index(fields=["tenant", "-id"], name="job_of_tenant_idx"),
            models.Index(fields=["state", "pool", "place_us"], name="job_waiting_idx"),
            models.Index(fields=["model", "state"], name="job_of_model_idx"),
            models.Index(fields=["due_at"], name="job_due_idx", condition=Q(state=JobState.RETRYING.value)),
            models.Index(
                fields=["run_at"], name="job_run_at_idx", condition=Q(state=JobState.SCHEDULED.value)
            ),
            # a tenant's unfinished jobs; both databases can match this condition with bound parameters
            models.Index(
                fields=["tenant", "state"], name="job_unfinished_idx", condition=Q(finished_at=None)
            ),
            models.Index(
                fields=["deadline_at"],
                name="job_deadline_idx",
                condition=Q(deadline_at__isnull=False, finished_at=None),
            ),
            models.Index(
                fields=["start_deadline_at"],
                name="job_start_deadline_idx",
                condition=Q(start_deadline_at__isnull=False, started_at=None, finished_at=None),
            ),
            models.Index(
                fields=["queue_deadline_at"],
                name="job_queue_deadline_idx",
                condition=Q(queue_deadline_at__isnull=False, finished_at=None),
            ),
            models.Index(
                fields=["cancel_requested_at"],
                name="job_cancel_requested_idx",
                condition=Q(cancel_requested_at__isnull=False, finished_at=None),
            ),
            models.Index(
                fields=["finished_at"],
                name="job_dead_letter_idx",
                condition=DEAD_LETTER,
            ),
            models.Index(fields=["finished_at"], name="job_actionable_idx", condition=ACTIONABLE),
            models.Index(fields=["rerun_of"], name="job_rerun_idx", condition=Q(rerun_of__isnull=False)),
            models.Index(
                fields=["error_fingerprint", "model", "finished_at"],
                name="job_failure_kind_idx",
                condition=DEAD_LETTER,
            ),
        ]

    def __str__(self) -> str:
        return self.id

    @property
    def ticket(self) -> Ticket:
        """The job's entry in the queue in Redis."""
        return Ticket(
            job_id=self.id,
            model=self.model,
            tenant=str(self.tenant_id),
            priority=self.priority,
            place_us=self.place_us,
            avoid_server=self.avoid_server or None,
            near_server=self.near_server,
        )

    def timings(self, attempts: Sequence[Attempt], now: datetime) -> Timings:
        """Return the job's durations. attempts: known ones, by number; what is needed of missing ones is
        queried."""
        until = self.finished_at or now
        begin = max(self.created_at, self.run_at or self.created_at)
        if len(attempts) < self.attempts_made - self.refusals_folded:
            rows = Attempt.objects.filter(job_id=self.id)
            gpu = rows.aggregate(in_all=models.Sum("gpu_seconds"))["in_all"] or 0.0
            last = rows.order_by("-number").first()
        else:
            gpu = sum(attempt.gpu_seconds or 0.0 for attempt in attempts)
            last = attempts[-1] if attempts else None
        ran = None
        if last is not None:
            ran = _seconds(last.started_at, last.finished_at or now)
            gpu += ran if last.finished_at is None else 0.0
        return Timings(
            waited=_seconds(begin, self.started_at or until),
            ran=ran,
            gpu=gpu,
            total=_seconds(self.created_at, until),
        )


def _seconds(begin: datetime, end: datetime) -> float:
    return max(0.0, (end - begin).total_seconds())


class JobTag(models.Model):
    """One tag of a job, as an index for filters; `Job.tags` has the tags to show."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="tag_rows")
    tag = models.CharField(max_length=64)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tag", "job"], name="one_row_per_job_and_tag")]

    def __str__(self) -> str:
        return self.tag


class Attempt(models.Model):
    """One try of a job on one slot. The claim creates its id, which is also in the lease.

    epoch: raised by each takeover; rejects late writes to the database. server, slot: names,
    so that rows outlive the registry. counted: charged as a try. slot_freed: the end proved the slot free.
    evidence: what proved the slot free, at the end or later; always set for a cancelled attempt. usage:
    counts of its server, such as tokens.
    """

    LIVE = _LIVE
    """States in which an attempt holds its slot; the same list as in the conditions of the indexes."""

    id = models.CharField(max_length=26, primary_key=True, editable=False)
    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="attempts")
    number = models.PositiveIntegerField()
    round = models.PositiveIntegerField(default=1)
    epoch = models.PositiveIntegerField(default=1)
    state = models.CharField(max_length=10, choices=[(s.value, s.value) for s in AttemptState])
    server = models.CharField(max_length=64)
    slot = models.PositiveIntegerField()
    model = models.CharField(max_length=64)
    worker = models.CharField(max_length=200, blank=True, default="")
    remote_id = models.CharField(max_length=500, blank=True, default="")
    error_code = models.CharField(max_length=64, blank=True, default="")
    error_message = models.TextField(blank=True, default="")
    counted = models.BooleanField(default=False)
    slot_freed = models.BooleanField(default=False)
    evidence = models.CharField(max_length=200, blank=True, default="")
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField(null=True, blank=True)
    gpu_seconds = models.FloatField(null=True, blank=True)
    usage = models.JSONField(null=True, blank=True, default=None)

    class Meta:
        ordering = ["job", "number"]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="attempts_are_numbered"),
            models.UniqueConstraint(
                fields=["server", "slot"], condition=Q(state__in=_LIVE), name="one_live_attempt_per_slot"
            ),
            models.UniqueConstraint(
                fields=["job"], condition=Q(state__in=_LIVE), name="one_live_attempt_per_job"
            ),
        ]
        indexes = [
            models.Index(fields=["server", "slot", "-started_at"], name="attempt_of_slot_idx"),
            models.Index(fields=["error_code", "-id"], name="attempt_error_idx", condition=~Q(error_code="")),
            models.Index(
                fields=["state", "-id"],
                name="attempt_unusual_idx",
                condition=Q(state__in=[AttemptState.CANCELLED.value, AttemptState.LOST.value]),
            ),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} #{self.number}"


class Event(models.Model):
    """An event of a job. seq: from 1, in the order of commits; gaps only where the sweep `refusals` removed
    the two events of a refused attempt."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="events")
    seq = models.PositiveIntegerField()
    type = models.CharField(max_length=32)
    at = models.DateTimeField()
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["job", "seq"]
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="events_are_numbered")]
        indexes = [
            models.Index(fields=["type", "-id"], name="event_rare_idx", condition=~Q(type__in=_USUAL)),
            # a running job's latest progress
            models.Index(fields=["job", "-seq"], name="event_progress_idx", condition=Q(type="progress")),
        ]

    def __str__(self) -> str:
        return f"{self.job_id} {self.seq} {self.type}"


class EndNotice(models.Model):
    """The end of a job, or of something else with an id, for its follower: written in the transaction of the
    end, deleted by the follower. followed_by: as in `Job`; the follower's queue. round: of the job."""

    id = models.BigAutoField(primary_key=True)
    followed_by = models.CharField(max_length=80)
    ended_id = models.CharField(max_length=26)
    round = models.PositiveIntegerField(default=1)
    state = models.CharField(max_length=10)
    at = models.DateTimeField()

    class Meta:
        ordering = ["id"]
        indexes = [
            models.Index(fields=["followed_by", "id"], name="end_notice_of_follower_idx"),
            models.Index(fields=["at"], name="end_notice_at_idx"),
        ]

    def __str__(self) -> str:
        return f"{self.followed_by}: {self.ended_id} {self.state}"


class IdempotencyKey(models.Model):
    """A client's Idempotency-Key and the (first) job that was submitted under it; deleted with that job."""

    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE)
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64, help_text="SHA-256 of the canonical body.")
    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="idempotency_keys")
    batch = models.JSONField(null=True, default=None, help_text="Of a batch: the response per job.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "key"], name="one_use_per_tenant_and_key")]

    def __str__(self) -> str:
        return self.key


class PushedResult(models.Model):
    """A result pushed by a GPU server, kept until the worker ends the attempt with it.

    No foreign key, because a push can arrive before the attempt's row. pushes, pushed_bytes: totals for the
    attempt.
    """

    attempt_id = models.CharField(max_length=26, primary_key=True)
    job_id = models.CharField(max_length=26)
    body = models.JSONField()
    received_at = models.DateTimeField()
    pushes = models.PositiveIntegerField(default=1, db_default=1)
    pushed_bytes = models.BigIntegerField(default=0, db_default=0)

    class Meta:
        indexes = [models.Index(name="pushed_by_job", fields=["job_id"])]  # for erasures

    def __str__(self) -> str:
        return self.attempt_id
