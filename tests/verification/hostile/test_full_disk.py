"""The attack on PostgreSQL's disk: what it takes for a small one, and for a full one."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from verification.hostile.attacks import full_disk
from verification.hostile.attacks.full_disk import (
    MOST_BYTES,
    FullDisk,
    fill,
    is_small,
    refuses_writes,
    uses_up_log,
)

URL = "postgresql://postgres@127.0.0.1:1/postgres"


def ground(url: str) -> Any:
    return SimpleNamespace(inside=True, system=SimpleNamespace(database_url=url))


@pytest.mark.parametrize(("blocks", "small"), [(MOST_BYTES // 4096, True), (MOST_BYTES // 4096 + 1, False)])
def test_only_a_small_disk_is_filled(blocks: int, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimpleNamespace(f_blocks=blocks, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    assert is_small(Path("/data")) is small
    monkeypatch.setattr(full_disk, "data_folder", lambda url: Path("/data"))
    assert (FullDisk().skip(ground(URL)) == "") is small


def test_without_a_look_at_its_files_nothing_is_filled() -> None:
    assert "small disk" in FullDisk().skip(ground("sqlite:///db.sqlite3"))


def test_the_last_page_is_filled_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    left = 2 * 1024 * 1024 + 3 * os.sysconf("SC_PAGE_SIZE")
    written: list[int] = []

    class Disk:
        def __enter__(self) -> Disk:
            return self

        def __exit__(self, *_: object) -> None: ...

        def write(self, piece: bytes) -> None:
            if sum(written) + len(piece) > left:
                raise OSError(errno.ENOSPC, "No space left on device")
            written.append(len(piece))

    monkeypatch.setattr(Path, "open", lambda *_, **__: Disk())
    fill(tmp_path / "ballast")
    assert sum(written) == left


class _Full(psycopg.errors.DiskFull): ...


class _Refused(psycopg.OperationalError): ...


class Server:
    """What a connection to it does. breaks_after: statements that it executes."""

    def __init__(self, error: Exception | None, breaks_after: int = 0) -> None:
        self._error, self._left = error, breaks_after

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None: ...

    def execute(self, sql: str) -> None:
        self._left -= 1
        if self._error is not None and self._left < 0:
            raise self._error

    def rollback(self) -> None: ...


@pytest.mark.parametrize(
    ("error", "full"),
    [(_Full("No space left on device"), True), (_Refused("connection refused"), True), (None, False)],
)
def test_a_disk_is_full_where_the_server_writes_nothing(
    error: Exception | None, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg, "connect", lambda *_, **__: Server(error))
    assert refuses_writes(URL) is full


@pytest.mark.parametrize(("error", "ends"), [(_Refused("server closed the connection"), True), (None, False)])
def test_the_log_is_used_up_where_the_server_ends(
    error: Exception | None, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg, "connect", lambda *_, **__: Server(error, breaks_after=7))
    assert uses_up_log(URL) is ends
