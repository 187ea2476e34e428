"""The blocking calls about schedules: `Client.schedules`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from .schedule_calls import Backfill, Firing, Preview, Schedule, ScheduleCalls
from .urllib_transport import iterate_blocking, run_blocking


class Schedules:
    """Schedules and their firings. `dispatcher_client.schedule_calls` has the details of each call."""

    def __init__(self, calls: ScheduleCalls) -> None:
        self._calls = calls

    def put(self, name: str, schedule: Mapping[str, Any]) -> Schedule:
        """Create or replace a schedule. Raises `Invalid` with the place of each error."""
        return run_blocking(self._calls.put(name, schedule))

    def get(self, name: str) -> Schedule:
        """Return a schedule."""
        return run_blocking(self._calls.get(name))

    def list(self) -> Iterator[Schedule]:
        """Yield the tenant's schedules by name."""
        return iterate_blocking(self._calls.list())

    def delete(self, name: str) -> None:
        """Delete a schedule with its firings; what it started goes on."""
        run_blocking(self._calls.delete(name))

    def preview(self, schedule: str | Mapping[str, Any], count: int = 10) -> Preview:
        """Return the next fire times of a stored schedule, by its name, or of fields that are not stored."""
        return run_blocking(self._calls.preview(schedule, count))

    def trigger(self, name: str, *, idempotency_key: str | None = None) -> Firing:
        """Start the target of a schedule now, exactly once."""
        return run_blocking(self._calls.trigger(name, idempotency_key=idempotency_key))

    def backfill(
        self,
        name: str,
        first: datetime,
        last: datetime,
        *,
        parallel: bool = False,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Backfill:
        """Start the due times from first to last, both inclusive. dry_run: only count them."""
        return run_blocking(
            self._calls.backfill(
                name, first, last, parallel=parallel, dry_run=dry_run, idempotency_key=idempotency_key
            )
        )

    def cancel_backfills(self, name: str) -> int:
        """Cancel the backfills of a schedule that wait; return how many of their firings did."""
        return run_blocking(self._calls.cancel_backfills(name))

    def pause(self, name: str, *, until: datetime | None = None, reason: str | None = None) -> Schedule:
        """Skip the due times from now on, until a time or until `resume`."""
        return run_blocking(self._calls.pause(name, until=until, reason=reason))

    def resume(self, name: str) -> Schedule:
        """End a pause."""
        return run_blocking(self._calls.resume(name))

    def firings(self, name: str, *, outcome: str | None = None) -> Iterator[Firing]:
        """Yield what became of a schedule's due times, newest first."""
        return iterate_blocking(self._calls.firings(name, outcome=outcome))
