"""Limits on the unfinished sub-runs and the open waits of a tenant.

A step counts them when it is decided (`workflows.execution.starts`), and again in the transaction that
inserts more, under the locks of the limits: steps of other runs do not see its rows before. A restart of a
sub-run counts under the same lock. Its locks come in
one order, after those of the runs and before all others, so two steps can't deadlock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

from django.conf import settings
from django.db.models import QuerySet

from foundation.database.row_limits import free_places, lock_key
from workflows.domain.errors import TooManyRuns
from workflows.execution.writes import Writes
from workflows.models import Run, Wait


def sub_runs_of(tenant_id: int) -> QuerySet[Run]:
    """Select the unfinished sub-runs of a tenant, of all levels."""
    return Run.objects.filter(tenant_id=tenant_id, finished_at=None, depth__gt=0).order_by()


def waits_of(tenant_id: int) -> QuerySet[Wait]:
    """Select the open waits of a tenant's runs."""
    return Wait.objects.filter(answered_at=None, node__run__tenant_id=tenant_id).order_by()


def refuse_too_many_sub_runs(tenant_id: int) -> None:
    """Raise TooManyRuns if the transaction may not begin one more sub-run. It has locked the run's row."""
    most = settings.DISPATCHER.workflow_sub_runs
    if free_places(f"sub-runs of {tenant_id}", sub_runs_of(tenant_id), most) <= 0:
        raise TooManyRuns(
            f"A tenant may have {most} unfinished sub-runs (DISPATCHER_WORKFLOW_SUB_RUNS). Restart this one "
            "when others have ended, or cancel some."
        )


def are_kept(steps: Iterable[tuple[int, Writes]]) -> bool:
    """Return False if the inserts of this transaction would exceed a limit of a tenant. steps: tenants, and
    the rows to insert for them. The transaction has locked the rows of its runs."""
    limits, wanted = settings.DISPATCHER, Counter[str]()
    found: dict[str, tuple[QuerySet[Any], int]] = {}
    for tenant_id, writes in steps:
        if writes.runs:
            name = f"sub-runs of {tenant_id}"
            found[name] = sub_runs_of(tenant_id), limits.workflow_sub_runs
            wanted[name] += len(writes.runs)
        if writes.waits:
            name = f"waits of {tenant_id}"
            found[name] = waits_of(tenant_id), limits.workflow_waits
            wanted[name] += len(writes.waits)
    return all(free_places(name, *found[name]) >= wanted[name] for name in sorted(found, key=lock_key))
