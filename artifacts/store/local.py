"""The store in a local folder: objects are files, and signed requests go to the web process
(`dispatcher_project/web/artifact_bytes.py`).

::

    store.id                         which store it is (`identity`)
    a/<tenant>/<2 digits>/<sha256>   objects
    parts/<upload>/key               key of the object of an unfinished upload in parts
    parts/<upload>/<n>.size          size of its parts
    tmp/<random>                     files that are being written

The parts of an upload are in one file (`parts`). They are files of their own, `parts/<upload>/<n>`, which
`complete_parts` copies, in uploads that an earlier version began, and in a folder that several hosts share:
locks may not reach from one to the other.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from artifacts.keys import ObjectKey
from artifacts.store.contract import (
    CHUNK_BYTES,
    MAX_SIGNED_SECONDS,
    PART_BYTES,
    NoSuchObject,
    ObjectExists,
    SignedRequest,
    StoredObject,
    StoreError,
    UploadInParts,
    WrongBytes,
    bounded_part_bytes,
    is_blocked,
    number_of_parts,
)
from artifacts.store.folder import OBJECTS, TEMPORARY, Folder, place_of
from artifacts.store.identity import AnotherFolder, FolderIdentity, StoreRecord
from artifacts.store.names import served_type
from artifacts.store.parts import (
    BYTES,
    PartReceiver,
    has_one_file,
    make_file,
    name_of_size,
    publish,
    size_of_parts,
    stored_parts,
)
from artifacts.store.receiver import Incoming, Receiver, no_room
from artifacts.store.signatures import Grant, signed_query
from foundation.ids import new_id
from foundation.program import command_line

PARTS = "parts"
_UPLOAD = re.compile(r"[0-9A-Z]{26}\Z")
_TENANT = re.compile(r"[1-9][0-9]{0,18}\Z")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}\Z")


class LocalStore:
    """A folder of this host.

    root: the folder. url: of the store at the web process, without a trailing slash. now: the time, the same
    for all processes. reserve_bytes: room on the disk that no object may take. is_shared: the folder is on a
    file system that all hosts see. record: the database's record of its folder: nothing is written,
    removed or listed in another one; None: any folder. part_bytes: of new uploads in parts, at least.
    """

    max_put_bytes: int | None = None
    max_object_bytes: int | None = None

    def __init__(
        self,
        root: Path,
        url: str,
        now: Callable[[], datetime],
        *,
        reserve_bytes: int = 0,
        is_shared: bool = False,
        record: StoreRecord | None = None,
        part_bytes: int = PART_BYTES,
    ) -> None:
        self.part_bytes = part_bytes
        self.is_shared = is_shared
        self._folder = Folder(root)
        self._identity = FolderIdentity(self._folder, record) if record is not None else None
        self._url = url
        self.now = now
        self._reserve_bytes = reserve_bytes

    @property
    def root(self) -> Path:
        return self._folder.root

    # -- signed requests ---------------------------------------------------------------------

    def sign_put(self, key: ObjectKey, size: int, seconds: float) -> SignedRequest:
        return self._signed(Grant("PUT", key, size=size), seconds)

    def sign_get(
        self, key: ObjectKey, seconds: float, *, content_type: str = "", name: str = ""
    ) -> SignedRequest:
        return self._signed(Grant("GET", key, content_type=served_type(content_type), name=name), seconds)

    def sign_part(self, key: ObjectKey, upload: str, number: int, size: int, seconds: float) -> SignedRequest:
        return self._signed(Grant("PUT", key, size=size, upload=upload, number=number), seconds)

    def _signed(self, grant: Grant, seconds: float) -> SignedRequest:
        expires_at = self.now() + timedelta(seconds=min(seconds, MAX_SIGNED_SECONDS))
        headers = {"Content-Length": str(grant.size)} if grant.method == "PUT" else {}
        url = f"{self._url}/{grant.key}?{signed_query(grant, expires_at)}"
        return SignedRequest(grant.method, url, headers, expires_at)

    # -- objects -----------------------------------------------------------------------------

    def find(self, key: ObjectKey) -> StoredObject | None:
        found = self._find(key)
        if found is None:
            self.require_own()
        return found

    def _find(self, key: ObjectKey) -> StoredObject | None:
        """`find` after `require_own`: a second look a moment later would prove no more."""
        try:
            found = self._folder.stat(place_of(key))
        except NoSuchObject:
            return None
        return StoredObject(key, found.st_size, datetime.fromtimestamp(found.st_mtime, UTC))

    def open(self, key: ObjectKey) -> tuple[int, int]:
        """Return a descriptor to read the object, which the caller closes, and its size. Raises
        NoSuchObject."""
        try:
            descriptor = self._folder.open(place_of(key))
        except NoSuchObject:
            self.require_own()
            raise
        size = os.fstat(descriptor).st_size
        if is_blocked(StoredObject(key, size, self.now())):
            os.close(descriptor)
            raise NoSuchObject("The store has no such object.")
        return descriptor, size

    def read(self, key: ObjectKey, first: int, length: int) -> bytes:
        descriptor, _ = self.open(key)
        with os.fdopen(descriptor, "rb") as file:
            return os.pread(file.fileno(), length, first)

    def chunks(self, key: ObjectKey, first: int = 0) -> Iterator[bytes]:
        return _chunks(self.open(key)[0], first)

    def write(self, key: ObjectKey, size: int, chunks: Iterable[bytes]) -> None:
        self._unblock(key)
        try:
            receiver = self.receive(key, size)
        except ObjectExists:
            return
        with receiver, suppress(ObjectExists):
            for chunk in chunks:
                receiver.add(chunk)
            receiver.finish()

    def receive(self, key: ObjectKey, size: int) -> Receiver:
        """Begin to store an object. Raises ObjectExists, and StoreFull if the disk has no room for it."""
        self.require_own(may_begin=True)
        if self._find(key) is not None:
            raise ObjectExists("The object is already stored.")
        self._require_room(size)
        return Receiver(
            self._folder, place_of(key), size, key.sha256, is_new=True, reserve_bytes=self._reserve_bytes
        )

    def receive_part(self, key: ObjectKey, upload: str, number: int, size: int) -> Incoming:
        """Begin to store one part. Raises NoSuchObject for an unknown upload, ObjectExists if the object is
        stored, PartBusy and StoreFull."""
        try:
            return self._part_receiver(key, upload, number, size)
        except NoSuchObject:
            found = self.find(key)
            if found is None or is_blocked(found):
                raise
        raise ObjectExists("The object is already stored.")

    def _part_receiver(self, key: ObjectKey, upload: str, number: int, size: int) -> Incoming:
        self.require_own()
        self._require_upload(key, upload)
        self._require_room(size)
        place, reserve = (PARTS, upload), self._reserve_bytes
        names = self._folder.names(place)
        if has_one_file(names):
            return PartReceiver(
                self._folder, place, number, size, part_bytes=size_of_parts(names), reserve_bytes=reserve
            )
        return Receiver(self._folder, (*place, str(number)), size, None, make=False, reserve_bytes=reserve)

    def remove(self, key: ObjectKey) -> None:
        self.require_own()
        with suppress(NoSuchObject):
            self._folder.remove(place_of(key))

    def block(self, key: ObjectKey) -> None:
        self.require_own(may_begin=True)
        with Receiver(self._folder, place_of(key), 0, None) as receiver:
            receiver.finish()

    def _unblock(self, key: ObjectKey) -> None:
        """Remove the file that blocks a key; `remove` requires the database's folder."""
        found = self._find(key)
        if found is not None and is_blocked(found):
            self.remove(key)

    def objects(self, after: ObjectKey | None = None) -> Iterator[StoredObject]:
        self.require_own()
        begin = str(after) if after is not None else ""
        tenants = [name for name in self._folder.names((OBJECTS,)) if _TENANT.match(name)]
        for tenant in tenants:
            for pair in self._folder.names((OBJECTS, tenant)):
                if f"{OBJECTS}/{tenant}/{pair}~" <= begin:  # ~ is behind all digits
                    continue
                for name in self._folder.names((OBJECTS, tenant, pair)):
                    if f"{OBJECTS}/{tenant}/{name}" <= begin:
                        continue
                    try:
                        found = self.find(ObjectKey(int(tenant), name))
                    except ValueError:  # no file of ours
                        continue
                    if found is not None:
                        yield found

    # -- uploads in parts --------------------------------------------------------------------

    def begin_parts(self, key: ObjectKey, size: int) -> UploadInParts:
        self.require_own(may_begin=True)
        self._require_room(size)
        upload = new_id(self.now().timestamp())
        part_bytes = bounded_part_bytes(size, self.part_bytes)
        if not self.is_shared:
            make_file(self._folder, (PARTS, upload), size)
        with Receiver(self._folder, (PARTS, upload, name_of_size(part_bytes)), 0, None) as receiver:
            receiver.finish()
        with Receiver(self._folder, (PARTS, upload, "key"), len(str(key)), None) as receiver:
            receiver.add(str(key).encode())
            receiver.finish()
        return UploadInParts(upload, part_bytes, number_of_parts(size, part_bytes))

    def find_parts(self, key: ObjectKey, upload: str, size: int) -> UploadInParts:
        self._require_upload(key, upload)
        names = self._folder.names((PARTS, upload))
        stored = stored_parts(names)
        if BYTES not in names:
            if stored and self.find(key) is None:  # the file became the object, which was removed
                raise NoSuchObject("There is no such upload.")
            stored = stored or frozenset(int(name) for name in names if _NUMBER.match(name))
        part_bytes = size_of_parts(names)
        return UploadInParts(upload, part_bytes, number_of_parts(size, part_bytes), stored)

    def complete_parts(self, key: ObjectKey, upload: str, size: int) -> None:
        self.require_own()
        found = self.find_parts(key, upload, size)
        missing = sorted(set(range(1, found.parts + 1)) - found.stored)
        if missing:
            raise NoSuchObject(
                f"{len(missing)} of {found.parts} parts are missing, the first is {missing[0]}."
            )
        self._unblock(key)
        try:
            with suppress(ObjectExists):
                self._publish_parts(key, upload, size)
        except WrongBytes:
            self._forget(upload)  # the hash of the whole does not tell which part is wrong
            raise
        except NoSuchObject:
            if self.find(key) is None:  # else another request has completed the upload
                raise
        self._forget(upload)

    def _publish_parts(self, key: ObjectKey, upload: str, size: int) -> None:
        if self._find(key) is not None:
            raise ObjectExists("The object is already stored.")
        names = self._folder.names((PARTS, upload))
        if has_one_file(names):
            publish(self._folder, (PARTS, upload), key.sha256, place_of(key))
            return
        with self.receive(key, size) as receiver:
            for number in range(1, number_of_parts(size, size_of_parts(names)) + 1):
                for chunk in _chunks(self._folder.open((PARTS, upload, str(number))), 0):
                    receiver.add(chunk)
            receiver.finish()

    def abandon_parts(self, key: ObjectKey, upload: str) -> None:
        self.require_own()
        with suppress(NoSuchObject):
            self._require_upload(key, upload)
            self._forget(upload)

    def _forget(self, upload: str) -> None:
        for name in ("key", BYTES):  # first, so that no further part is taken, and then none is written
            with suppress(NoSuchObject):
                self._folder.remove((PARTS, upload, name))
        self._folder.remove_folder((PARTS, upload))

    def _require_upload(self, key: ObjectKey, upload: str) -> None:
        """Raise NoSuchObject unless the upload began for this key."""
        if not _UPLOAD.match(upload):
            raise NoSuchObject("There is no such upload.")
        descriptor = self._folder.open((PARTS, upload, "key"))
        with os.fdopen(descriptor, "rb") as file:
            if file.read(200) != str(key).encode():
                raise NoSuchObject("There is no such upload.")

    # -- care ----------------------------------------------------------------------------------

    def drop_unfinished(self, before: datetime) -> int:
        self.require_own()
        dropped = 0
        for name in self._folder.names((TEMPORARY,)):
            with suppress(NoSuchObject):
                if self._folder.stat((TEMPORARY, name)).st_mtime < before.timestamp():
                    self._folder.remove((TEMPORARY, name))
                    dropped += 1
        for upload in self._folder.names((PARTS,)):
            with suppress(NoSuchObject):
                if self._folder.made_at((PARTS, upload)) < before.timestamp():
                    self._forget(upload)
                    dropped += 1
        return dropped

    def require_own(self, *, may_begin: bool = False) -> None:
        """Raise AnotherFolder if this is not the database's folder. may_begin: as of `FolderIdentity`."""
        if self._identity is not None:
            self._identity.require(may_begin=may_begin)

    def look(self) -> None:
        """Raise AnotherFolder if this is not the database's folder. Changes nothing."""
        if self._identity is not None:
            self._identity.look()

    def declare(self) -> None:
        """Make this folder the database's, whatever is in it."""
        if self._identity is not None:
            self._identity.declare()

    def check(self) -> str:
        """Changes nothing: as another user than that of the services it would make files of its own."""
        try:
            self.look()
            existing = self._folder.existing()
            if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
                return f"{self.root}: The store's folder can't be written: {existing} can't be."
            free = self._folder.free_bytes(existing)
        except AnotherFolder as error:
            return (
                f"{self.root}: {error} Where several hosts use artifacts, set DISPATCHER_ARTIFACT_STORE to "
                "s3://BUCKET. If this is the right folder, or a new, empty one, declare it, as the user of "
                f"the services, by: {command_line('artifacts declare')}"
            )
        except StoreError as error:
            return f"{self.root}: {error}"
        if free <= self._reserve_bytes:
            return (
                f"{self.root}: {free} bytes are free, and {self._reserve_bytes} stay free "
                "(DISPATCHER_ARTIFACT_RESERVE_BYTES): no upload is accepted."
            )
        return ""

    def _require_room(self, size: int) -> None:
        if self._folder.free_bytes() - self._reserve_bytes < size:
            raise no_room(f"{size} bytes more", self._reserve_bytes)


def _chunks(descriptor: int, first: int) -> Iterator[bytes]:
    with os.fdopen(descriptor, "rb", buffering=0) as file:
        file.seek(first)
        while chunk := file.read(CHUNK_BYTES):
            yield chunk
