"""What a client asked for and what became of it: the job with its tags, attempts and events; idempotency
keys; results that GPU servers pushed."""

from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q

from foundation.ids import new_id
from gpus.protocol import Ticket
from jobs.domain.states import FINAL_JOB_STATES, LIVE_ATTEMPT_STATES, AttemptState, JobState

# sorted: migrations must not depend on hashes; "leased" is in the condition of the indexes, and in no row
_FINAL = sorted(state.value for state in FINAL_JOB_STATES)
_LIVE = sorted({"leased", *(state.value for state in LIVE_ATTEMPT_STATES)})
_USUAL = ["accepted", "completed", "partial", "progress", "queued", "started"]
"""What happens to every job, or often: a list of these needs no index to be found."""

DEAD_LETTER = Q(state=JobState.FAILED.value, dismissed_at=None)
"""What a dead letter is: a failed job that nobody dismissed."""


class Job(models.Model):
    """What a client asked for. Moved only by `jobs.transitions`; the row is the write-ahead log.

    live_attempt: id of the attempt that may end this job now; set with RUNNING, cleared with its end.
    place_us: the job's place in line, microseconds since the epoch; retries keep it.
    round: an operator's retry opens a new one, with its own budget.
    tries, free_connects, deaths, same_failures: of this round; see `jobs.domain.retry`.
    event_seq: number of the last event; raised with every write to the event log.
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
        db_default="",  # workers of the release before insert jobs without it, while an upgrade goes on
        help_text="Of a FAILED job: which kind of failure. Of one that waits: of its last counted attempt.",
    )
    result = models.JSONField(null=True, blank=True, default=None)

    place_us = models.BigIntegerField()
    created_at = models.DateTimeField()
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    run_at = models.DateTimeField(
        null=True, blank=True, default=None, help_text="Not in line before; its deadlines count from then."
    )
    due_at = models.DateTimeField(
        null=True, blank=True, help_text="When a RETRYING job stands in line again."
    )
    deadline_at = models.DateTimeField(null=True, blank=True)
    start_deadline_at = models.DateTimeField(null=True, blank=True)
    queue_deadline_at = models.DateTimeField(
        null=True, blank=True, help_text="When it has waited for max_queued_seconds; runs push it back."
    )
    cancel_requested_at = models.DateTimeField(null=True, blank=True)
    cancelled_by_operator = models.BooleanField(
        default=False, db_default=False, help_text="The cancel was an operator's."
    )
    dismissed_at = models.DateTimeField(null=True, blank=True, help_text="Deleted from the dead letters.")

    round = models.PositiveIntegerField(default=1)
    live_attempt = models.CharField(max_length=26, null=True, blank=True, default=None)
    attempts_made = models.PositiveIntegerField(default=0)
    refusals_folded = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Attempts that a busy server refused and whose rows are gone."
    )
    tries = models.PositiveIntegerField(default=0)
    free_connects = models.PositiveIntegerField(default=0)
    deaths = models.PositiveIntegerField(default=0)
    same_failures = models.PositiveIntegerField(
        default=0, db_default=0, help_text="Equal failures in a row, up to the last counted attempt."
    )
    avoid_server = models.CharField(max_length=64, blank=True, default="")
    event_seq = models.PositiveIntegerField(default=0)

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
            # what a tenant has waiting: "not over" is the condition that both databases can prove
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
        return Ticket(
            job_id=self.id,
            model=self.model,
            tenant=str(self.tenant_id),
            priority=self.priority,
            place_us=self.place_us,
            avoid_server=self.avoid_server or None,
        )


class JobTag(models.Model):
    """One tag of a job, for the list's filter; the job's own `tags` are what is shown."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="tag_rows")
    tag = models.CharField(max_length=64)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tag", "job"], name="one_row_per_job_and_tag")]

    def __str__(self) -> str:
        return self.tag


class Attempt(models.Model):
    """One try of a job on one slot. Its id is minted by the claim and kept in the lease.

    epoch: raised by each takeover; results count only with the current one.
    server, slot: by name, so that history outlives the registry.
    counted: used one try of the budget. slot_freed: the GPU was proven free of it when it ended.
    evidence: what proved it, then or later, where a proof was needed; always of a cancelled one.
    usage: what its server counted for it, such as tokens.
    """

    LIVE = _LIVE
    """The states in which it holds its slot, for queries: as the indexes of live attempts have them."""

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
    """What happened to a job, numbered from 1 in the order of commits. Gaps are only where the two
    events of a refused attempt were removed (`jobs.sweeps.refusals`)."""

    id = models.BigAutoField(primary_key=True)
    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="events")
    seq = models.PositiveIntegerField()
    type = models.CharField(max_length=32)
    at = models.DateTimeField()
    data = models.JSONField(default=dict)

    class Meta:
        ordering = ["job", "seq"]
        constraints = [models.UniqueConstraint(fields=["job", "seq"], name="events_are_numbered")]
        indexes = [models.Index(fields=["type", "-id"], name="event_rare_idx", condition=~Q(type__in=_USUAL))]

    def __str__(self) -> str:
        return f"{self.job_id} {self.seq} {self.type}"


class IdempotencyKey(models.Model):
    """A client's Idempotency-Key and what it made; lives as long as its (first) job."""

    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE)
    key = models.CharField(max_length=255)
    fingerprint = models.CharField(max_length=64, help_text="SHA-256 of the canonical body.")
    job = models.ForeignKey("jobs.Job", on_delete=models.CASCADE, related_name="idempotency_keys")
    batch = models.JSONField(null=True, default=None, help_text="For a batch: its per-item answer.")

    class Meta:
        constraints = [models.UniqueConstraint(fields=["tenant", "key"], name="one_use_per_tenant_and_key")]

    def __str__(self) -> str:
        return self.key


class PushedResult(models.Model):
    """What a GPU server pushed for an attempt, kept until its holder finishes the attempt with it.

    No foreign key: a push may be earlier than its row. pushes, pushed_bytes: all that were read for it.
    """

    attempt_id = models.CharField(max_length=26, primary_key=True)
    job_id = models.CharField(max_length=26)
    body = models.JSONField()
    received_at = models.DateTimeField()
    pushes = models.PositiveIntegerField(default=1, db_default=1)
    pushed_bytes = models.BigIntegerField(default=0, db_default=0)

    def __str__(self) -> str:
        return self.attempt_id
