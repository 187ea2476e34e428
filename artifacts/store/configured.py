"""The store that the settings name. One per process; tests make their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError, connection

from artifacts.keys import ObjectKey
from artifacts.models import Artifact, StoreFolder
from artifacts.store.contract import Store, StoreUnavailable
from artifacts.store.local import LocalStore
from artifacts.store.place import S3Place, read_place
from artifacts.store.s3 import S3Store


class ProcessStore:
    """The store of one process, made at its first use and again when the settings change (in tests)."""

    def __init__(self) -> None:
        self._made: tuple[object, Store] | None = None

    def get(self, now: Callable[[], datetime]) -> Store:
        """Return the store. now: as of `make_store`."""
        wanted = (settings.DISPATCHER, settings.ARTIFACT_FOLDER)
        if self._made is None or self._made[0] != wanted:
            self._made = wanted, make_store(now)
        return self._made[1]


STORE_PATH = "/store"
"""Path of the web process that serves signed requests to a local store."""


def make_store(now: Callable[[], datetime]) -> Store:
    """Return a new store of the settings. now: the time, the same for all processes."""
    limits = settings.DISPATCHER
    place = read_place(limits.artifact_store)
    if isinstance(place, S3Place):
        return S3Store(place, now, part_bytes=limits.artifact_part_bytes)
    folder, is_shared = place
    return LocalStore(
        folder or Path(settings.ARTIFACT_FOLDER),
        (limits.artifact_url or limits.public_url) + STORE_PATH,
        now,
        reserve_bytes=limits.artifact_reserve_bytes,
        is_shared=is_shared,
        record=_Record(),
        part_bytes=limits.artifact_part_bytes,
    )


class _Record:
    """The row of the folder in the database."""

    def read(self) -> str:
        with _query():
            return StoreFolder.objects.values_list("folder", flat=True).first() or ""

    def write(self, folder_id: str) -> str:
        with _query():
            row, _ = StoreFolder.objects.get_or_create(pk=1, defaults={"folder": folder_id})
            return row.folder

    def newest_objects(self, most: int) -> list[ObjectKey]:
        with _query():
            stored = Artifact.objects.filter(state=Artifact.State.STORED, stored_at__isnull=False)
            keys = stored.order_by("-id").values_list("tenant_id", "sha256")[:most]
            return [ObjectKey(*key) for key in keys]


@contextmanager
def _query() -> Iterator[None]:
    """Queries of any thread. Raises StoreUnavailable without the database."""
    was_open = connection.connection is not None  # a thread that had none keeps none
    try:
        yield
    except DatabaseError:
        raise StoreUnavailable("It is unknown whether the store's folder is the right one.") from None
    finally:
        if not was_open:
            connection.close()
