"""The file of an upload in parts. Each part is written at its place of one sparse file, which becomes the
object.

::

    parts/<upload>/bytes        the file, as long as the object
    parts/<upload>/<n>.size     an empty file: each part but the last one has n bytes
    parts/<upload>/<n>.open     part n is being received: by the request that holds this file's lock
    parts/<upload>/<n>.stored   all bytes of part n are on the disk; the same file, renamed

A stored part is never written again: a request for it only reads its body. So once all parts are stored, no
request can change the bytes that are hashed, nor those of the object (docs/reference/artifacts.md).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
from collections.abc import Iterable
from contextlib import suppress

from artifacts.store.contract import PART_BYTES, NoSuchObject, PartBusy, WrongBytes, size_of_part
from artifacts.store.folder import Folder, Place
from artifacts.store.receiver import Incoming, begin_writeback, wrong_hash

BYTES = "bytes"
_PART_BYTES = re.compile(r"([1-9][0-9]{0,18})\.size\Z")
_STORED = re.compile(r"([1-9][0-9]{0,8})\.stored\Z")


def make_file(folder: Folder, upload: Place, size: int) -> None:
    """Make the file of a new upload; none on a file system without locks, where its parts are then files."""
    name, descriptor = folder.new_file()
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        with folder.errors():
            os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        folder.publish(name, (*upload, BYTES))
    finally:
        os.close(descriptor)
        folder.discard(name)


def name_of_size(part_bytes: int) -> str:
    """Return the name of the file that says how large the parts of an upload are."""
    return f"{part_bytes}.size"


def size_of_parts(names: Iterable[str]) -> int:
    """Return how large the parts of an upload are by the names in its folder; of one that an earlier version
    began, 64 MiB."""
    return next((int(found[1]) for name in names if (found := _PART_BYTES.match(name))), PART_BYTES)


def stored_parts(names: Iterable[str]) -> frozenset[int]:
    """Return the numbers of the stored parts by the names in the folder of an upload."""
    return frozenset(int(found[1]) for name in names if (found := _STORED.match(name)))


def has_one_file(names: Iterable[str]) -> bool:
    """Return True if the parts of an upload are in one file, by the names in its folder. That is so also once
    the file has become the object."""
    return any(name == BYTES or _STORED.match(name) for name in names)


def publish(folder: Folder, upload: Place, sha256: str, place: Place) -> None:
    """Check the hash of the file, all of whose parts are stored, and rename it to `place`.

    Raises WrongBytes, ObjectExists if a file is there, and NoSuchObject if the upload has no file."""
    with os.fdopen(folder.open((*upload, BYTES)), "rb", buffering=0) as file:
        with folder.errors():
            found = hashlib.file_digest(file, hashlib.sha256).hexdigest()
        if found != sha256:
            raise wrong_hash(found, sha256)
        with folder.errors():
            os.utime(file.fileno())  # an object is as old as its completion
            os.fsync(file.fileno())
        folder.move((*upload, BYTES), place, file.fileno())


class PartReceiver(Incoming):
    """A part on its way into the file of its upload. One request at a time writes a part: a second one gets
    PartBusy. The body of a part that is stored already is read without effect.

    Raises NoSuchObject if the upload has no file, also because it has become the object, and WrongBytes for a
    part of another size.
    """

    def __init__(
        self,
        folder: Folder,
        upload: Place,
        number: int,
        size: int,
        *,
        part_bytes: int,
        reserve_bytes: int = 0,
    ) -> None:
        super().__init__(folder, size, reserve_bytes)
        self._first = (number - 1) * part_bytes
        self._open_name, self._stored_name = f"{number}.open", f"{number}.stored"
        self._lock = self._file = -1
        self._is_stored = False
        self._folder_of_upload = folder.open_folder(upload)
        try:
            with folder.errors():
                self._file = folder.open_in(self._folder_of_upload, BYTES, os.O_WRONLY)
                self._require_size(number, part_bytes)
                self._lock = self._locked()
                self._is_stored = self._has(self._stored_name)
                # after the look at the part: `complete` takes the file away before it forgets its parts
                if not self._is_in_place(BYTES, self._file):
                    raise NoSuchObject("There is no such upload.")
            if self._is_stored:
                self._release()
        except BaseException:
            self.close()
            raise

    def _require_size(self, number: int, part_bytes: int) -> None:
        try:
            size = size_of_part(os.fstat(self._file).st_size, part_bytes, number)
        except ValueError:
            raise NoSuchObject("The upload has no such part.") from None
        if size != self._size:
            raise WrongBytes(f"Part {number} has {size} bytes, not {self._size}.")

    def _locked(self) -> int:
        """Return a descriptor of `<n>.open`, whose lock is held. Raises PartBusy."""
        while True:
            lock = self._folder.open_in(self._folder_of_upload, self._open_name, os.O_WRONLY | os.O_CREAT)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is_in_place(self._open_name, lock):
                    return lock
            except BlockingIOError:
                os.close(lock)
                raise PartBusy("Another request is sending this part.") from None
            except BaseException:
                os.close(lock)
                raise
            os.close(lock)  # of a request that ended meanwhile

    def _is_in_place(self, name: str, descriptor: int) -> bool:
        found = self._stat(name)
        return found is not None and os.path.samestat(found, os.fstat(descriptor))

    def _has(self, name: str) -> bool:
        return self._stat(name) is not None

    def _stat(self, name: str) -> os.stat_result | None:
        with suppress(FileNotFoundError):
            return os.stat(name, dir_fd=self._folder_of_upload, follow_symlinks=False)
        return None

    def _write(self, data: memoryview, first: int) -> None:
        if self._is_stored:
            return
        at = self._first + first
        with self._folder.errors():
            while data:
                written = os.pwrite(self._file, data, at)
                data, at = data[written:], at + written

    def _begin_writeback(self, first: int, behind: int) -> None:
        begin_writeback(self._file, self._first + first, self._first + behind)

    def _publish(self) -> None:
        if self._is_stored:
            return
        folder = self._folder_of_upload
        with self._folder.errors():
            os.fsync(self._file)
            os.rename(self._open_name, self._stored_name, src_dir_fd=folder, dst_dir_fd=folder)
            self._is_stored = True
            os.close(self._lock)
            self._lock = -1
            os.fsync(folder)

    def close(self) -> None:
        self._release()
        for descriptor in (self._file, self._folder_of_upload):
            if descriptor >= 0:
                os.close(descriptor)
        self._file = self._folder_of_upload = -1

    def _release(self) -> None:
        """Let another request write the part."""
        if self._lock < 0:
            return
        with suppress(OSError):  # the upload was removed
            os.unlink(self._open_name, dir_fd=self._folder_of_upload)
        os.close(self._lock)
        self._lock = -1
