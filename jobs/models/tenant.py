from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
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
    webhook_secret_before_encrypted = models.TextField(
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="The secret before: callbacks are signed with it too until the time below.",
    )
    webhook_secret_before_until = models.DateTimeField(null=True, blank=True, editable=False)
    max_queued = models.PositiveIntegerField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(1)],
        help_text="Jobs of this tenant that may wait; more are refused (429). Empty: no limit.",
    )
    submits_per_second = models.FloatField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(0.001), MaxValueValidator(1_000_000)],
        help_text="Jobs it may submit per second, in the long run; more are refused (429). Empty: no limit.",
    )
    submit_burst = models.PositiveIntegerField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(1), MaxValueValidator(1_000_000)],
        help_text="Jobs it may submit at once after a pause. Empty: those of one second, at least 1.",
    )
    daily_gpu_seconds = models.FloatField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(0.001)],
        help_text="GPU-seconds per UTC day; then submits are refused (429) and what waits is held back "
        "until midnight. Empty: no limit.",
    )
    allowed_models = models.JSONField(
        null=True,
        blank=True,
        default=None,
        help_text="Names of the models it may submit to, as a JSON list. Empty: all.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]

    def __str__(self) -> str:
        return self.name
