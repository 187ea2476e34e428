"""The folder of a local store, and its failures."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from artifacts.store.local import LocalStore


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
