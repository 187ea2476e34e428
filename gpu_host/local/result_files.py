"""Files that a run's result names: its worker reads them from the run's folder, and stores them as outputs of
the run.

The folder belongs to model code, which may have put anything there: no link is followed, and a file must
belong to the owner of the folder, so nothing is read that model code could not read itself.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from foundation.texts import printable
from gpu_host.handlers.files import OUTPUT
from gpus.errors import OutputRefused, RunFailed
from gpus.runners.base import SaveOutput

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe must not block
_TYPE = re.compile(r"[\w.+-]{1,63}/[\w.+-]{1,63}\Z", re.ASCII)
MAX_NAME = 255


class NoSuchOutput(Exception):
    """The run's folder has no plain file of this name that belongs to the run."""


def with_files_saved(result: Any, folder: Path, save: SaveOutput) -> Any:
    """Return a copy of the result with references in place of the files that it names: those of `ctx.save`,
    and texts that are the path of a file in the run's folder.

    A file that the result names several times is saved once. Raises RunFailed for a saved file that is not
    there, OutputRefused and OutputNotStored.
    """
    root = f"{folder}/"
    known: dict[str, dict[str, str]] = {}

    def replaced(value: Any) -> Any:
        if type(value) is str and value.startswith(root):
            place = value.removeprefix(root)
            try:
                if place not in known:
                    known[place] = _saved(folder, place, save, name=Path(value).name)
            except NoSuchOutput:
                return value
            return dict(known[place])
        if type(value) is list:
            return [replaced(item) for item in value]
        if type(value) is not dict:
            return value
        said = value.get(OUTPUT) if len(value) == 1 else None
        if isinstance(said, Mapping) and isinstance(said.get("file"), str):
            if said["file"] not in known:
                known[said["file"]] = _declared(folder, said, save)
            return dict(known[said["file"]])
        return {key: replaced(item) for key, item in value.items()}

    return replaced(result)


def _declared(folder: Path, said: Mapping[str, Any], save: SaveOutput) -> dict[str, str]:
    name, content_type = said.get("name"), said.get("content_type")
    plain_name = name if isinstance(name, str) else ""
    plain_type = content_type if isinstance(content_type, str) and _TYPE.match(content_type) else ""
    try:
        return _saved(folder, said["file"], save, name=plain_name, content_type=plain_type)
    except NoSuchOutput:
        raise RunFailed(f"The result names a file that the run has not saved: {plain_name[:80]!r}.") from None


def _saved(
    folder: Path, place: str, save: SaveOutput, *, name: str, content_type: str = ""
) -> dict[str, str]:
    with _opened(folder, place) as file:
        try:
            return save(file, name=label(name), content_type=content_type)
        except OSError as error:
            raise OutputRefused(f"A file of the run can't be read: {error.strerror}.") from None


def label(name: str) -> str:
    """Return the file name as a label for downloads: its last part, printable."""
    last = name.replace("\\", "/").rstrip("/").rpartition("/")[2]
    shown = printable(last)[:MAX_NAME]
    return "" if shown in (".", "..") else shown


@contextmanager
def _opened(folder: Path, place: str) -> Iterator[BinaryIO]:
    """Open a file below the run's folder. Raises NoSuchOutput."""
    parts = place.split("/")
    if "\0" in place or any(part in ("", ".", "..") for part in parts):
        raise NoSuchOutput
    try:
        descriptor, owner = _descend(folder, parts)
    except OSError:
        raise NoSuchOutput from None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != owner:
            raise NoSuchOutput
        yield file


def _descend(folder: Path, parts: list[str]) -> tuple[int, int]:
    """Return a descriptor of the file, and the owner of the folder. Raises OSError."""
    at = os.open(folder, _FOLDER)
    try:
        owner = os.fstat(at).st_uid
        for part in parts[:-1]:
            inner = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = inner
        return os.open(parts[-1], _FILE, dir_fd=at), owner
    finally:
        os.close(at)
