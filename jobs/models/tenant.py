"""Who owns jobs, and the keys that they ask with."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from rest_framework_api_key.models import AbstractAPIKey

from foundation.names import NameField
from gpus.protocol import BANDS, TenantSpec

MIN_WEIGHT, MAX_WEIGHT = 0.001, 1_000_000.0
MOST_RUNNING = 1_000_000
MOST_QUEUED_SECONDS = 31_536_000.0
"""A year; longer is a mistake in the unit."""
MOST_QUEUED = 2_147_483_647
"""What the column holds."""


class Tenant(models.Model):
    """Who owns jobs. Shares, limits and secrets belong to the tenant, not to its keys."""

    name = NameField(unique=True)
    weight = models.FloatField(
        default=1.0,
        validators=[MinValueValidator(MIN_WEIGHT), MaxValueValidator(MAX_WEIGHT)],
        help_text="Share of GPU-seconds relative to other tenants: who has 2 gets twice as much as who has"
        " 1, while both wait.",
    )
    highest_band = models.CharField(
        max_length=6,
        choices=[(band, band) for band in BANDS],
        default="normal",
        db_default="normal",
        help_text="The highest band its jobs may stand in. urgent: priority 1 to 3, before everybody's normal"
        " jobs. Jobs that ask for more stand in this band, and are ordered among its own by their priority.",
    )
    max_running = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_RUNNING)],
        help_text="So many of its jobs run at once, in all pools of a fleet together; further ones wait in"
        " their places. Empty: no limit. To let nothing start, pause the tenant.",
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
        help_text="Jobs of this tenant that may wait; more are refused (429). Empty:"
        " DISPATCHER_TENANT_MAX_QUEUED.",
    )
    max_queued_seconds = models.FloatField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(0.001), MaxValueValidator(MOST_QUEUED_SECONDS)],
        help_text="Seconds that a job of this tenant may wait in all; then it fails (max_queued_exceeded)."
        " The shorter of this and the model's counts. Empty: the model's, else"
        " DISPATCHER_MAX_QUEUED_SECONDS.",
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
        constraints = [  # a row past the validators would stop the sweep that tells the lease layer
            models.CheckConstraint(name="tenant_weight_is_positive", condition=models.Q(weight__gt=0)),
            models.CheckConstraint(
                name="tenant_may_run_something",
                condition=models.Q(max_running=None) | models.Q(max_running__gte=1),
            ),
            models.CheckConstraint(
                name="tenant_band_is_known", condition=models.Q(highest_band__in=list(BANDS))
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """Raises ValidationError by field."""
        if self.submit_burst is not None and self.submits_per_second is None:
            raise ValidationError({"submit_burst": "A burst needs a rate."})

    @property
    def spec(self) -> TenantSpec:
        """As the lease layer is told it. Raises ValueError where a row was written past the validators."""
        return TenantSpec(str(self.pk), self.weight, self.highest_band, self.max_running)


class ApiKey(AbstractAPIKey):
    """A key of a tenant, stored hashed. An operator's key may also use everything under /admin."""

    class Kind(models.TextChoices):
        TENANT = "tenant"
        OPERATOR = "operator"

    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE, related_name="api_keys")
    kind = models.CharField(max_length=8, choices=Kind.choices, default=Kind.TENANT)

    scopes = models.JSONField(
        null=True,
        blank=True,
        default=None,
        help_text="What it may do: submit, read, cancel, and of an operator's key operate. Empty: all of it.",
    )
    allowed_models = models.JSONField(
        null=True,
        blank=True,
        default=None,
        help_text="Names of the models it may submit to, of those its tenant may. Empty: all of them.",
    )
    last_used_at = models.DateTimeField(
        null=True, blank=True, default=None, editable=False, help_text="To the minute."
    )
    rotated_to = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, editable=False, related_name="rotated_from"
    )

    class Meta(AbstractAPIKey.Meta):
        verbose_name = "API key"
        verbose_name_plural = "API keys"
