"""Uses of artifacts by jobs and runs: checked at submit, written in its transaction, dropped with the job.

The row lock is the one thing between a use and a removal: `lock_for_use` takes it before the use is written,
`artifacts.removal` before it looks for uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from itertools import islice
from typing import Any, TypeVar

from django.conf import settings

from artifacts.models import Artifact, ArtifactUse
from artifacts.refs import BadRef, TooManyRefs, find_refs
from artifacts.store.contract import Store
from artifacts.uploads import confirm
from foundation.database.row_codec import new_row

State = Artifact.State
_AMONG = 500
"""Ids of one query."""
_Value = TypeVar("_Value")

MISSING, NOT_UPLOADED, GONE = "missing", "not uploaded", "gone"


def find_unusable(
    tenant_id: int, artifact_ids: Collection[str], store: Store, now: datetime
) -> Mapping[str, str]:
    """Return why artifacts can't be used by this tenant, by id: `MISSING` (also another tenant's),
    `NOT_UPLOADED` or `GONE`. Promised ones are asked for in the store. Raises StoreError."""
    found: dict[str, Artifact] = {}
    for ids in in_groups(artifact_ids, _AMONG):
        found |= Artifact.objects.filter(tenant_id=tenant_id).in_bulk(ids)
    confirm(found.values(), store, now)
    reasons = {State.PROMISED: NOT_UPLOADED, State.GONE: GONE}
    return {
        one: MISSING if one not in found else reasons[State(found[one].state)]
        for one in artifact_ids
        if one not in found or found[one].state != State.STORED
    }


def missing_among(tenant_id: int, artifact_ids: Collection[str]) -> set[str]:
    """Return those of these ids that no artifact of the tenant has, or one that was removed. The store is not
    asked: an upload may complete later."""
    found = set[str]()
    for ids in in_groups(artifact_ids, _AMONG):
        there = Artifact.objects.filter(tenant_id=tenant_id, id__in=ids).exclude(state=State.GONE)
        found |= set(ids) - set(there.values_list("id", flat=True))
    return found


def lock_for_use(artifact_ids: Iterable[str]) -> set[str]:
    """Lock stored artifacts inside a transaction, and take back their tombstones; return the ids of those
    that are there. A new use of them can be written until the transaction ends."""
    there: set[str] = set()
    marked: list[str] = []
    for ids in in_groups(sorted(set(artifact_ids)), _AMONG):  # sorted: transactions wait in one order
        rows = Artifact.objects.select_for_update().filter(id__in=ids, state=State.STORED).order_by("id")
        for artifact_id, tombstoned_at in rows.values_list("id", "tombstoned_at"):
            there.add(artifact_id)
            if tombstoned_at is not None:
                marked.append(artifact_id)
    for ids in in_groups(marked, _AMONG):
        Artifact.objects.filter(id__in=ids).update(tombstoned_at=None)
    return there


def new_uses(job_id: str, artifact_ids: Iterable[str]) -> list[ArtifactUse]:
    """Return the rows of a job's uses, to be inserted."""
    return [new_row(ArtifactUse, artifact_id=one, job=job_id, run="") for one in artifact_ids]


def add_uses(job_id: str, artifact_ids: Iterable[str], result_id: str | None = None) -> None:
    """Write a job's uses of artifacts whose rows are locked; it may have some of them already. result_id: of
    the one that is its result."""
    ArtifactUse.objects.bulk_create(new_uses(job_id, artifact_ids), ignore_conflicts=True)
    if result_id is not None:
        ArtifactUse.objects.filter(artifact_id=result_id, job=job_id, run="").update(is_result=True)


def kept_refs(value: Any) -> Collection[str]:
    """Return the ids of the artifacts that a run keeps for a value that it is given, if they are there; none
    if a reference can't be read or there are too many, because a payload made of the value is refused."""
    try:
        return find_refs(value, settings.DISPATCHER.max_artifact_refs)
    except (BadRef, TooManyRefs):
        return ()


def add_run_uses(run_ids: Collection[str], tenant_id: int, value: Any) -> None:
    """Write the uses of the artifacts that a value given to these runs refers to, inside the transaction that
    takes it: they stay until the runs' nodes come to them. Those that are not there fail the node that needs
    them."""
    found = kept_refs(value)
    if not found:
        return
    own = Artifact.objects.filter(tenant_id=tenant_id, pk__in=list(found)).values_list("pk", flat=True)
    there = sorted(lock_for_use(own))
    uses = (new_run_use(run_id, one) for run_id in run_ids for one in there)
    for some in in_groups(uses, _AMONG):
        ArtifactUse.objects.bulk_create(some, ignore_conflicts=True)


def new_run_use(run_id: str, artifact_id: str) -> ArtifactUse:
    """Return the row of a run's use, to be inserted."""
    return new_row(ArtifactUse, artifact_id=artifact_id, job="", run=run_id)


def is_result_of(job_id: str, artifact_id: str) -> bool:
    """Return True if the artifact is the job's whole result."""
    return ArtifactUse.objects.filter(artifact_id=artifact_id, job=job_id, run="", is_result=True).exists()


def drop_uses(job_ids: Sequence[str]) -> None:
    """Remove the uses of these jobs."""
    for ids in in_groups(job_ids, _AMONG):
        ArtifactUse.objects.filter(job__in=ids).delete()


def drop_run_uses(run_ids: Sequence[str]) -> set[str]:
    """Remove the uses of these runs; return the ids of their artifacts."""
    rows = ArtifactUse.objects.filter(run__in=run_ids)
    found = set(rows.values_list("artifact_id", flat=True))
    rows.delete()
    return found


def in_groups(values: Iterable[_Value], most: int) -> Iterable[list[_Value]]:
    """Yield the values in lists of at most `most`."""
    iterator = iter(values)
    while some := list(islice(iterator, most)):
        yield some
