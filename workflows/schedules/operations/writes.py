"""Writes to a schedule that several requests may change at once, and their audit entries."""

from __future__ import annotations

from typing import Any

from django.db.models import F

from gpus.registry.audit import record
from workflows.schedules.models import Schedule

RACES = 20
"""Tries of a write to a schedule that other requests change meanwhile."""


def write_if_unchanged(schedule: Schedule, **values: Any) -> bool:
    """Write values to a schedule as read; False if it was changed meanwhile."""
    rows = Schedule.objects.filter(pk=schedule.pk, version=schedule.version)
    return bool(rows.update(version=F("version") + 1, **values))


def audit(operator: str | None, action: str, schedule: Schedule, **detail: object) -> None:
    """Write an audit entry inside the transaction of the change. operator: None for a tenant's request."""
    record(operator, f"{action}_schedule", f"schedule:{schedule.tenant.name}/{schedule.name}", **detail)
