"""What a database connection that is kept remembers of a request.

Python's sqlite3 keeps the values that a compiled statement was executed with last: 32 MB of jobs would stay
in each thread that once stored them. So the connection is closed after a long body, and its statements with
it.
"""

from __future__ import annotations

from django.db import connection

MOST_BYTES = 256 * 1024
"""Of bodies whose values may stay."""


def forget_long_values(body_bytes: int) -> None:
    """Called in the thread that answered requests with so many bytes of body."""
    if body_bytes > MOST_BYTES and connection.vendor == "sqlite":
        connection.close()
