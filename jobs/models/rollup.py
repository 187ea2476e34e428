from __future__ import annotations

from django.db import models


class Rollup(models.Model):
    """What came to an end in one span of time, per model and tenant: what charts and percentiles read.

    waits, runs: counts per bucket of `jobs.reports.rollups.BOUNDS_SECONDS` (one more for what is longer):
    from accepted to the first start, and from the first start to the end.
    """

    span_seconds = models.PositiveIntegerField()
    at = models.DateTimeField(help_text="Where the span begins.")
    model = models.CharField(max_length=64)
    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE)
    completed = models.PositiveIntegerField(default=0)
    failed = models.PositiveIntegerField(default=0)
    cancelled = models.PositiveIntegerField(default=0)
    gpu_seconds = models.FloatField(default=0.0)
    waits = models.JSONField(default=list)
    runs = models.JSONField(default=list)

    class Meta:
        ordering = ["-at"]
        constraints = [
            models.UniqueConstraint(
                fields=["span_seconds", "at", "model", "tenant"], name="one_rollup_per_span"
            )
        ]

    def __str__(self) -> str:
        return f"{self.model} at {self.at:%Y-%m-%d %H:%M}"
