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

    class Meta(AbstractAPIKey.Meta):
        verbose_name = "API key"
        verbose_name_plural = "API keys"
