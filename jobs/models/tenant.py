from __future__ import annotations

from django.core.validators import MinValueValidator
from django.db import models

from gpus.models.names import NameField


class Tenant(models.Model):
    """Who owns jobs. Shares, limits and secrets belong to the tenant, not to its keys."""

    name = NameField(unique=True)
    weight = models.FloatField(
        default=1.0,
        validators=[MinValueValidator(0.001)],
        help_text="Share of GPU-seconds relative to other tenants.",
    )
    webhook_secret_encrypted = models.TextField(
        blank=True, default="", editable=False, help_text="Signs callbacks; shown once when made."
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
