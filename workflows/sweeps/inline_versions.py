"""Inline definitions whose runs are all gone."""

from __future__ import annotations

from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from foundation.database.connections import write_lock
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_rows
from workflows.models import INLINE_PREFIX, Run, Version, Workflow

PERIOD_SECONDS = 3600.0
MAX_WORKFLOWS = 1_000


def sweep(ports: Ports) -> SweepCount:
    """looked: workflows that hold inline definitions, with a version that no run has. repaired: workflows
    whose unused versions were deleted; a workflow without versions is deleted too."""
    unused = _unused().filter(workflow__name__startswith=INLINE_PREFIX).order_by("workflow_id")
    ids = list(unused.values_list("workflow_id", flat=True).distinct()[:MAX_WORKFLOWS])
    return sweep_rows("inline_versions", ids, _delete)


def _unused() -> QuerySet[Version]:
    return Version.objects.filter(~Exists(Run.objects.filter(version=OuterRef("pk"))))


def _delete(workflow_id: int) -> bool:
    """Delete the unused versions of a workflow. A start holds its lock until the run is there."""
    with write_lock(1), transaction.atomic():
        workflow = Workflow.objects.select_for_update().filter(pk=workflow_id).first()
        if workflow is None:
            return False
        deleted, _ = _unused().filter(workflow=workflow).delete()
        if not workflow.versions.exists():
            workflow.delete()
    return deleted > 0
