"""Picks rows for a sweep so that no tenant's many keep those of others waiting."""

from __future__ import annotations

from django.db.models import F, QuerySet, Window
from django.db.models.functions import RowNumber

from workflows.models import Run


def in_turn(runs: QuerySet[Run], most: int) -> QuerySet[Run]:
    """Return the first of these runs, the oldest of each tenant first, then the second of each, and so on."""
    turn = Window(RowNumber(), partition_by=F("tenant_id"), order_by="id")
    return runs.annotate(turn=turn).filter(turn__lte=most).order_by("turn", "id")[:most]
