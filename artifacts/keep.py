"""Files that the dispatcher has itself, such as parts of a form or `data:` URIs, made artifacts."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import BinaryIO

from artifacts.errors import BeingRemoved
from artifacts.models import Artifact
from artifacts.store.contract import CHUNK_BYTES, Store
from artifacts.uploads import SNIFFED_BYTES, Wanted, mark_stored, promise

MAX_NAME = 255


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file of this process, read from its beginning. sha256, length: of all its bytes. media_type: as its
    sender says; empty: not said. name: for downloads."""

    file: BinaryIO
    sha256: str
    length: int
    media_type: str = ""
    name: str = ""

    def head(self) -> bytes:
        """Return the first bytes, from which the type is recognised."""
        self.file.seek(0)
        return self.file.read(SNIFFED_BYTES)

    def chunks(self) -> Iterator[bytes]:
        """Yield its bytes."""
        self.file.seek(0)
        while chunk := self.file.read(CHUNK_BYTES):
            yield chunk


class HashedFile:
    """A file that is being written; its hash is computed on the way."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.bytes = 0
        self._digest = hashlib.sha256()

    def add(self, data: bytes) -> None:
        self._digest.update(data)
        self.file.write(data)
        self.bytes += len(data)

    def done(self, *, media_type: str = "", name: str = "") -> LocalFile:
        """Return the whole file."""
        return LocalFile(self.file, self._digest.hexdigest(), self.bytes, media_type, clean_name(name))


def clean_name(name: str) -> str:
    """Return a name as a label that every database can store: without surrogates, which stand for bytes of
    a file's name that are no UTF-8."""
    return "".join(one for one in name if one.isprintable())[:MAX_NAME]


def keep_file(
    found: LocalFile,
    *,
    tenant_id: int,
    content_type: str,
    made_by_key: str = "",
    unused_seconds: float | None = None,
    store: Store,
    now: datetime,
) -> Artifact:
    """Store a file as an artifact of the tenant, or return the one with the same bytes.

    content_type: of its bytes. unused_seconds: how long a new one stays that nothing refers to; None:
    `DISPATCHER_ARTIFACT_DAYS`. Raises ArtifactRefused and StoreError.
    """
    wanted = Wanted(
        tenant_id,
        found.sha256,
        found.length,
        content_type=content_type,
        name=found.name,
        made_by_key=made_by_key,
        unused_seconds=unused_seconds,
    )
    made = promise(wanted, store, now)
    row = made.artifact
    if row.upload:  # a client uploads the same bytes in parts: theirs are not needed any more
        Artifact.objects.filter(pk=row.pk, upload=row.upload).update(upload="")
        store.abandon_parts(row.key, row.upload)
        row.upload = ""
    if made.upload is not None or row.state != Artifact.State.STORED:
        store.write(row.key, row.bytes, found.chunks())
        mark_stored(row, store, now)
    if row.state != Artifact.State.STORED:
        raise BeingRemoved
    if unused_seconds is not None and row.created_at == now:
        _expire(row, now + timedelta(seconds=unused_seconds))
    return row


def _expire(row: Artifact, at: datetime) -> None:
    """Let a new artifact expire at this time, unless another request has asked for it meanwhile."""
    Artifact.objects.filter(pk=row.pk, expires_at=row.expires_at).update(expires_at=at)
    row.expires_at = at
