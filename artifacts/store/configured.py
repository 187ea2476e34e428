"""The store that the settings name. One per process; tests make their own."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from django.conf import settings
from django.db import DatabaseError, connection

from artifacts.models import Artifact
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
        return S3Store(place, now)
    folder, is_shared = place
    return LocalStore(
        folder or Path(settings.ARTIFACT_FOLDER),
        (limits.artifact_url or limits.public_url) + STORE_PATH,
        now,
        reserve_bytes=limits.artifact_reserve_bytes,
        is_shared=is_shared,
        has_objects=_has_stored,
    )


def _has_stored() -> bool:
    """Return True if the database knows stored artifacts. Raises StoreUnavailable."""
    was_open = connection.connection is not None  # a thread that had none keeps none
    try:
        return Artifact.objects.filter(state=Artifact.State.STORED, stored_at__isnull=False).exists()
    except DatabaseError:
        raise StoreUnavailable("It is unknown whether the store's empty folder is the right one.") from None
    finally:
        if not was_open:
            connection.close()
