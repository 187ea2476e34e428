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
