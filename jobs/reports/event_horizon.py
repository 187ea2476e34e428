"""Up to which number the event log is decided: no event with that number or a lower one can still appear."""

from __future__ import annotations

from dataclasses import dataclass, field

from django.db import connection
from django.db.models import Max

from jobs.models import Event


@dataclass(slots=True)
class EventHorizon:
    """SQLite writes one transaction at a time, so what is committed is all there is. PostgreSQL gives numbers
    before it commits: a number is decided once every transaction has ended that was under way when the
    number was first seen (an event is never the first that its transaction writes, so its transaction has
    an id by then). Kept per process; a new one knows at its second look.

    event_id: the highest number known to be decided. _seen: the highest number seen, and the id of a
    transaction that began after that.
    """

    event_id: int = 0
    _seen: tuple[int, int] | None = field(default=None)

    def advance(self) -> int:
        """Advance the horizon and return `event_id`."""
        last = Event.objects.aggregate(last=Max("id"))["last"] or 0
        if connection.vendor != "postgresql":
            self.event_id = last
            return last
        oldest, coming = _transactions()
        if self._seen is None or oldest >= self._seen[1]:
            self.event_id = self._seen[0] if self._seen else 0
            self._seen = (last, coming)
        return self.event_id


def _transactions() -> tuple[int, int]:
    """The oldest transaction under way, and this one: asked after the number was read. The upper end of the
    snapshot would not do, transactions under way may lie beyond it."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_snapshot_xmin(pg_current_snapshot())::text, pg_current_xact_id()::text")
        oldest, coming = cursor.fetchone()
    return int(oldest), int(coming)
