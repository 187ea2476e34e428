"""Kills a process inside a COMMIT. Python imports this file when it starts.

`DIES_AT` names a file with a process id and a query. As soon as this process has a transaction in which the
query finds a row, it removes the file, sends COMMIT, and is killed before it reads the answer. SQLite commits
in the process, which dies as that returns. Other processes may see the row first: a pipelined transaction has
sent its COMMIT by then.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Any

from django.db.backends.base.base import BaseDatabaseWrapper

_order = Path(os.environ["DIES_AT"])
_commit = BaseDatabaseWrapper._commit  # type: ignore[attr-defined]


def _commit_or_die(database: Any) -> None:
    if not _order.exists() or not _finds_a_row(database):
        _commit(database)
        return
    _order.unlink()
    if database.vendor == "sqlite":
        _commit(database)
    else:
        _send_commit(database.connection)
    os.kill(os.getpid(), signal.SIGKILL)


def _finds_a_row(database: Any) -> bool:
    with contextlib.suppress(FileNotFoundError):
        pid, _, query = _order.read_text().partition("\n")
        if int(pid) == os.getpid():
            with contextlib.closing(database.connection.cursor()) as cursor:
                return cursor.execute(query).fetchone() is not None
    return False


def _send_commit(connection: Any) -> None:
    pipeline, libpq = connection._pipeline, connection.pgconn
    if pipeline is None:
        libpq.send_query(b"COMMIT")
    else:
        while pipeline.command_queue:
            pipeline.command_queue.popleft()()
        libpq.send_query_params(b"COMMIT", None)
        libpq.pipeline_sync()
    while libpq.flush():
        pass


BaseDatabaseWrapper._commit = _commit_or_die  # type: ignore[attr-defined]
