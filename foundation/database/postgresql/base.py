"""Django's PostgreSQL backend, but for errors of a read-only session: an outage, which ends with a new
connection."""

from __future__ import annotations

import time
from functools import cached_property
from types import TracebackType
from typing import Any

from django.db import OperationalError
from django.db.backends.postgresql import base
from django.db.utils import DatabaseErrorWrapper
from psycopg.errors import ReadOnlySqlTransaction

READ_ONLY_SECONDS = 1.0
"""A session that refuses writes is kept for so long: reads go on during an outage, and need not connect each
time."""
_REPORTED = ("default_transaction_read_only", "in_hot_standby")
"""Parameters of its session that the server reports unasked, from PostgreSQL 14 on."""


class DatabaseWrapper(base.DatabaseWrapper):
    connected_at = 0.0
    was_read_only = False
    """The server refused a write of this connection. A session keeps `default_transaction_read_only`, and its
    server, which may have become a standby behind a proxy."""

    def get_new_connection(self, conn_params: Any) -> Any:
        self.was_read_only, self.connected_at = False, time.monotonic()
        return super().get_new_connection(conn_params)

    def is_usable(self) -> bool:
        return not self.was_read_only and super().is_usable()

    def close_if_unusable_or_obsolete(self) -> None:
        """As Django's, and close a session that would refuse its first write although others may write."""
        is_idle = self.connection is not None and not self.in_atomic_block
        if is_idle and self._is_read_only() and time.monotonic() - self.connected_at > READ_ONLY_SECONDS:
            self.close()
        super().close_if_unusable_or_obsolete()

    def _is_read_only(self) -> bool:
        info = self.connection.info
        return not self.connection.closed and any(info.parameter_status(name) == "on" for name in _REPORTED)

    @cached_property
    def wrap_database_errors(self) -> DatabaseErrorWrapper:
        return _Errors(self)


class _Errors(DatabaseErrorWrapper):
    """Raises OperationalError in place of InternalError for a read-only session, so that it is an outage for
    all callers and not the statement's fault."""

    wrapper: DatabaseWrapper

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc_value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if isinstance(exc_value, ReadOnlySqlTransaction):
            self.wrapper.errors_occurred = self.wrapper.was_read_only = True
            raise OperationalError(*exc_value.args).with_traceback(traceback) from exc_value
        super().__exit__(exc_type, exc_value, traceback)
