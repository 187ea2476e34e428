from __future__ import annotations

from django.db import models


class ConfigVersion(models.Model):
    """A model's fields as they were after a change: history, and what a revert goes back to."""

    model = models.ForeignKey("gpus.ModelConfig", on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    at = models.DateTimeField()
    actor = models.CharField(max_length=200)
    fields = models.JSONField()

    class Meta:
        ordering = ["-number"]
        verbose_name = "config version"
        constraints = [models.UniqueConstraint(fields=["model", "number"], name="one_version_per_number")]

    def __str__(self) -> str:
        return f"{self.model_id} v{self.number}"
