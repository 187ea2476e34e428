"""Files of a run: outputs that it saves, and inputs that it reads, with a cache of those. Standard library
only.

A saved output is a file in the run's folder; the starter of the run stores it, so model code needs neither a
store nor credentials. An input is a signed URL in the payload.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gpu_host.handlers.errors import BadInput

OUTPUT = "$output"
"""Name in a result that stands for a saved file, until the result is stored."""
SAVED = "saved"
"""Subfolder of a run's folder for saved files."""
INPUTS = "inputs"
"""Folder of the cache, beside those of runs, and of a run's own links to its inputs."""
CACHE_BYTES = 10 * 1024 * 1024 * 1024
CACHE_SECONDS = 86_400.0
TIMEOUT_SECONDS = 60.0
_CHUNK_BYTES = 1024 * 1024
_OBJECT = re.compile(r"/a/[1-9][0-9]*/([0-9a-f]{64})\Z")
"""End of the path of an artifact's URL; the hash of its bytes."""


class _Gone(BadInput):
    """The store has no such object any more."""


class InputUnavailable(Exception):
    """The store does not answer, or the disk is full: another attempt may succeed."""


def save_file(
    source: str | os.PathLike[str] | bytes | bytearray | memoryview,
    folder: Path,
    *,
    name: str,
    content_type: str,
) -> dict[str, Any]:
    """Copy a file or bytes into the run's folder, unless it is there; return the value for the result."""
    kept = folder / SAVED
    if isinstance(source, (bytes, bytearray, memoryview)):
        kept.mkdir(exist_ok=True)
        path = kept / secrets.token_hex(8)
        path.write_bytes(source)
    else:
        given = Path(source)
        name = name or given.name
        path = given.absolute()
        if given.is_symlink() or not path.is_relative_to(folder) or ".." in path.parts:
            kept.mkdir(exist_ok=True)
            path = kept / secrets.token_hex(8)
            shutil.copyfile(given, path)
    return {
        OUTPUT: {"file": str(path.relative_to(folder)), "name": str(name), "content_type": str(content_type)}
    }


def has_saved(text: str, folder: str) -> bool:
    """Return True if a result, as JSON, may name files of the run. folder: the run's."""
    return OUTPUT in text or folder in text


class InputCache:
    """Downloaded inputs in a folder: a file is named after its URL without the query, and used again by later
    runs. Several threads may use it.

    most_bytes: beyond it, those are removed that were not used for the longest time.
    """

    def __init__(self, folder: Path, most_bytes: int = CACHE_BYTES) -> None:
        self._folder, self._most_bytes = folder, most_bytes

    def fetch(self, url: Any, run_folder: Path) -> Path:
        """Return a file with the input's bytes, which stays until the run's folder is removed.

        url: as in the payload. The bytes are checked against the hash in it. Raises BadInput for anything
        that is no URL of an artifact, or that the store refuses, and InputUnavailable if the store does not
        answer.
        """
        wanted = _OBJECT.search(urlsplit(url).path) if isinstance(url, str) else None
        if wanted is None or urlsplit(url).scheme not in ("http", "https"):
            raise BadInput(f"The value {str(url)[:80]!r} is no artifact.")
        parts = urlsplit(url)
        # by host and path: what is cached was read there, with a valid signature
        key = hashlib.sha256(f"{parts.scheme}://{parts.netloc}{parts.path}".encode()).hexdigest()
        mine = run_folder / INPUTS / wanted[1]
        if mine.exists():
            return mine
        mine.parent.mkdir(parents=True, exist_ok=True)
        cached = self._folder / key
        with suppress(FileNotFoundError):
            os.link(cached, mine)
            try:
                # the URL's own signature must allow the read
                _open(url, first_byte=bool(mine.stat().st_size)).close()
            except _Gone:  # erased
                mine.unlink(missing_ok=True)
                cached.unlink(missing_ok=True)
                raise
            except BaseException:
                mine.unlink(missing_ok=True)
                raise
            os.utime(cached)
            return mine
        self._download(url, wanted[1], mine)
        self._add(mine, cached)
        return mine

    def _download(self, url: str, sha256: str, target: Path) -> None:
        partial = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
        digest = hashlib.sha256()
        try:
            with _open(url) as answer, partial.open("wb") as file:
                left = self._most_of(answer, target.parent)
                while chunk := answer.read(_CHUNK_BYTES):
                    left -= len(chunk)
                    if left < 0:
                        raise BadInput(
                            f"An input whose server does not say its length has more than {self._most_bytes} "
                            "bytes (DISPATCHER_INPUT_CACHE_BYTES)."
                        )
                    digest.update(chunk)
                    file.write(chunk)
            if digest.hexdigest() != sha256:
                raise InputUnavailable("The store sent other bytes than those of the artifact.")
            partial.chmod(0o444)  # it is shared with later runs
            partial.replace(target)
        except OSError as error:
            raise InputUnavailable(f"An input could not be read: {error}") from None
        finally:
            partial.unlink(missing_ok=True)

    def _most_of(self, answer: Any, folder: Path) -> int:
        """Return the most bytes that an answer may have: its declared length, or the size of the cache for
        an answer without one, which could be endless; but no more than the disk has free. Raises
        InputUnavailable if the declared length does not fit on the disk."""
        length = self._most_bytes if answer.length is None else int(answer.length)
        free = shutil.disk_usage(folder).free
        if answer.length is not None and length > free:
            raise InputUnavailable(f"The disk has no room for an input of {length} bytes: {free} are free.")
        return min(length, free)

    def _add(self, file: Path, cached: Path) -> None:
        """Put a file into the cache. Never raises: without it the file is only read again."""
        with suppress(OSError):
            self._folder.mkdir(parents=True, exist_ok=True)
            found = [(one.stat().st_mtime, one.stat().st_size, one) for one in self._folder.iterdir()]
            room = self._most_bytes - file.stat().st_size
            used = sum(size for _, size, _ in found)
            for _, size, one in sorted(found, key=lambda item: item[0]):
                if used <= room:
                    break
                one.unlink(missing_ok=True)
                used -= size
            if used <= room:
                with suppress(FileExistsError):
                    os.link(file, cached)
                os.utime(cached)


def remove_unused(folder: Path, seconds: float, *, now: float) -> None:
    """Remove cached inputs that no run has used for so long: also those that were erased meanwhile. now: Unix
    seconds."""
    if not folder.is_dir():
        return
    for one in folder.iterdir():
        with suppress(OSError):
            if now - one.stat().st_mtime >= seconds:
                one.unlink()


@cache
def _opener() -> Any:
    """Import urllib when it is needed: a seventh of a model process's start, and few runs have inputs."""
    import urllib.request

    class NoRedirects(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    return urllib.request.build_opener(NoRedirects)


def _open(url: str, *, first_byte: bool = False) -> Any:
    """Open the URL. first_byte: read no more of it; there must be one. Raises BadInput, InputUnavailable."""
    opener = _opener()
    from urllib.error import HTTPError
    from urllib.request import Request

    request = Request(url, headers={"Range": "bytes=0-0"} if first_byte else {})
    try:
        return opener.open(request, timeout=TIMEOUT_SECONDS)
    except HTTPError as error:
        error.close()
        if error.code in (404, 410) or (first_byte and error.code == 416):
            raise _Gone(f"The store has no such input any more ({error.code}).") from None
        if error.code in (400, 401, 403):
            raise BadInput(f"The store refuses an input ({error.code}).") from None
        raise InputUnavailable(f"The store answered {error.code}.") from None
    except OSError as error:
        raise InputUnavailable(f"The store does not answer: {error}") from None
