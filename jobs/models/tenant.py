"""Tenants and their API keys."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import IntegrityError, models, transaction
from django.db.models import Max
from rest_framework_api_key.models import AbstractAPIKey

from foundation.names import NameField
from gpus.protocol import BANDS, TenantSpec

MIN_WEIGHT, MAX_WEIGHT = 0.001, 1_000_000.0
MAX_RUNNING = 1_000_000
MAX_QUEUED_SECONDS = 31_536_000.0
"""A year; a longer time is probably a mistake in the unit."""
MAX_QUEUED = 2_147_483_647
"""Maximum of the column."""
MAX_DAILY_GPU_SECONDS = 1e12


class TenantIds:
    """Ids of new tenants: the time in milliseconds since 1970, at least one more than the last one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last = 0

    def new(self) -> int:
        with self._lock:
            self._last = max(self._last + 1, time.time_ns() // 1_000_000)
            return self._last


_ids = TenantIds()


def new_tenant_id() -> int:
    """Return the time in milliseconds, which no later tenant gets, also if an older database is restored:
    files and signed URLs of a tenant that is missing there are under the former id. With a clock that was set
    back, only ids that are in the database are not used again (`Tenant.save`). 13 digits are exact in Lua and
    JSON."""
    return _ids.new()


class Tenant(models.Model):
    """Owner of jobs. Shares, limits and webhook secrets belong to the tenant, not to its keys.

    Each rule and limit is one field: the API, the admin form and the options of `create_key` take its bounds
    and help text from it (`rule_bounds`, `rule_text`).
    """

    id = models.BigAutoField(primary_key=True, default=new_tenant_id, editable=False)
    name = NameField(unique=True)
    weight = models.FloatField(
        default=1.0,
        validators=[MinValueValidator(MIN_WEIGHT), MaxValueValidator(MAX_WEIGHT)],
        help_text="Share of GPU-seconds relative to other tenants: a tenant with 2 gets twice as much as one"
        " with 1, while both have waiting jobs.",
    )
    highest_band = models.CharField(
        max_length=6,
        choices=[(band, band) for band in BANDS],
        default="normal",
        db_default="normal",
        help_text="Highest band granted to its jobs. urgent: priority 1 to 3, before the normal jobs of all"
        " tenants. Jobs with a higher priority run in this band, ordered among its own by priority.",
    )
    max_running = models.PositiveIntegerField(
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_RUNNING)],
        help_text="Maximum of running jobs in all pools of a fleet; further jobs wait in their places."
        " Empty: no limit. To start no job at all, pause the tenant.",
    )
    webhook_secret_encrypted = models.TextField(
        blank=True, default="", editable=False, help_text="Signs callbacks; shown once, when it is created."
    )
    webhook_secret_before_encrypted = models.TextField(
        blank=True,
        default="",
        db_default="",
        editable=False,
        help_text="Previous secret: until the time below, callbacks are signed with it, too.",
    )
    webhook_secret_before_until = models.DateTimeField(null=True, blank=True, editable=False)
    max_queued = models.PositiveIntegerField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_QUEUED)],
        help_text="Maximum of waiting jobs; further submits are refused (429). Empty:"
        " DISPATCHER_TENANT_MAX_QUEUED.",
    )
    max_queued_seconds = models.FloatField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(0.001), MaxValueValidator(MAX_QUEUED_SECONDS)],
        help_text="Longest total wait of a job in seconds; then it fails (max_queued_exceeded). "
        "The lower limit"
        " of tenant and model applies. Empty: the model's, else DISPATCHER_MAX_QUEUED_SECONDS.",
    )
    submits_per_second = models.FloatField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(0.001), MaxValueValidator(1_000_000)],
        help_text="Rate limit: submitted jobs per second on average (else 429). Empty: no limit.",
    )
    submit_burst = models.PositiveIntegerField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(1), MaxValueValidator(1_000_000)],
        help_text="Burst: jobs it may submit at once after a pause. Empty: the jobs of one second, "
        "at least 1.",
    )
    daily_gpu_seconds = models.FloatField(
        null=True,
        blank=True,
        default=None,
        validators=[MinValueValidator(0.001), MaxValueValidator(MAX_DAILY_GPU_SECONDS)],
        help_text="GPU-seconds per UTC day; then submits are refused (429) and waiting jobs are parked "
        "until midnight. Empty: no limit.",
    )
    allowed_models = models.JSONField(
        null=True,
        blank=True,
        default=None,
        help_text="Names of the models that the tenant may submit to, as a JSON list. Empty: all.",
    )
    created_at = models.DateTimeField(auto_now_add=True)

    class Meta:
        ordering = ["name"]
        constraints = [  # an invalid row would stop the sweep that writes the rules to Redis
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

    def save(self, *args: Any, **options: Any) -> None:
        """Save the row. If the id of a new one is taken, by another process in the same millisecond or before
        the clock was set back, it gets the next one that is free."""
        if not self._state.adding:
            super().save(*args, **options)
            return
        try:
            with transaction.atomic():
                super().save(*args, **options)
        except IntegrityError:
            newest = Tenant.objects.filter(pk__gte=self.pk).aggregate(newest=Max("pk"))["newest"]
            if newest is None:  # the id is free: a name that is taken, or a rule
                raise
            self.pk = newest + 1
            super().save(*args, **options)

    def clean(self) -> None:
        """Check rules across fields. Raises ValidationError by field."""
        if self.submit_burst is not None and self.submits_per_second is None:
            raise ValidationError({"submit_burst": "A burst needs a rate: set submits_per_second, too."})

    @property
    def spec(self) -> TenantSpec:
        """The tenant's rules for the lease layer. Raises ValueError for a row that bypassed the
        validators."""
        return TenantSpec(str(self.pk), self.weight, self.highest_band, self.max_running)


def rule_bounds(name: str) -> tuple[float, float]:
    """Return the least and the greatest value of a tenant's rule, by its validators."""
    validators = _column(name).validators
    (least,) = (one.limit_value for one in validators if isinstance(one, MinValueValidator))
    (most,) = (one.limit_value for one in validators if isinstance(one, MaxValueValidator))
    return least, most


def rule_text(name: str, *, without: str) -> str:
    """Return the help text of a tenant's rule. without: how the caller writes that it has no value."""
    return str(_column(name).help_text).replace("Empty:", f"{without}:")


def _column(name: str) -> models.Field[Any, Any]:
    return cast("models.Field[Any, Any]", Tenant._meta.get_field(name))


class ApiKey(AbstractAPIKey):
    """API key of a tenant, stored hashed. Operator keys may also use everything under /admin."""

    class Kind(models.TextChoices):
        TENANT = "tenant"
        OPERATOR = "operator"

    tenant = models.ForeignKey("jobs.Tenant", on_delete=models.CASCADE, related_name="api_keys")
    kind = models.CharField(max_length=8, choices=Kind.choices, default=Kind.TENANT)

    scopes = models.JSONField(
        null=True,
        blank=True,
        default=None,
        help_text="Scopes: submit, read, cancel, and for operator keys operate. Empty: all that "
        "its kind allows.",
    )
    allowed_models = models.JSONField(
        null=True,
        blank=True,
        default=None,
        help_text="Names of the models that the key may submit to, within those of its tenant. Empty: all.",
    )
    last_used_at = models.DateTimeField(
        null=True, blank=True, default=None, editable=False, help_text="Accurate to the minute."
    )
    rotated_to = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, editable=False, related_name="rotated_from"
    )

    class Meta(AbstractAPIKey.Meta):
        verbose_name = "API key"
        verbose_name_plural = "API keys"
