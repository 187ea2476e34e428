"""Django's PostgreSQL backend, but for errors of a read-only session: an outage, which ends with a new
connection."""

from __future__ import annotations

from functools import cached_property
from types import TracebackType
from typing import Any

from django.db import OperationalError
from django.db.backends.postgresql import base
from django.db.utils import DatabaseErrorWrapper
from psycopg.errors import ReadOnlySqlTransaction


class DatabaseWrapper(base.DatabaseWrapper):
    was_read_only = False
    """The server refused a write of this connection. A session keeps `default_transaction_read_only`, and its
    server, which may have become a standby behind a proxy."""

    def get_new_connection(self, conn_params: Any) -> Any:
        self.was_read_only = False
        return super().get_new_connection(conn_params)

    def is_usable(self) -> bool:
        return not self.was_read_only and super().is_usable()

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
