"""The attack on PostgreSQL's disk: which disks count as small, and as full."""

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
    MAX_BYTES,
    FullDisk,
    exhausts_log,
    fill,
    is_small,
    refuses_writes,
)

URL = "postgresql://postgres@127.0.0.1:1/postgres"


def env(url: str) -> Any:
    return SimpleNamespace(sees_processes=True, system=SimpleNamespace(database_url=url))


@pytest.mark.parametrize(("blocks", "small"), [(MAX_BYTES // 4096, True), (MAX_BYTES // 4096 + 1, False)])
def test_only_a_small_disk_is_filled(blocks: int, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = SimpleNamespace(f_blocks=blocks, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: disk)
    assert is_small(Path("/data")) is small
    monkeypatch.setattr(full_disk, "data_folder", lambda url: Path("/data"))
    assert (FullDisk().skip(env(URL)) == "") is small


def test_without_access_to_its_files_no_disk_is_filled() -> None:
    assert "small disk" in FullDisk().skip(env("sqlite:///db.sqlite3"))


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
    """The behaviour of a connection. breaks_after: number of statements that it executes."""

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
def test_a_disk_is_full_if_the_server_can_write_no_page(
    error: Exception | None, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg, "connect", lambda *_, **__: Server(error))
    assert refuses_writes(URL) is full


@pytest.mark.parametrize(("error", "ends"), [(_Refused("server closed the connection"), True), (None, False)])
def test_the_log_is_exhausted_if_the_server_exits(
    error: Exception | None, ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(psycopg, "connect", lambda *_, **__: Server(error, breaks_after=7))
    assert exhausts_log(URL) is ends
