from __future__ import annotations

from django.db import models


class Pause(models.Model):
    """What starts no new attempt until it is resumed. What runs, goes on; what is submitted, waits.

    name: the model's name, the tenant's id as the lease layer knows it, or empty for the whole system.
    """

    class Kind(models.TextChoices):
        SYSTEM = "system"
        MODEL = "model"
        TENANT = "tenant"

    kind = models.CharField(max_length=8, choices=Kind.choices)
    name = models.CharField(max_length=64, blank=True, default="")
    since = models.DateTimeField()
    actor = models.CharField(max_length=200)
    reason = models.CharField(max_length=500, blank=True, default="")

    class Meta:
        ordering = ["kind", "name"]
        constraints = [models.UniqueConstraint(fields=["kind", "name"], name="one_pause_each")]

    def __str__(self) -> str:
        return f"{self.kind} {self.name}".strip()
