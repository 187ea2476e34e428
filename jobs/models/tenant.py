from __future__ import annotations

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

from gpus.models.names import NameField
from gpus.protocol import BANDS, TenantSpec

MIN_WEIGHT, MAX_WEIGHT = 0.001, 1_000_000.0
MOST_RUNNING = 1_000_000


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

    @property
    def spec(self) -> TenantSpec:
        """As the lease layer is told it. Raises ValueError where a row was written past the validators."""
        return TenantSpec(str(self.pk), self.weight, self.highest_band, self.max_running)
