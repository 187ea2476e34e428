from __future__ import annotations

from django.db import models


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
