"""Which folder is the store of the database: the file `store.id` in it has the id that is in the database.

The first folder that is written gets the file. So a process of another host, or one whose disk is not
mounted, does not take its own folder for the store (docs/reference/artifacts.md, "Stores").
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from artifacts.keys import ObjectKey
from artifacts.store.contract import NoSuchObject, ObjectExists, StoreUnavailable
from artifacts.store.folder import OBJECTS, Folder, place_of
from foundation.ids import ID_LENGTH, is_id, new_id

MARKER = "store.id"
NEWEST_CHECKED = 50
"""Number of the newest objects. A folder is adopted if it has one of them."""
REFUSAL_SECONDS = 1.0
"""How long a refusal is repeated without a query, while the file `store.id` stays as it is."""
_WRITE_SECONDS = 1.0
"""How long another process may take to write the file on a file system without hard links."""


class StoreRecord(Protocol):
    """The database's record of its folder. All methods may raise StoreUnavailable."""

    def read(self) -> str:
        """Return the id of the folder; empty: no folder was used yet."""

    def write(self, folder_id: str) -> str:
        """Store the id unless there is one; return the stored one."""

    def newest_objects(self, most: int) -> Sequence[ObjectKey]:
        """Return the keys of the newest stored objects."""


class AnotherFolder(StoreUnavailable):
    """The folder is not the store of the database."""


class FolderIdentity:
    """The file `store.id` of a folder, compared with the record of the database. Thread-safe."""

    def __init__(
        self, folder: Folder, record: StoreRecord, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._folder, self._record, self._monotonic = folder, record, monotonic
        self._known = ""
        self._refusal: tuple[str, float, str] | None = None
        """Id in the folder, end and text of the last refusal."""

    def require(self, *, may_begin: bool = False) -> None:
        """Raise AnotherFolder unless the folder is the database's. A folder is adopted while the database
        has none: one with a newest object, or, with may_begin, an empty one if the database has no
        object."""
        found = self._read()
        if found and found == self._known:
            return
        refusal = self._refusal
        if refusal is not None and refusal[0] == found and self._monotonic() < refusal[1]:
            raise AnotherFolder(refusal[2])
        try:
            stored = self._record.read()
            if not stored:
                has_objects = self._has_objects()
                stored = "" if has_objects else self._refuse_foreign_files()
                if not stored and (has_objects or may_begin):
                    stored = self._adopt()
            if stored:
                self._compare(stored)
        except AnotherFolder as error:
            self._refusal = found, self._monotonic() + REFUSAL_SECONDS, str(error)
            raise
        self._known = stored

    def look(self) -> None:
        """Raise AnotherFolder if a write would be refused. Changes nothing."""
        stored = self._record.read()
        if not stored and not self._has_objects():
            stored = self._refuse_foreign_files()
        if stored:
            self._compare(stored)
        elif not self._read() and MARKER in self._folder.names(()):
            raise _invalid()

    def declare(self) -> None:
        """Make the folder the database's, whatever is in it."""
        stored = self._record.write(self._read() or new_id())
        if self._read() != stored:
            self._write_file(stored, lambda name: self._folder.publish(name, (MARKER,)))

    def _compare(self, stored: str) -> None:
        # the file is read after the row: the process that adopts a folder writes the file before the row
        found = self._read()
        if not found:
            raise _not_mounted()
        if found != stored:
            raise AnotherFolder(
                "The folder is not the store of this database, but of another host or dispatcher."
            )

    def _adopt(self) -> str:
        """Give the folder an id unless it has one, and the database this id unless it has one; return the
        database's. A file that was made in vain is removed."""
        own = new_id()
        found = self._read() or self._make(own)
        stored = self._record.write(found)
        if stored != found == own == self._read():
            with suppress(NoSuchObject):
                self._folder.remove((MARKER,))
        return stored

    def _refuse_foreign_files(self) -> str:
        """Raise AnotherFolder if the folder has objects; called for a database without objects, whose sweeps
        would remove the files of another database. Return the id if another process has just begun the store,
        else an empty text."""
        if not self._is_filled():
            return ""
        stored = self._record.read()  # that process writes the row before its first object
        if not stored:
            raise AnotherFolder(
                "The folder has files of another database. Declared as the store of this one, it loses "
                "them after a day."
            )
        return stored

    def _is_filled(self) -> bool:
        """Return True if any object is in the folder."""
        tenants = ((OBJECTS, tenant) for tenant in self._folder.names((OBJECTS,)))
        return any(self._folder.names((*one, pair)) for one in tenants for pair in self._folder.names(one))

    def _has_objects(self) -> bool:
        """Return False if the database has no objects. Raises AnotherFolder if it does, and the folder has
        none of the newest."""
        keys = self._record.newest_objects(NEWEST_CHECKED)
        if keys and not any(self._has(key) for key in keys):
            raise _not_mounted()
        return bool(keys)

    def _has(self, key: ObjectKey) -> bool:
        with suppress(NoSuchObject):
            self._folder.stat(place_of(key))
            return True
        return False

    def _read(self) -> str:
        """Return the id in the folder; empty without a valid one."""
        try:
            descriptor = self._folder.open((MARKER,))
        except NoSuchObject:
            return ""
        with self._folder.errors(), os.fdopen(descriptor, "rb") as file:
            text = file.read(ID_LENGTH + 1).decode("ascii", "replace").strip()
        return text if is_id(text) else ""

    def _make(self, folder_id: str) -> str:
        """Write the file; return its id, or that of another process that was faster. Raises AnotherFolder if
        there is a file without a valid id."""
        try:
            self._write_file(folder_id, lambda name: self._folder.publish_once(name, MARKER))
        except ObjectExists:
            return self._read_of_another()
        return folder_id

    def _read_of_another(self) -> str:
        until = self._monotonic() + _WRITE_SECONDS
        while not (found := self._read()):
            if self._monotonic() >= until:
                raise _invalid()
            time.sleep(0.01)
        return found

    def _write_file(self, folder_id: str, publish: Callable[[str], None]) -> None:
        name, descriptor = self._folder.new_file()
        try:
            with self._folder.errors(), os.fdopen(descriptor, "wb") as file:
                file.write(f"{folder_id}\n".encode())
                file.flush()
                os.fsync(file.fileno())
            publish(name)
        finally:
            self._folder.discard(name)


def _not_mounted() -> AnotherFolder:
    return AnotherFolder(
        "The folder is not known as the store of this database: is its disk mounted, or is the store on "
        "another host? The operator's command `doctor` says what to do."
    )


def _invalid() -> AnotherFolder:
    return AnotherFolder(
        f"The folder has a file {MARKER} without a valid id. The operator's command `doctor` says what to do."
    )
