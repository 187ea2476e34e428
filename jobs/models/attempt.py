from __future__ import annotations

from django.db import models
from django.db.models import Q

from jobs.domain.states import LIVE_ATTEMPT_STATES, AttemptState

# sorted: migrations must not depend on hashes; "leased" is in the condition of the indexes, and in no row
_LIVE = sorted({"leased", *(state.value for state in LIVE_ATTEMPT_STATES)})


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
