"""An artifact's way into the store: promised with size and hash, uploaded by its client, then confirmed.

The row is `stored` once the store said that it has the object: asked at `complete`, at the first submit that
refers to it, or at the first look at it, and never again.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from django.conf import settings
from django.db import transaction

from artifacts.errors import (
    ArtifactBytesDiffer,
    ArtifactTooLarge,
    BeingRemoved,
    NotUploaded,
    TooManyCompletions,
    TooManyPromised,
)
from artifacts.models import Artifact, RunUpload
from artifacts.quota import check_quota, lock_tenant, used_bytes
from artifacts.reservations import OPEN_TIME, reserved
from artifacts.store.contract import (
    MAX_SIGNED_SECONDS,
    NoSuchObject,
    SignedRequest,
    Store,
    StoredObject,
    UploadInParts,
    WrongBytes,
    is_blocked,
    size_of_part,
)
from artifacts.store.presence import find_expected
from foundation.ids import new_id

State = Artifact.State
SNIFFED_BYTES = 8192
UNKNOWN_TYPE = "application/octet-stream"
_CLOCKS_DIFFER = timedelta(minutes=15)
"""Between the store and the web, as S3 tolerates it."""
_AT_ONCE = 8
"""Questions to the store at once."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An artifact as its client describes it. made_by_key: name of the client's API key. unused_seconds: how
    long a stored one stays from now on at least; None: `DISPATCHER_ARTIFACT_DAYS`."""

    tenant_id: int
    sha256: str
    bytes: int
    content_type: str = ""
    name: str = ""
    made_by_key: str = ""
    unused_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Promise:
    """The answer to a promise. upload: None if the artifact is stored already."""

    artifact: Artifact
    upload: SignedRequest | None


@dataclass(frozen=True, slots=True)
class PartsPromise:
    """An upload in parts. missing: requests for the parts that the store does not have, by number."""

    upload: UploadInParts
    missing: dict[int, SignedRequest]


def promise(wanted: Wanted, store: Store, now: datetime) -> Promise:
    """Promise an artifact, or find the one with the same content; return how to upload it.

    Raises ArtifactTooLarge, ArtifactBytesDiffer, ArtifactQuotaFull, TooManyPromised, BeingRemoved and
    StoreError.
    """
    limits = settings.DISPATCHER
    if wanted.bytes > limits.max_artifact_bytes:
        raise ArtifactTooLarge(
            f"An artifact may have up to {limits.max_artifact_bytes} bytes (DISPATCHER_MAX_ARTIFACT_BYTES), "
            f"not {wanted.bytes}."
        )
    if store.max_object_bytes is not None and wanted.bytes > store.max_object_bytes:
        raise ArtifactTooLarge(
            f"The store takes objects of up to {store.max_object_bytes} bytes, not {wanted.bytes} "
            "(DISPATCHER_ARTIFACT_STORE)."
        )
    row, left_upload = _row_for(wanted, now)
    if left_upload:
        store.abandon_parts(row.key, left_upload)
    found = find_expected(store, row.key) if row.state == State.STORED else store.find(row.key)
    if row.state == State.STORED and found is None:  # the object was removed from the store
        Artifact.objects.filter(pk=row.pk, state=State.STORED).update(
            state=State.PROMISED, stored_at=None, put_until=put_until(now)
        )
        row.state = State.PROMISED
    is_new = row.created_at == now
    if found is not None and (
        is_blocked(found) or (is_new and (_was_erased(row, now) or _is_left_over(found, row)))
    ):
        store.remove(row.key)
        found = None
    if row.state == State.STORED or (found is not None and _confirm(row, found, store, now)):
        return Promise(row, None)
    return Promise(row, store.sign_put(row.key, row.bytes, limits.artifact_url_seconds))


def require_one_put(size: int, store: Store, *, otherwise: str) -> None:
    """Raise ArtifactTooLarge for an object that the store does not take in one request. otherwise: the
    advice that ends the message."""
    if store.max_put_bytes is not None and size > store.max_put_bytes:
        raise ArtifactTooLarge(
            f"The store takes up to {store.max_put_bytes} bytes in one PUT, not {size}: {otherwise}."
        )


def _was_erased(row: Artifact, now: datetime) -> bool:
    """Return True if the object of a new promise is one of erased content, whose PUT ended after the removal:
    a client that has only its hash must not get it."""
    since = now - OPEN_TIME
    same = {"tenant_id": row.tenant_id, "sha256": row.sha256}
    was_removed = Artifact.objects.filter(**same, state=State.GONE, removed_at__gt=since).exists()
    return was_removed and not RunUpload.objects.filter(**same, created_at__gt=since).exists()


def _is_left_over(found: StoredObject, row: Artifact) -> bool:
    """Return True if the object was stored before its new row was made, and no run has saved it.

    It may be of a former tenant with the same id: after the restore of an older database, earlier versions
    gave such ids again. A client that knows only the hash must not get those bytes."""
    if found.stored_at > row.created_at - _CLOCKS_DIFFER:
        return False  # uploaded under this row
    return not RunUpload.objects.filter(tenant_id=row.tenant_id, sha256=row.sha256).exists()


def promise_parts(row: Artifact, store: Store) -> PartsPromise:
    """Begin an upload in parts, or continue the one that has begun."""
    upload = _parts_of(row, store)
    if upload is None:
        upload = store.begin_parts(row.key, row.bytes)
        Artifact.objects.filter(pk=row.pk, state=State.PROMISED).update(upload=upload.upload)
        row.upload = upload.upload
    seconds = settings.DISPATCHER.artifact_url_seconds
    missing = {
        number: store.sign_part(
            row.key, upload.upload, number, size_of_part(row.bytes, upload.part_bytes, number), seconds
        )
        for number in range(1, upload.parts + 1)
        if number not in upload.stored
    }
    return PartsPromise(upload, missing)


def _parts_of(row: Artifact, store: Store) -> UploadInParts | None:
    if not row.upload:
        return None
    try:
        return store.find_parts(row.key, row.upload, row.bytes)
    except NoSuchObject:
        return None


def _row_for(wanted: Wanted, now: datetime) -> tuple[Artifact, str]:
    """Return the row of this content, made or renewed, and the upload in parts of a promise that it
    replaces."""
    limits = settings.DISPATCHER
    with transaction.atomic():
        lock_tenant(wanted.tenant_id)
        row = (
            Artifact.objects.select_for_update()
            .filter(tenant_id=wanted.tenant_id, sha256=wanted.sha256, removed_at=None)
            .first()
        )
        if row is not None and row.state == State.GONE:
            raise BeingRemoved
        if row is not None and row.bytes == wanted.bytes:
            return _renewed(row, now, wanted.unused_seconds), ""
        if row is not None and row.state == State.STORED:
            raise ArtifactBytesDiffer(
                f"An artifact with this SHA-256 has {row.bytes} bytes, not {wanted.bytes}."
            )
        _check_quota(wanted, now, replaces=row)
        expires_at = now + timedelta(seconds=limits.artifact_promise_seconds)
        fresh = Artifact(
            id=new_id(now.timestamp()) if row is None else row.id,
            tenant_id=wanted.tenant_id,
            sha256=wanted.sha256,
            bytes=wanted.bytes,
            content_type=wanted.content_type,
            name=wanted.name,
            made_by_key=wanted.made_by_key,
            created_at=now,
            expires_at=expires_at,
            put_until=put_until(now),
        )
        fresh.save(force_insert=row is None)
        return fresh, "" if row is None else row.upload


def _renewed(row: Artifact, now: datetime, unused_seconds: float | None) -> Artifact:
    """Keep the artifact for as long as a new one. unused_seconds: as of `Wanted`."""
    limits = settings.DISPATCHER
    stored = timedelta(days=limits.artifact_days)
    if unused_seconds is not None:
        stored = timedelta(seconds=unused_seconds)
    promised = timedelta(seconds=limits.artifact_promise_seconds)
    row.expires_at = max(row.expires_at, now + (stored if row.state == State.STORED else promised))
    row.tombstoned_at = None
    if row.state == State.PROMISED:
        extend_put(row, now)
    row.save(update_fields=["expires_at", "put_until", "tombstoned_at"])
    return row


def put_until(now: datetime) -> datetime:
    """Return when a URL expires that is signed now to put an object."""
    return now + timedelta(seconds=min(settings.DISPATCHER.artifact_url_seconds, MAX_SIGNED_SECONDS))


def extend_put(row: Artifact, now: datetime) -> None:
    """Move `put_until` to the end of a URL that is signed now. An empty `put_until` stays empty: an earlier
    version may have signed a URL that lives longer."""
    if row.put_until is not None:
        row.put_until = max(row.put_until, put_until(now))


def _check_quota(wanted: Wanted, now: datetime, *, replaces: Artifact | None) -> None:
    """Raise ArtifactQuotaFull or TooManyPromised. replaces: a promise that the new one takes the place of."""
    limits = settings.DISPATCHER
    # in this order: an output that becomes an artifact meanwhile counts twice, not never
    used = reserved(wanted.tenant_id, now).bytes + used_bytes(wanted.tenant_id)
    promised = Artifact.objects.filter(tenant_id=wanted.tenant_id, removed_at=None, state=State.PROMISED)
    if replaces is not None:
        used -= replaces.bytes
        promised = promised.exclude(pk=replaces.pk)
    check_quota(used, wanted.bytes)
    if promised.count() >= limits.tenant_promised_artifacts:
        raise TooManyPromised(
            f"{limits.tenant_promised_artifacts} uploads are promised and not complete, the most at once "
            "(DISPATCHER_TENANT_PROMISED_ARTIFACTS). Complete or delete some."
        )


# -- confirming -------------------------------------------------------------------------------


def confirm(rows: Iterable[Artifact], store: Store, now: datetime) -> None:
    """Ask the store once for each promised artifact, for several at the same time; those that it has become
    `stored`, also in these rows. An upload in parts needs `complete`."""
    promised = [row for row in rows if row.state == State.PROMISED and not row.upload]
    if len(promised) < 2:
        there = [store.find(row.key) for row in promised]
    else:
        with ThreadPoolExecutor(min(_AT_ONCE, len(promised))) as threads:
            there = list(threads.map(lambda row: store.find(row.key), promised))
    for row, found in zip(promised, there, strict=True):
        if found is not None:
            _confirm(row, found, store, now)


def _confirm(row: Artifact, found: StoredObject, store: Store, now: datetime) -> bool:
    """Mark the artifact as stored; return whether it is. The store has checked an object that came in one
    piece when it was put; one that came in parts counts only after `complete`, which checks it and clears
    `upload`."""
    if found.bytes != row.bytes:
        return False
    row.content_type = row.content_type or recognised_type(store.read(row.key, 0, SNIFFED_BYTES))
    row.expires_at = now + timedelta(days=settings.DISPATCHER.artifact_days)
    changed = Artifact.objects.filter(pk=row.pk, state=State.PROMISED, bytes=row.bytes, upload="").update(
        state=State.STORED,
        stored_at=now,
        content_type=row.content_type,
        expires_at=row.expires_at,
        tombstoned_at=None,
    )
    if changed:
        row.state, row.stored_at = State.STORED, now
        return True
    same = Artifact.objects.filter(pk=row.pk, state=State.STORED, bytes=row.bytes).first()
    if same is None:
        return False
    row.state, row.stored_at = State.STORED, same.stored_at  # confirmed by another request meanwhile
    return True


def recognised_type(first_bytes: bytes) -> str:
    """Return the media type by the first bytes; `UNKNOWN_TYPE` for texts, pages and all that is not known."""
    from filetype import guess_mime

    return str(guess_mime(first_bytes) or UNKNOWN_TYPE)


class Completions:
    """Bounds the uploads in parts that are joined at one time: each one reads all bytes of an artifact. One
    per process, in `jobs.ports.Ports`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0

    @contextmanager
    def one_of_few(self) -> Iterator[None]:
        """Raises TooManyCompletions."""
        most = settings.DISPATCHER.artifact_completions
        with self._lock:
            if self._running >= most:
                raise TooManyCompletions(
                    f"{most} uploads in parts are being checked, the most at once in a web process "
                    "(DISPATCHER_ARTIFACT_COMPLETIONS). All parts are kept: repeat this request."
                )
            self._running += 1
        try:
            yield
        finally:
            with self._lock:
                self._running -= 1


def complete(row: Artifact, store: Store, now: datetime, completions: Completions) -> None:
    """Finish an upload: join its parts if it has some, and mark it as stored. It may be repeated.

    Raises NotUploaded, WrongBytes, TooManyCompletions and StoreError.
    """
    if row.state == State.STORED:
        return
    if row.upload:
        with completions.one_of_few():
            _join(row, store)
        Artifact.objects.filter(pk=row.pk, upload=row.upload).update(upload="")
        row.upload = ""
    mark_stored(row, store, now)


def mark_stored(row: Artifact, store: Store, now: datetime) -> None:
    """Mark an artifact that has no parts to join as stored. Raises NotUploaded and StoreError."""
    found = store.find(row.key)
    if found is None:
        raise NotUploaded
    if not _confirm(row, found, store, now):
        raise NotUploaded("The artifact was changed or removed meanwhile.")


def _join(row: Artifact, store: Store) -> None:
    try:
        store.complete_parts(row.key, row.upload, row.bytes)
    except NoSuchObject as missing:
        if store.find(row.key) is None:
            raise NotUploaded(str(missing)) from None
        _verify(row, store)  # joined by another request, or uploaded in one piece


def _verify(row: Artifact, store: Store) -> None:
    """Read the object once. Raises WrongBytes, and removes it."""
    digest, read = hashlib.sha256(), 0
    for chunk in store.chunks(row.key):
        digest.update(chunk)
        read += len(chunk)
    if (read, digest.hexdigest()) != (row.bytes, row.sha256):
        # S3 joins parts before their hash is checked: a process that died in between left this object
        store.remove(row.key)
        raise WrongBytes("The bytes are not those that were declared.")
