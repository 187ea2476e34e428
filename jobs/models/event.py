from __future__ import annotations

from django.db import models
from django.db.models import Q

_USUAL = ["accepted", "completed", "partial", "progress", "queued", "started"]
"""What happens to every job, or often: a list of these needs no index to be found."""


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
