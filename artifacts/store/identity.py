"""Which folder is the store of the database: the file `store.id` in it has the id that the database knows.

The first folder that is written gets the file. So a process of another host, or one whose disk is not
mounted, does not take its own folder for the store (docs/reference/artifacts.md, "Stores").
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from artifacts.keys import ObjectKey
from artifacts.store.contract import NoSuchObject, ObjectExists, StoreUnavailable
from artifacts.store.folder import Folder, place_of
from foundation.ids import ID_LENGTH, is_id, new_id

MARKER = "store.id"
LOOKED_AT = 50
"""Newest objects of which one must be in a folder without the file, made by an earlier version."""


class StoreRecord(Protocol):
    """What the database knows of its folder. All methods may raise StoreUnavailable."""

    def read(self) -> str:
        """Return the id of the folder; empty: no folder was used yet."""

    def write(self, folder_id: str) -> str:
        """Store the id unless there is one; return the stored one."""

    def newest_objects(self, most: int) -> Sequence[ObjectKey]:
        """Return the keys of the newest stored objects."""


class AnotherFolder(StoreUnavailable):
    """The folder is not the store of the database. database_id: the id that the folder should have; empty:
    the database knows none."""

    def __init__(self, text: str, database_id: str) -> None:
        super().__init__(text)
        self.database_id = database_id


class FolderIdentity:
    """The file `store.id` of a folder, compared with the record of the database."""

    def __init__(self, folder: Folder, record: StoreRecord) -> None:
        self._folder, self._record = folder, record
        self._known = ""

    def require(self, *, may_begin: bool = False) -> None:
        """Raise AnotherFolder unless the folder is the database's. may_begin: a folder becomes that of a
        database that knows no objects."""
        found = self._read()
        if found and found == self._known:
            return
        self._known = self._record.read()
        if self._known:
            self._compare(found)
        elif found or self._has_objects():
            self._adopt(found)
        elif may_begin:
            self._adopt(self._make())

    def _compare(self, found: str) -> None:
        if not found:
            raise self._not_mounted()
        if found != self._known:
            text = "The folder is not the store of this database, but of another host or dispatcher."
            raise AnotherFolder(text, self._known)

    def _adopt(self, found: str) -> None:
        found = found or self._make()
        self._known = self._record.write(found)
        self._compare(found)

    def _has_objects(self) -> bool:
        """Return False if the database knows no objects. Raises AnotherFolder if it does, and the folder has
        none of the newest."""
        keys = self._record.newest_objects(LOOKED_AT)
        if keys and not any(self._has(key) for key in keys):
            raise self._not_mounted()
        return bool(keys)

    def _has(self, key: ObjectKey) -> bool:
        with suppress(NoSuchObject):
            self._folder.stat(place_of(key))
            return True
        return False

    def _not_mounted(self) -> AnotherFolder:
        return AnotherFolder(
            "The folder is not known as the store of this database: is its disk mounted, or is the store on "
            "another host? The operator's command `doctor` says what to do.",
            self._known,
        )

    def _read(self) -> str:
        """Return the id in the folder; empty without a valid one."""
        try:
            descriptor = self._folder.open((MARKER,))
        except NoSuchObject:
            return ""
        with self._folder.errors(), os.fdopen(descriptor, "rb") as file:
            text = file.read(ID_LENGTH + 1).decode("ascii", "replace").strip()
        return text if is_id(text) else ""

    def _make(self) -> str:
        """Write the file; return its id, or that of another process that was faster."""
        folder_id = new_id()
        name, descriptor = self._folder.new_file()
        try:
            with self._folder.errors(), os.fdopen(descriptor, "wb") as file:
                file.write(f"{folder_id}\n".encode())
                file.flush()
                os.fsync(file.fileno())
            with suppress(ObjectExists):
                self._folder.publish_once(name, MARKER)
        finally:
            self._folder.discard(name)
        return self._read()
