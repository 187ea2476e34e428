"""The file of a download: partial until all bytes are there with the right hash, then published whole.

The partial file is `.<artifact>.part` in the folder of the whole one, whose name never begins like that. It
belongs to the download that has its lock; a second download of the artifact writes to another file."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows: nothing is resumed
    fcntl = None  # type: ignore[assignment]

_CHUNK_BYTES = 1024 * 1024
_FLAGS = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


class PartialFile:
    """A file of `size` bytes with a hash, some of which an earlier download may have left. Raises OSError."""

    def __init__(self, folder: Path, artifact_id: str, size: int, sha256: str) -> None:
        self._size, self._sha256 = size, sha256
        self._path = folder / f".{artifact_id}.part"
        file = _locked(self._path)
        self._is_kept = file is not None
        if file is None:  # of a download that is under way
            self._path = folder / f".{artifact_id}.{secrets.token_hex(8)}.part"
            file = _new(self._path)
        self._file: BinaryIO = file
        self.bytes = os.fstat(file.fileno()).st_size
        if self.bytes > size:
            self.restart()
        self._file.seek(0, os.SEEK_END)

    def write(self, pieces: Iterable[bytes]) -> None:
        """Append bytes, piece by piece without a copy of them all."""
        for piece in pieces:
            self._file.write(piece)
            self.bytes += len(piece)

    def restart(self) -> None:
        """Drop all bytes."""
        self._file.seek(0)
        self._file.truncate()
        self.bytes = 0

    def is_whole(self) -> bool:
        """Return True if all bytes are there, and have the hash."""
        self._file.seek(0)
        return self.bytes == self._size and _digest(self._file) == self._sha256

    def replace(self, path: Path) -> Path:
        """Publish the whole file under a name, in place of any other file."""
        if fcntl is None:
            self._file.close()  # Windows renames no open file
        self._path.replace(path)
        return path

    def publish(self, names: Sequence[str]) -> Path:
        """Publish the whole file under the first of these names that no other file has; the last one is the
        artifact's own. No file of another writer is replaced, even if both write at once."""
        for path in (self._path.with_name(name) for name in names[:-1]):
            if _move_new(self._path, path) or has_content(path, self._size, self._sha256):
                return path
        return self.replace(self._path.with_name(names[-1]))

    def close(self, *, is_wanted: bool) -> None:
        """Close the file; delete it unless a later download may continue it. is_wanted: the download was
        interrupted, so its bytes are kept."""
        if not self._file.closed:
            if not (self._is_kept and is_wanted and self.bytes) and _is_at(self._path, self._file):
                self._path.unlink()
            self._file.close()


def has_content(path: Path, size: int, sha256: str) -> bool:
    """Return True if there is a file with these bytes."""
    try:
        status = path.stat()
        # a pipe would block, a device never end
        if not stat.S_ISREG(status.st_mode) or status.st_size != size:
            return False
        with path.open("rb") as file:
            return _digest(file) == sha256
    except OSError:  # none, or none that can be read
        return False


def _digest(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while chunk := file.read(_CHUNK_BYTES):
        digest.update(chunk)
    return digest.hexdigest()


def _locked(path: Path) -> BinaryIO | None:
    """Open the file under its lock; None if another download has it, or if there are no locks."""
    while fcntl is not None:
        file = os.fdopen(os.open(path, _FLAGS, 0o666), "r+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            return None
        if _is_at(path, file):  # else it was published meanwhile
            if os.fstat(file.fileno()).st_nlink <= 1:
                return file
            path.unlink()  # a download was killed in `_move_new`: its published file has this name, too
        file.close()
    return None


def _is_at(path: Path, file: BinaryIO) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


def _new(path: Path) -> BinaryIO:
    return os.fdopen(os.open(path, _FLAGS | os.O_EXCL, 0o666), "r+b")


def _move_new(source: Path, path: Path) -> bool:
    """Give a file a name, unless another one has it; return whether it was given."""
    try:
        os.link(source, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links: the name is taken first, by an empty file
        try:
            path.open("xb").close()
        except FileExistsError:
            return False
        source.replace(path)
        return True
    source.unlink()
    return True
