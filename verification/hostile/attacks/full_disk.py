"""PostgreSQL on a full disk while a tenant submits as fast as it can."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verification.hostile.attacks.full_store import FullStore

if TYPE_CHECKING:
    from verification.hostile.environment import Environment

MAX_BYTES = 1024**3
"""A larger disk was not made to be filled."""
_STEP_BYTES = 1024 * 1024
_DISK_FULL = "53100"
_MAX_SEGMENTS = 200


class FullDisk(FullStore):
    """The data folder is on a small file system of this machine (`verification.hostile.small_disk`)."""

    id, title = "n36", "submits on 8 connections while the disk of PostgreSQL is full"
    seconds, recovery_seconds = 10.0, 15.0

    def skip(self, env: Environment) -> str:
        missing = super().skip(env)
        if missing:
            return missing
        folder = data_folder(env.system.database_url)
        small = folder is not None and is_small(folder)
        return "" if small else "it needs a PostgreSQL on a small disk: verification.hostile.small_disk"

    def exhaust(self, url: str) -> None:
        """Hook: further load on the server once its disk is full."""

    def body(self, env: Environment) -> dict[str, Any]:
        """Large enough to need new pages soon."""
        return {**super().body(env), "metadata": {"ballast": "x" * 4000}}

    @contextmanager
    def full(self, env: Environment) -> Iterator[None]:
        url = env.system.database_url
        folder = data_folder(url)
        assert folder is not None
        ballast = folder.parent / f"{env.prefix}-ballast"
        try:
            fill(ballast)
            self.exhaust(url)
            yield
            self.must(refuses_writes(url), "PostgreSQL wrote new pages: its disk was not full")
        finally:
            ballast.unlink(missing_ok=True)
        refused = sum(times for label, times in self.answers.items() if label.startswith("503"))
        self.must(refused > 0, "no submit was refused with 503")


class FullLog(FullDisk):
    """PostgreSQL exits when it can't write its log, and starts again only once there is space."""

    id, title = "n37", "the same, until PostgreSQL can't write its log and ends"
    recovery_seconds = 40.0

    def exhaust(self, url: str) -> None:
        self.must(exhausts_log(url), "PostgreSQL still had segments for its log")


def data_folder(url: str) -> Path | None:
    """Return the server's data folder; None if it is no PostgreSQL, or not on this machine."""
    if not url.startswith(("postgresql://", "postgres://")):
        return None
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        (folder,) = connection.execute("SELECT current_setting('data_directory')").fetchone() or ("",)
    path = Path(folder)
    return path if folder and os.access(path, os.W_OK) else None


def is_small(folder: Path) -> bool:
    """Return True if the file system is small enough to be filled."""
    disk = os.statvfs(folder)
    return disk.f_blocks * disk.f_frsize <= MAX_BYTES


def fill(ballast: Path) -> None:
    """Write until the file system has no page left."""
    with ballast.open("wb", buffering=0) as file:
        for size in (_STEP_BYTES, os.sysconf("SC_PAGE_SIZE")):
            piece = bytes(size)
            with suppress(OSError):
                while True:
                    file.write(piece)


def exhausts_log(url: str) -> bool:
    """Start new segments of the write-ahead log until the server exits. Return False if it does not."""
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=5, autocommit=True) as connection:
            for _ in range(_MAX_SEGMENTS):
                connection.execute("SELECT pg_logical_emit_message(false, 'ballast', 'x')")
                connection.execute("SELECT pg_switch_wal()")
    except psycopg.OperationalError:
        return True
    return False


def refuses_writes(url: str) -> bool:
    """Return True if the server reports a full disk, or does not answer any more."""
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=5) as connection:  # rolled back
            connection.execute(
                "CREATE TABLE ballast AS SELECT repeat('x', 1000) FROM generate_series(1, 5000)"
            )
            connection.rollback()
    except psycopg.OperationalError as error:
        return error.sqlstate in (None, _DISK_FULL) or str(error.sqlstate).startswith("57P")
    return False


ATTACKS = (FullDisk, FullLog)
