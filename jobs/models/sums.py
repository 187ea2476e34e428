"""Sums that are kept when the rows that they count are gone."""

from __future__ import annotations

from django.db import models


class PurgeLedger(models.Model):
    """How many jobs retention has removed, by tenant and final state: conservation stays countable."""

    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE)
    state = models.CharField(max_length=10)
    count = models.PositiveBigIntegerField(default=0)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["tenant", "state"], name="one_line_per_tenant_and_state")
        ]

    def __str__(self) -> str:
        return f"{self.tenant_id} {self.state}: {self.count}"


class Tally(models.Model):
    """How often something happened since the installation began; it only grows.

    model, code: of what, empty where that makes no difference.
    """

    name = models.CharField(max_length=40)
    model = models.CharField(max_length=64, blank=True, default="")
    code = models.CharField(max_length=64, blank=True, default="")
    count = models.PositiveBigIntegerField(default=0)

    class Meta:
        ordering = ["name", "model", "code"]
        constraints = [models.UniqueConstraint(fields=["name", "model", "code"], name="one_tally_each")]

    def __str__(self) -> str:
        return f"{self.name} {self.model} {self.code}: {self.count}"


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
