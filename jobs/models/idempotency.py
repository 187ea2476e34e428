from __future__ import annotations

from django.db import models


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
