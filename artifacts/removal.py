"""The end of artifacts: unused ones are announced (tombstone), then removed; objects without a row are
found by listing the store.

The order of a removal: the row becomes `gone` under its lock, which ends each access through the API, then
the object is removed, then `removed_at` is set. While `removed_at` is empty, no artifact with the same
content can be promised, so the late removal of an old object never hits a new one. A removal has a row to
itself for two minutes (`_claim`); one that failed, or was interrupted, is due again after that. The sweeps
remove up to `_TOGETHER` objects between one transaction that claims their rows and one that records.

While a signed PUT of the object may still be valid, an empty object takes its place (`Store.block`): the PUT
is refused, so erased bytes do not come back. A day later, the empty object is one without a row.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction
from django.db.models import Exists, OuterRef, QuerySet

from artifacts.errors import InUse
from artifacts.keys import ObjectKey
from artifacts.models import Artifact, ArtifactUse, RunUpload
from artifacts.reservations import OPEN_TIME
from artifacts.store.contract import MAX_SIGNED_SECONDS, Store, StoredObject, StoreError
from artifacts.uploads import put_until
from artifacts.uses import in_groups
from foundation.ids import new_id

State = Artifact.State
TOMBSTONE_TIME = timedelta(hours=1)
"""Between the announcement and the removal: a submit that has just looked at the artifact still finds it."""
IN_USE_TIME = timedelta(days=1)
"""An expired artifact with uses is looked at again after this time."""
UNKNOWN_TIME = timedelta(hours=24)
"""An object without a row is removed after this time: an upload's row is older than its object."""
ERASED_AT_ONCE = 100
"""Objects that the request of an erasure removes itself; the sweep removes the others."""
_REMOVAL_TIME = timedelta(minutes=2)
"""A removal has its row to itself for so long: the slower one of two at a time could hit an object that was
uploaded again after the faster one."""
_BATCH_TIME = timedelta(seconds=10)
"""A batch begins no further removal after this time: its contents can't be promised before it is recorded."""
_MOST_FAILURES = 5
"""After so many failed removals in a row, the store is taken to be away."""
_PUT_MARGIN = timedelta(minutes=20)
"""How much longer a signed PUT may be sent than its URL says: clocks differ (`s3.SKEW_SECONDS`), and the
store was asked a moment later."""
_ERASING_SECONDS = 20.0
"""The request begins no further removal after this time."""
_TOGETHER, _AT_ONCE = 100, 8
_USES = ArtifactUse.objects.filter(artifact_id=OuterRef("pk"))


@dataclass(frozen=True, slots=True)
class Removed:
    """What a step did. looked: rows or objects. removed: objects. failed: objects that the store did not
    remove. fault: its last error, or ""."""

    looked: int = 0
    removed: int = 0
    failed: int = 0
    fault: str = ""


def announce_unused(now: datetime, most: int) -> int:
    """Put a tombstone on artifacts that are expired and unused; return how many of at most `most` expired
    ones. Those in use expire later."""
    expired = Artifact.objects.filter(expires_at__lt=now, tombstoned_at=None, removed_at=None)
    ids = list(expired.order_by("expires_at").values_list("pk", flat=True)[:most])
    done = 0
    for some in in_groups(ids, _TOGETHER):
        with transaction.atomic():
            locked = _locked(some)
            used = _used(locked)
            unused = [pk for pk in locked if pk not in used]
            rows = Artifact.objects.filter(expires_at__lt=now, tombstoned_at=None)
            rows.filter(pk__in=used).update(expires_at=now + IN_USE_TIME)
            done += rows.filter(pk__in=unused).update(tombstoned_at=now)
    return done


def remove_announced(store: Store, now: datetime, most: int) -> Removed:
    """Remove artifacts whose tombstone is old enough and that are still unused; finish removals that were
    interrupted. At most `most`. One object that the store does not remove does not stop the others.

    Nothing changes in a process whose folder is not the database's."""
    try:
        store.require_own()
    except StoreError as error:
        return Removed(fault=str(error))
    due = _due(now).order_by("tombstoned_at")
    ids = list(due.values_list("pk", flat=True)[:most])
    removal = _Removal(store, now)
    for some in in_groups(ids, _TOGETHER):
        if not removal.goes_on:
            break
        removal.remove_announced(some)
    return removal.done(len(ids))


class _Removal:
    """Removals of a step, until the store seems to be away. One transaction claims the rows of a batch, then
    the store removes their objects, and a second transaction records the removals."""

    def __init__(self, store: Store, now: datetime) -> None:
        self._store, self._began_at, self._began = store, now, time.monotonic()
        self._removed = self._failed = self._in_a_row = 0
        self._fault = ""

    @property
    def goes_on(self) -> bool:
        return self._in_a_row < _MOST_FAILURES

    def remove_announced(self, ids: Sequence[str]) -> None:
        """Remove the objects of announced artifacts, except those that another process removes."""
        now = self._now()
        claim = _claim(now) + _BATCH_TIME
        rows = _claim_unused(ids, now, claim)
        removed, left = self._remove_each(rows, lambda row: _remove_object(row, self._store, now))
        mine = Artifact.objects.filter(state=State.GONE, removed_at=None)
        with transaction.atomic():
            mine.filter(pk__in=removed).update(removed_at=now)
            due_again = now - TOMBSTONE_TIME - _REMOVAL_TIME
            mine.filter(pk__in=left, tombstoned_at=claim).update(tombstoned_at=due_again)

    def remove_unknown(self, objects: Sequence[StoredObject]) -> None:
        """Remove objects under rows of their own, which keep their contents from being promised meanwhile.
        If the store does not remove one, `remove_announced` finds its row."""
        now = self._now()
        made = [
            Artifact(
                id=new_id(now.timestamp()),
                tenant_id=one.key.tenant_id,
                sha256=one.key.sha256,
                bytes=one.bytes,
                state=State.GONE,
                created_at=now,
                expires_at=now,
                tombstoned_at=_claim(now) + _BATCH_TIME,
            )
            for one in objects
        ]
        Artifact.objects.bulk_create(made, ignore_conflicts=True)  # one promised meanwhile has a row
        rows = list(Artifact.objects.filter(pk__in=[row.pk for row in made]))
        removed, left = self._remove_each(rows, lambda row: self._store.remove(row.key))
        # a later listing finds the objects that are left
        Artifact.objects.filter(pk__in=[*removed, *left]).delete()

    def done(self, looked: int) -> Removed:
        return Removed(looked, self._removed, self._failed, self._fault)

    def _remove_each(
        self, rows: Sequence[Artifact], remove: Callable[[Artifact], None]
    ) -> tuple[list[str], list[str]]:
        """Return the ids of the rows whose objects were removed, and of those that the batch had no time
        for."""
        until = time.monotonic() + _BATCH_TIME.total_seconds()
        removed: list[str] = []
        for place, row in enumerate(rows):
            if not self.goes_on or time.monotonic() > until:
                return removed, [left.pk for left in rows[place:]]
            try:
                remove(row)
            except StoreError as error:
                self._failed += 1
                self._in_a_row += 1
                self._fault = str(error)
            else:
                removed.append(row.pk)
                self._removed += 1
                self._in_a_row = 0
        return removed, []

    def _now(self) -> datetime:
        """The time: a step may last longer than `_REMOVAL_TIME`."""
        return self._began_at + timedelta(seconds=time.monotonic() - self._began)


def _due(now: datetime) -> QuerySet[Artifact]:
    return Artifact.objects.filter(tombstoned_at__lt=now - TOMBSTONE_TIME, removed_at=None)


def _claim_unused(ids: Sequence[str], now: datetime, claim: datetime) -> list[Artifact]:
    """Make those of these artifacts gone that are still due and unused, and return them; take back the
    tombstones of the used ones. Another process that comes meanwhile waits, and finds none due."""
    with transaction.atomic():
        rows = list(_due(now).select_for_update().filter(pk__in=ids).order_by("pk"))
        used = _used([row.pk for row in rows])
        unused = [row for row in rows if row.pk not in used]
        if used:
            Artifact.objects.filter(pk__in=used).update(tombstoned_at=None, expires_at=now + IN_USE_TIME)
        Artifact.objects.filter(pk__in=[row.pk for row in unused]).update(
            state=State.GONE, tombstoned_at=claim
        )
    return unused


def _claim(now: datetime) -> datetime:
    """Return the tombstone of a row whose removal begins now: the sweep leaves it alone for
    `_REMOVAL_TIME`."""
    return now - TOMBSTONE_TIME + _REMOVAL_TIME


def remove_now(
    artifact_id: str, store: Store, now: datetime, *, audit: Callable[[], object] | None = None
) -> None:
    """Remove an artifact on request. audit: called in the transaction that makes it gone. Raises InUse, and
    StoreError after that transaction: a sweep repeats the removal."""
    with transaction.atomic():
        if _used(_locked([artifact_id])):
            raise InUse
        rows = Artifact.objects.filter(pk=artifact_id, removed_at=None).exclude(state=State.GONE)
        if not rows.update(state=State.GONE, tombstoned_at=_claim(now)):
            return  # removed, or its removal has begun
        if audit is not None:
            audit()
    _remove_object(Artifact.objects.get(pk=artifact_id), store, now)
    Artifact.objects.filter(pk=artifact_id, state=State.GONE).update(removed_at=now)


def erase_unused(artifact_ids: Iterable[str], now: datetime) -> list[str]:
    """Make those artifacts gone that nothing uses, inside a transaction that has dropped uses of them; return
    their ids. After its commit, `remove_erased` removes their objects."""
    erased: list[str] = []
    for some in in_groups(sorted(set(artifact_ids)), _TOGETHER):  # sorted: transactions wait in one order
        used = _used(locked := _locked(some))
        rows = Artifact.objects.filter(pk__in=[pk for pk in locked if pk not in used], removed_at=None)
        rows = rows.exclude(state=State.GONE)
        ids = list(rows.values_list("pk", flat=True))
        rows.update(state=State.GONE, tombstoned_at=_claim(now))
        erased += ids
    return erased


def erase_outputs(attempt_ids: Sequence[str], now: datetime) -> list[str]:
    """Erase what these ended attempts left in the store and no artifact came of, inside a transaction: each
    output gets a row that is gone, under which `remove_erased` or the sweep removes its object. One that a
    run of another job has saved too stays. Return the ids of the rows."""
    mine = {(one.tenant_id, one.sha256): one for one in RunUpload.objects.filter(attempt__in=attempt_ids)}
    if not mine:
        return []
    same = {"tenant_id__in": {key[0] for key in mine}, "sha256__in": {key[1] for key in mine}}
    live = Artifact.objects.filter(**same, removed_at=None)
    others = RunUpload.objects.filter(**same).exclude(attempt__in=attempt_ids)
    kept = {key for rows in (live, others) for key in rows.values_list("tenant_id", "sha256")}
    rows = [
        Artifact(
            id=new_id(now.timestamp()),
            tenant_id=one.tenant_id,
            sha256=one.sha256,
            bytes=one.bytes,
            state=State.GONE,
            created_at=one.created_at,
            stored_at=now,
            expires_at=now,
            put_until=put_until(now),
            tombstoned_at=_claim(now),
        )
        for key, one in mine.items()
        if key not in kept
    ]
    Artifact.objects.bulk_create(rows, ignore_conflicts=True)
    RunUpload.objects.filter(attempt__in=attempt_ids).delete()
    return [row.pk for row in rows]


def remove_erased(artifact_ids: Sequence[str], store: Store, now: datetime) -> None:
    """Remove the objects of erased artifacts, at most `ERASED_AT_ONCE`, so that URLs signed before find
    nothing. The sweep removes the others, and those for which the store does not answer."""
    ids = artifact_ids[:ERASED_AT_ONCE]
    rows = list(Artifact.objects.filter(pk__in=ids, state=State.GONE, removed_at=None))
    until = time.monotonic() + _ERASING_SECONDS

    def remove(row: Artifact) -> str | None:
        if time.monotonic() > until:
            return None
        try:
            _end_object(row, store, now)
        except StoreError:
            return None
        return row.pk

    if rows:
        with ThreadPoolExecutor(min(_AT_ONCE, len(rows))) as threads:
            removed = [pk for pk in threads.map(remove, rows) if pk is not None]
        Artifact.objects.filter(pk__in=removed, state=State.GONE).update(removed_at=now)


def forget_gone(now: datetime, most: int) -> int:
    """Delete the rows of artifacts that were removed longer ago than the retention time."""
    kept = now - timedelta(days=settings.DISPATCHER.retention_days)
    ids = list(Artifact.objects.filter(removed_at__lt=kept).values_list("pk", flat=True)[:most])
    for some in in_groups(ids, _TOGETHER):
        Artifact.objects.filter(pk__in=some).delete()
    return len(ids)


def forget_uploads(now: datetime, most: int) -> int:
    """Delete outputs of runs that were saved or promised longer ago than an unused artifact is kept."""
    made = now - max(timedelta(days=settings.DISPATCHER.artifact_days), OPEN_TIME)
    ids = list(RunUpload.objects.filter(created_at__lt=made).values_list("pk", flat=True)[:most])
    RunUpload.objects.filter(pk__in=ids).delete()
    return len(ids)


def remove_unknown(
    objects: Sequence[StoredObject],
    store: Store,
    now: datetime,
    running: Callable[[Collection[str]], Collection[str]] = lambda attempts: (),
) -> Removed:
    """Remove those of these objects that have no row and are older than `UNKNOWN_TIME`.

    running: returns those of these attempts that have not ended; what they have saved stays."""
    old = {one.key: one for one in objects if one.stored_at < now - UNKNOWN_TIME}
    known = Artifact.objects.filter(
        tenant_id__in={key.tenant_id for key in old}, sha256__in=[key.sha256 for key in old], removed_at=None
    )
    for tenant_id, sha256 in known.values_list("tenant_id", "sha256"):
        old.pop(ObjectKey(tenant_id, sha256), None)
    saved = RunUpload.objects.filter(
        tenant_id__in={key.tenant_id for key in old}, sha256__in=[key.sha256 for key in old]
    )
    saved_by = {(one.attempt, ObjectKey(one.tenant_id, one.sha256)) for one in saved}
    live = running({attempt for attempt, _ in saved_by}) if saved_by else ()
    for attempt, key in saved_by:
        if attempt in live:
            old.pop(key, None)
    removal = _Removal(store, now)
    for some in in_groups(old.values(), _TOGETHER):
        if not removal.goes_on:
            break
        removal.remove_unknown(some)
    return removal.done(len(objects))


def _remove_object(row: Artifact, store: Store, now: datetime) -> None:
    if row.upload:
        store.abandon_parts(row.key, row.upload)
    _end_object(row, store, now)


def _end_object(row: Artifact, store: Store, now: datetime) -> None:
    # rows of earlier versions have no put_until; a URL lives no longer than MAX_SIGNED_SECONDS
    until = row.put_until or (row.stored_at or row.expires_at) + timedelta(seconds=MAX_SIGNED_SECONDS)
    if now < until + _PUT_MARGIN:
        store.block(row.key)
    else:
        store.remove(row.key)


def _locked(ids: Sequence[str]) -> list[str]:
    rows = Artifact.objects.select_for_update().filter(pk__in=ids).order_by("pk")
    return list(rows.values_list("pk", flat=True))


def _used(ids: Sequence[str]) -> set[str]:
    """Return those with a use: a query of its own, after the locks, which sees uses that were committed while
    it waited for them."""
    rows = Artifact.objects.filter(Exists(_USES), pk__in=ids)
    return set(rows.values_list("pk", flat=True))
