"""The folder of a local store, and its failures."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from artifacts.keys import ObjectKey
from artifacts.store.local import LocalStore


class MemoryRecord:
    """A database's record of its folder. before_read: called once, before the next read."""

    def __init__(self, folder_id: str = "", objects: Sequence[ObjectKey] = ()) -> None:
        self.folder_id, self.objects, self.reads = folder_id, objects, 0
        self.before_read: Callable[[], object] | None = None

    def read(self) -> str:
        before, self.before_read = self.before_read, None
        if before is not None:
            before()
        self.reads += 1
        return self.folder_id

    def write(self, folder_id: str) -> str:
        self.folder_id = self.folder_id or folder_id
        return self.folder_id

    def newest_objects(self, most: int) -> Sequence[ObjectKey]:
        return self.objects[:most]


def files(store: LocalStore) -> list[str]:
    """Everything in the store that is not a folder."""
    found = [path for path in store.root.rglob("*") if path.is_symlink() or not path.is_dir()]
    return sorted(str(path.relative_to(store.root)) for path in found)


@contextmanager
def failing(monkeypatch: pytest.MonkeyPatch, name: str, error: int) -> Iterator[None]:
    """The system call fails in files of the store."""

    def fail(*_: Any, **__: Any) -> Any:
        raise OSError(error, os.strerror(error))

    with monkeypatch.context() as patch:
        patch.setattr(os, name, fail)
        yield
