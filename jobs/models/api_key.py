from __future__ import annotations

from django.db import models
from rest_framework_api_key.models import AbstractAPIKey


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
