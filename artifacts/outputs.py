"""Outputs of runs. Their bytes are saved in the store during the run, and their rows are written by the
transaction that ends it: the bytes of a run whose end does not count are objects without a row, which the
sweep `unknown_objects` removes.

The order: `new_output` before the bytes are written, `secure` right before the end is queued, `record`
in its transaction. `secure` makes sure that no sweep removes an object in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import NamedTuple

from django.conf import settings
from django.db import transaction

from artifacts.errors import BeingRemoved
from artifacts.keys import ObjectKey
from artifacts.models import Artifact, RunUpload
from artifacts.refs import ref
from artifacts.reservations import insert_reservation, require_room
from artifacts.store.contract import Store
from artifacts.store.presence import find_expected
from artifacts.uploads import SNIFFED_BYTES, extend_put, put_until, recognised_type
from artifacts.uses import add_uses
from foundation.ids import new_id

State = Artifact.State
SECURED_TIME = timedelta(days=2)
"""An existing artifact that an output has the content of stays so much longer."""
FRESH_TIME = timedelta(hours=12)
"""An older object without a row gets one before the end is written: `unknown_objects` might remove it."""
_AT_ONCE = 8
"""Questions to the store at once."""


@dataclass(frozen=True, slots=True)
class SavedOutput:
    """An output that a run has saved, or may have uploaded.

    id: of the artifact that it becomes; that of the tenant's artifact with the same content, if there is one:
    should that be deleted since, no row can be inserted under its id.
    """

    id: str
    sha256: str
    bytes: int
    content_type: str = ""
    name: str = ""

    @property
    def ref(self) -> dict[str, str]:
        """The reference to it in a result."""
        return ref(self.id)


class Maker(NamedTuple):
    """The run that made artifacts."""

    job: str
    attempt: str
    epoch: int


class Secured(NamedTuple):
    """Outputs of a run whose objects the store has.

    at: since when they can't be removed. result: the one that is the run's whole result, in which
    references to the others can't be changed any more; None: the result is in the job's row.
    """

    outputs: Sequence[SavedOutput]
    tenant_id: int
    at: datetime
    result: SavedOutput | None = None


class OutputMissing(Exception):
    """The store has no object with the length of an output. output: the one."""

    def __init__(self, output: SavedOutput) -> None:
        super().__init__(f"The store has no object of {output.bytes} bytes with the SHA-256 {output.sha256}.")
        self.output = output


class OutputsChanged(Exception):
    """Outputs were removed, or uploaded by a client, between `secure` and `record`."""


def new_output(
    tenant_id: int,
    attempt_id: str,
    sha256: str,
    size: int,
    *,
    content_type: str = "",
    name: str = "",
    now: datetime,
) -> SavedOutput:
    """Return an output about to be saved, for which the tenant has room.

    It has the id of the tenant's artifact with the same content, if there is one, which then stays for
    `SECURED_TIME`. Raises BeingRemoved, ArtifactQuotaFull and TooManyRunOutputs.
    """
    row = RunUpload(
        tenant_id=tenant_id,
        attempt=attempt_id,
        sha256=sha256,
        bytes=size,
        content_type=content_type,
        name=name,
        created_at=now,
    )
    with transaction.atomic():
        row, is_new = reserve(row, now)
    if is_new:
        require_room(row, now)
    return SavedOutput(row.artifact, sha256, size, content_type, name)


def reserve(row: RunUpload, now: datetime) -> tuple[RunUpload, bool]:
    """Insert a run's output inside a transaction, under the id that its artifact will have; return it, or the
    same one of before, and whether it needs `require_room` after the commit. Raises BeingRemoved."""
    known = _keep_existing(row.tenant_id, [row.sha256], now).get(row.sha256)
    row.artifact = known.pk if known is not None else new_id(now.timestamp())
    row, is_new = insert_reservation(row)
    return row, is_new and (known is None or known.bytes < row.bytes)


def _keep_existing(tenant_id: int, hashes: Iterable[str], now: datetime) -> dict[str, Artifact]:
    """Keep the tenant's artifacts with this content from removal; return them by hash. Raises
    BeingRemoved."""
    rows = _locked(tenant_id, hashes)
    if any(row.state == State.GONE for row in rows.values()):
        raise BeingRemoved
    until = now + SECURED_TIME
    for row in rows.values():
        if row.tombstoned_at is not None or row.expires_at < until:
            row.tombstoned_at, row.expires_at = None, max(row.expires_at, until)
            row.save(update_fields=["tombstoned_at", "expires_at"])
    return rows


def _locked(tenant_id: int, hashes: Iterable[str]) -> dict[str, Artifact]:
    rows = Artifact.objects.select_for_update().filter(
        tenant_id=tenant_id, sha256__in=set(hashes), removed_at=None
    )
    return {row.sha256: row for row in rows.order_by("pk")}  # ordered: transactions wait in one order


def secure(
    tenant_id: int, outputs: Sequence[SavedOutput], maker: Maker, store: Store, now: datetime
) -> list[SavedOutput]:
    """Check that the store has these objects, and keep them until their rows are written; return the outputs
    under the ids that their rows will have.

    Raises OutputMissing, BeingRemoved and StoreError.
    """
    with transaction.atomic():
        rows = _keep_existing(tenant_id, (one.sha256 for one in outputs), now)
    keys = [ObjectKey(tenant_id, one.sha256) for one in outputs]
    if len(keys) < 2:
        found = [find_expected(store, key) for key in keys]
    else:
        with ThreadPoolExecutor(min(_AT_ONCE, len(keys))) as threads:
            found = list(threads.map(partial(find_expected, store), keys))
    secured = []
    for output, stored in zip(outputs, found, strict=True):
        if stored is None or stored.bytes != output.bytes:
            raise OutputMissing(output)
        row = rows.get(output.sha256)
        one = replace(output, id=row.pk) if row else output
        if row is None and not one.content_type:
            first = store.read(stored.key, 0, SNIFFED_BYTES)
            one = replace(one, content_type=recognised_type(first))
        if row is None and stored.stored_at < now - FRESH_TIME:
            expires_at = now + timedelta(seconds=settings.DISPATCHER.artifact_promise_seconds)
            promised = _new_row(tenant_id, one, maker, now, expires_at=expires_at, state=State.PROMISED)
            Artifact.objects.bulk_create([promised], ignore_conflicts=True)
        secured.append(one)
    return secured


def record(secured: Secured, maker: Maker, now: datetime) -> Mapping[str, str]:
    """Write the artifacts of secured outputs, and their uses by the job, inside the transaction that ends
    the run. May be repeated.

    Returns the ids of the artifacts by those of the outputs: they differ if a client promised the same
    content meanwhile. Raises OutputsChanged.
    """
    outputs, tenant_id = secured.outputs, secured.tenant_id
    by_hash = {one.sha256: one for one in outputs}
    rows = _locked(tenant_id, by_hash)
    if missing := [one for digest, one in by_hash.items() if digest not in rows]:
        removed = Artifact.objects.filter(
            removed_at__gte=secured.at, tenant_id=tenant_id, sha256__in=[one.sha256 for one in missing]
        )
        if removed.exists():  # promised, uploaded and deleted by a client, all since then
            raise OutputsChanged
        expires_at = now + timedelta(days=settings.DISPATCHER.artifact_days)
        new = [_new_row(tenant_id, one, maker, now, expires_at=expires_at) for one in missing]
        Artifact.objects.bulk_create(new, ignore_conflicts=True)
        rows = _locked(tenant_id, by_hash)
    if len(rows) < len(by_hash) or any(row.state == State.GONE for row in rows.values()):
        raise OutputsChanged
    names = {one.id: rows[one.sha256].pk for one in outputs}
    result = secured.result
    if result is not None and any(old != new for old, new in names.items() if old != result.id):
        raise OutputsChanged
    for row in rows.values():
        if row.state == State.PROMISED:
            _store_promised(row, by_hash[row.sha256], now)
    result_id = None if result is None else names[result.id]
    add_uses(maker.job, sorted(row.pk for row in rows.values()), result_id)
    RunUpload.objects.filter(attempt=maker.attempt, sha256__in=by_hash).delete()  # the artifacts count now
    return names


def _store_promised(row: Artifact, output: SavedOutput, now: datetime) -> None:
    """Mark the artifact as stored: the store has its object. Its promise may have had another length."""
    row.state, row.stored_at, row.upload, row.bytes = State.STORED, now, "", output.bytes
    row.content_type = row.content_type or output.content_type
    row.expires_at = max(row.expires_at, now + timedelta(days=settings.DISPATCHER.artifact_days))
    row.tombstoned_at = None
    extend_put(row, now)  # the run may have had a URL, too
    row.save(
        update_fields=[
            "put_until",
            "state",
            "stored_at",
            "upload",
            "bytes",
            "content_type",
            "expires_at",
            "tombstoned_at",
        ]
    )


def _new_row(
    tenant_id: int,
    output: SavedOutput,
    maker: Maker,
    now: datetime,
    *,
    expires_at: datetime,
    state: Artifact.State = State.STORED,
) -> Artifact:
    return Artifact(
        id=output.id,
        tenant_id=tenant_id,
        sha256=output.sha256,
        bytes=output.bytes,
        content_type=output.content_type,
        name=output.name,
        state=state,
        made_by_job=maker.job,
        made_by_attempt=maker.attempt,
        made_by_epoch=maker.epoch,
        created_at=now,
        put_until=put_until(now),
        stored_at=now if state == State.STORED else None,
        expires_at=expires_at,
    )
