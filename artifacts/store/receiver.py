"""Bytes on their way into the store's folder: counted, written while there is room, and published whole."""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from contextlib import suppress
from typing import Self

from artifacts.store.contract import CHUNK_BYTES, StoreFull, WrongBytes
from artifacts.store.folder import Folder, Place

WRITEBACK_BYTES = 8 * 1024 * 1024
"""The system begins to write an upload to the disk after so many bytes. Otherwise the fsync at its end stalls
those of the database: another file's took 114 to 144 ms beside one of 400 MB, and 12 ms so."""


class Incoming(ABC):
    """Bytes of a declared size that arrive in pieces. What has arrived counts only after `finish`; the end of
    the `with` block forgets it otherwise.

    reserve_bytes: room on the disk that stays free, also while other uploads fill it.
    """

    _file: int
    """Descriptor of the open file that the bytes go to."""

    def __init__(self, folder: Folder, size: int, reserve_bytes: int) -> None:
        self._folder, self._size, self._reserve_bytes = folder, size, reserve_bytes
        self._received = self._has_room_until = self._written_back = 0

    @property
    def missing(self) -> int:
        """How many bytes are still to come."""
        return self._size - self._received

    def add(self, data: bytes | memoryview) -> None:
        """Append bytes. Raises WrongBytes if there are too many, StoreFull."""
        if len(data) > self.missing:
            raise WrongBytes(f"More than the declared {self._size} bytes were sent.")
        if self._reserve_bytes and self._received >= self._has_room_until:
            if self._folder.free_bytes(self._file) - self._reserve_bytes < len(data):
                raise no_room("the rest of this object", self._reserve_bytes)
            self._has_room_until = self._received + CHUNK_BYTES
        first = self._received
        self._received += len(data)
        self._write(memoryview(data), first)
        if self._received - self._written_back >= WRITEBACK_BYTES:
            self._begin_writeback(self._written_back, self._received)
            self._written_back = self._received

    def finish(self) -> None:
        """Check the bytes, and let them count durably. Raises WrongBytes, StoreFull."""
        if self.missing:
            raise WrongBytes(f"{self._received} of the declared {self._size} bytes were sent.")
        self._publish()

    @abstractmethod
    def _write(self, data: memoryview, first: int) -> None:
        """Write bytes of which the first is number `first`, from 0."""

    @abstractmethod
    def _begin_writeback(self, first: int, behind: int) -> None:
        """Let the system begin to write these bytes to the disk."""

    @abstractmethod
    def _publish(self) -> None:
        """Let the bytes count durably; all have arrived."""

    @abstractmethod
    def close(self) -> None:
        """Discard unpublished bytes. A second call has no effect."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Receiver(Incoming):
    """A whole file: collected in a temporary one, and renamed by `finish`.

    sha256: hash that the bytes must have; None: any. make: False if the folder of `place` must exist. is_new:
    `finish` raises ObjectExists if a file is there by then.
    """

    def __init__(
        self,
        folder: Folder,
        place: Place,
        size: int,
        sha256: str | None,
        *,
        make: bool = True,
        is_new: bool = False,
        reserve_bytes: int = 0,
    ) -> None:
        super().__init__(folder, size, reserve_bytes)
        self._place, self._sha256 = place, sha256
        self._make, self._is_new = make, is_new
        self._digest = hashlib.sha256()
        self._name, self._file = folder.new_file()
        self._is_open, self._is_published = True, False

    def _write(self, data: memoryview, first: int) -> None:
        if self._sha256 is not None:
            self._digest.update(data)
        with self._folder.errors():
            while data:
                data = data[os.write(self._file, data) :]

    def _begin_writeback(self, first: int, behind: int) -> None:
        begin_writeback(self._file, first, behind)

    def _publish(self) -> None:
        if self._sha256 is not None and self._digest.hexdigest() != self._sha256:
            raise wrong_hash(self._digest.hexdigest(), self._sha256)
        with self._folder.errors():
            os.fsync(self._file)
        self._close()
        self._folder.publish(self._name, self._place, make=self._make, is_new=self._is_new)
        self._is_published = True

    def close(self) -> None:
        self._close()
        if not self._is_published:
            self._folder.discard(self._name)

    def _close(self) -> None:
        if self._is_open:
            self._is_open = False
            with self._folder.errors():
                os.close(self._file)


def no_room(what: str, reserve_bytes: int) -> StoreFull:
    """Return the error of a disk without room for `what`. reserve_bytes: that stay free."""
    kept = f": {reserve_bytes} bytes stay free (DISPATCHER_ARTIFACT_RESERVE_BYTES)" if reserve_bytes else ""
    return StoreFull(f"The store's disk has no room for {what}{kept}.")


def wrong_hash(found: str, declared: str) -> WrongBytes:
    return WrongBytes(f"The bytes have the SHA-256 {found}, declared was {declared}.")


def begin_writeback(descriptor: int, first: int, behind: int) -> None:
    """Let Linux begin to write these bytes to the disk, without waiting for it. They stay in its cache."""
    if hasattr(os, "posix_fadvise"):
        with suppress(OSError):
            os.posix_fadvise(descriptor, first, behind - first, os.POSIX_FADV_DONTNEED)
