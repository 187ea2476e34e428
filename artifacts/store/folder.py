"""Files below one folder, opened so that no symlink in it is followed, and published whole or not at all.

Each step from the root is an `openat` with O_NOFOLLOW: a link that another process planted in the store can
neither be read nor written through.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from artifacts.keys import ObjectKey
from artifacts.store.contract import NoSuchObject, ObjectExists, StoreFull, StoreUnavailable

OBJECTS = "a"
TEMPORARY = "tmp"
"""Subfolder of files that are not complete; on the same file system, so that a rename publishes them."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_PLAIN = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # a planted FIFO must not block the open
_READ = os.O_RDONLY | _PLAIN
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK})
"""Errors of file systems without hard links."""

Place = Sequence[str]
"""Names below the root, the last one of the file."""


def place_of(key: ObjectKey) -> Place:
    """Return where an object is."""
    return (OBJECTS, str(key.tenant_id), key.sha256[:2], key.sha256)


@contextmanager
def _store_errors() -> Iterator[None]:
    """Turn errors of the operating system into those of a store."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError):
        raise NoSuchObject("The store has no such object.") from None
    except OSError as error:
        if error.errno == errno.ELOOP:  # a link
            raise NoSuchObject("The store has no such object.") from None
        if error.errno in _FULL:
            raise StoreFull("The store's disk is full.") from None
        raise StoreUnavailable(f"The store's folder can't be used: {error.strerror or 'error'}.") from error


class Folder:
    """The files of a store. root: made when the first file is written; a link to a folder is followed here
    only, because it is the operator's."""

    def __init__(self, root: Path) -> None:
        self.root = root

    errors = staticmethod(_store_errors)

    def open(self, place: Place) -> int:
        """Return a descriptor to read a file; the caller closes it. Raises NoSuchObject, also for anything
        that is not a plain file."""
        with _store_errors(), self._folder(place[:-1]) as folder:
            return _plain(os.open(place[-1], _READ, dir_fd=folder))

    def stat(self, place: Place) -> os.stat_result:
        """Return a plain file's status. Raises NoSuchObject."""
        with _store_errors(), self._folder(place[:-1]) as folder:
            found = os.stat(place[-1], dir_fd=folder, follow_symlinks=False)
        if not stat.S_ISREG(found.st_mode):
            raise NoSuchObject("The store has no such object.")
        return found

    def new_file(self) -> tuple[str, int]:
        """Return name and descriptor of a new file in the temporary folder."""
        name = secrets.token_hex(16)
        with _store_errors(), self._folder((TEMPORARY,), make=True) as folder:
            return name, os.open(name, _NEW, 0o600, dir_fd=folder)

    def publish(self, temporary: str, place: Place, *, make: bool = True, is_new: bool = False) -> None:
        """Move a complete file to its place, durably. The caller has synchronised its bytes. make: create
        the place's folders. is_new: raise ObjectExists if a plain file is there."""
        with (
            _store_errors(),
            self._folder((TEMPORARY,)) as before,
            self._folder(place[:-1], make=make) as folder,
        ):
            if is_new and _is_plain(place[-1], folder):
                raise ObjectExists("The object is already stored.")
            os.rename(temporary, place[-1], src_dir_fd=before, dst_dir_fd=folder)
            os.fsync(folder)

    def publish_once(self, temporary: str, name: str) -> None:
        """Give a complete file this name in the root, durably. Raises ObjectExists if the name is taken."""
        with _store_errors(), self._folder((TEMPORARY,)) as before, self._folder(()) as root:
            try:
                os.link(temporary, name, src_dir_fd=before, dst_dir_fd=root, follow_symlinks=False)
            except FileExistsError:
                raise ObjectExists("The file is there.") from None
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                _copy_once(temporary, before, name, root)
            os.fsync(root)

    def move(self, source: Place, place: Place, descriptor: int) -> None:
        """Move an open file whose bytes are synchronised, durably. Raises ObjectExists if a plain file is at
        `place`, and NoSuchObject if another file than the open one is at `source`."""
        with (
            _store_errors(),
            self._folder(source[:-1]) as before,
            self._folder(place[:-1], make=True) as folder,
        ):
            if _is_plain(place[-1], folder):
                raise ObjectExists("The object is already stored.")
            found = os.stat(source[-1], dir_fd=before, follow_symlinks=False)
            if not os.path.samestat(found, os.fstat(descriptor)):
                raise NoSuchObject("The store has no such object.")
            os.rename(source[-1], place[-1], src_dir_fd=before, dst_dir_fd=folder)
            os.fsync(folder)

    def open_folder(self, place: Place) -> int:
        """Return a descriptor of a folder, for `open_in`; the caller closes it. Raises NoSuchObject."""
        with _store_errors(), self._folder(place) as folder:
            return os.dup(folder)

    @staticmethod
    def open_in(folder: int, name: str, flags: int) -> int:
        """Return a descriptor of a plain file in an open folder; the caller closes it. Raises OSError."""
        return _plain(os.open(name, flags | _PLAIN, 0o600, dir_fd=folder))

    def discard(self, temporary: str) -> None:
        """Remove a temporary file; no error if it is not there."""
        with suppress(NoSuchObject):
            self.remove((TEMPORARY, temporary))

    def remove(self, place: Place) -> None:
        """Remove a file or a link itself. Raises NoSuchObject."""
        with _store_errors(), self._folder(place[:-1]) as folder:
            os.unlink(place[-1], dir_fd=folder)

    def remove_folder(self, place: Place) -> None:
        """Remove a folder of files; no error if there is none."""
        for name in self.names(place):
            with suppress(NoSuchObject):
                self.remove((*place, name))
        with suppress(NoSuchObject, StoreUnavailable), _store_errors(), self._folder(place[:-1]) as folder:
            os.rmdir(place[-1], dir_fd=folder)

    def names(self, place: Place) -> list[str]:
        """Return the sorted names in a folder; none if there is no such folder."""
        try:
            with _store_errors(), self._folder(place) as folder:
                return sorted(os.listdir(folder))
        except NoSuchObject:
            return []

    def made_at(self, place: Place) -> float:
        """Return when a folder last got or lost a file, in seconds since 1970. Raises NoSuchObject."""
        with _store_errors(), self._folder(place) as folder:
            return os.fstat(folder).st_mtime

    def existing(self) -> Path:
        """Return the root, or the nearest folder above it that exists."""
        with _store_errors():
            return next(path for path in (self.root, *self.root.absolute().parents) if path.exists())

    def free_bytes(self, at: int | Path | None = None) -> int:
        """Return the bytes that the file system still takes. at: descriptor of an open file of the store, or
        a folder, which is asked in one call; None: the root, which is made."""
        with _store_errors():
            if at is not None:
                found = os.statvfs(at)
            else:
                with self._folder((), make=True) as folder:
                    found = os.fstatvfs(folder)
        return found.f_bavail * found.f_frsize

    @contextmanager
    def _folder(self, place: Place, *, make: bool = False) -> Iterator[int]:
        """Yield a descriptor of a folder below the root. make: create missing folders."""
        if make:
            self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        at = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for name in place:
                if make:
                    with suppress(FileExistsError):
                        os.mkdir(name, 0o700, dir_fd=at)
                        os.fsync(at)
                below = os.open(name, _FOLDER, dir_fd=at)
                os.close(at)
                at = below
            yield at
        finally:
            os.close(at)


def _is_plain(name: str, folder: int) -> bool:
    try:
        return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _copy_once(source: str, source_folder: int, name: str, folder: int) -> None:
    """Copy a file to a new one, whose bytes others may see before it is complete. Raises ObjectExists if the
    name is taken."""
    try:
        descriptor = os.open(name, _NEW, 0o600, dir_fd=folder)
    except FileExistsError:
        raise ObjectExists("The file is there.") from None
    try:
        with (
            os.fdopen(descriptor, "wb") as copy,
            os.fdopen(os.open(source, _READ, dir_fd=source_folder), "rb") as file,
        ):
            shutil.copyfileobj(file, copy)
            copy.flush()
            os.fsync(copy.fileno())
    except OSError:
        os.unlink(name, dir_fd=folder)
        raise


def _plain(descriptor: int) -> int:
    if stat.S_ISREG(os.fstat(descriptor).st_mode):
        return descriptor
    os.close(descriptor)
    raise FileNotFoundError(errno.ENOENT, "not a plain file")
