"""Calls about schedules, written once: `AsyncClient.schedules` has them; `Client.schedules` runs each to its
end."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from .reading import read_answer
from .transport import Request, key_of_request
from .workflow_calls import Calls


@dataclass(frozen=True, slots=True)
class FireTime:
    """A due time to come. fires_at: with the jitter. local: in the schedule's time zone."""

    due_at: datetime
    fires_at: datetime
    local: str


@dataclass(frozen=True, slots=True)
class ScheduleError:
    """Why a schedule has no due time."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class BacklogFiring:
    """A firing under way that others wait for."""

    due_at: datetime
    job_id: str | None
    run_id: str | None


@dataclass(frozen=True, slots=True)
class BacklogLane:
    """Firings that wait for each other. first_due_at: of the one that starts next. waits_for: at
    most five."""

    waiting: int
    first_due_at: datetime
    waits_for: tuple[BacklogFiring, ...]
    message: str


@dataclass(frozen=True, slots=True)
class Backlog:
    """Firings that wait: by the timetable (`own`), and of backfills."""

    own: BacklogLane | None
    backfills: BacklogLane | None


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule. words: its due times in words. next: the next ten; None in lists, as `submit`,
    `workflow` and `backlog`, which is None too while no firing waits."""

    name: str
    cron: str | None
    timezone: str | None
    every_seconds: float | None
    at: datetime | None
    words: str
    overlap: str
    catch_up: str
    catch_up_seconds: float
    jitter_seconds: float
    start_at: datetime | None
    end_at: datetime | None
    pause_after_failures: int | None
    paused: bool
    paused_until: datetime | None
    pause_reason: str | None
    failures: int
    error: ScheduleError | None
    next_due_at: datetime | None
    created_at: datetime
    updated_at: datetime
    submit: Any
    workflow: Any
    next: tuple[FireTime, ...] | None
    backlog: Backlog | None


@dataclass(frozen=True, slots=True)
class Firing:
    """The outcome of a due time, or of `count` due times in a row: started, waiting, skipped or missed.
    cause: timetable, or request (a trigger or a backfill). by: the sender of the request."""

    firing_id: str
    due_at: datetime
    until_at: datetime | None
    count: int
    outcome: str
    reason: str | None
    detail: str | None
    cause: str
    by: str | None
    job_id: str | None
    run_id: str | None
    at: datetime
    ended_at: datetime | None
    end_state: str | None


@dataclass(frozen=True, slots=True)
class Backfill:
    """The due times of a backfill."""

    count: int
    first: datetime
    last: datetime


@dataclass(frozen=True, slots=True)
class _Cancelled:
    count: int


@dataclass(frozen=True, slots=True)
class Preview:
    """Fire times. words: the due times in words. paused: without an end: `next` has the fire times if the
    schedule were resumed now."""

    words: str
    paused: bool
    next: tuple[FireTime, ...]


class ScheduleCalls(Calls):
    """Schedules and their firings. api: requests to the dispatcher.

    Each call raises `Problem` for an error answer, and after the last retry `NoAnswer` or `Unavailable`.
    """

    async def put(self, name: str, schedule: Mapping[str, Any]) -> Schedule:
        """Create or replace a schedule. schedule: the fields of docs/reference/schedules.md. Raises `Invalid`
        with the place of each error."""
        request = Request("PUT", _path(name), self._timeout_seconds, dict(schedule))
        return await self._api.send(request, _read_schedule, accepted=(200, 201))

    async def get(self, name: str) -> Schedule:
        """Return a schedule."""
        return await self._get(_path(name), _read_schedule)

    async def list(self) -> AsyncGenerator[Schedule, None]:
        """Yield the tenant's schedules by name."""
        async for row in self._rows("/schedules", {}, Schedule):
            yield row

    async def delete(self, name: str) -> None:
        """Delete a schedule with its firings; what it started goes on. Raises `NotFound`, also if the answer
        to an earlier try was lost."""
        request = Request("DELETE", _path(name), self._timeout_seconds)
        await self._api.send(request, lambda document: None, accepted=(204,))

    async def preview(self, schedule: str | Mapping[str, Any], count: int = 10) -> Preview:
        """Return the next fire times of a stored schedule, by its name, or of fields that are not stored:
        with the `name` of a stored one, as if they replaced it."""
        query = urlencode({"n": count})
        if isinstance(schedule, str):
            return await self._get(f"{_path(schedule)}/preview?{query}", _read_preview)
        return await self._post(f"/schedules/preview?{query}", _read_preview, dict(schedule))

    async def trigger(self, name: str, *, idempotency_key: str | None = None) -> Firing:
        """Start the target of a schedule now, exactly once for all tries of this call."""
        headers = {"Idempotency-Key": key_of_request(idempotency_key)}
        return await self._post(f"{_path(name)}/trigger", _read_firing, headers=headers)

    async def backfill(
        self,
        name: str,
        first: datetime,
        last: datetime,
        *,
        parallel: bool = False,
        dry_run: bool = False,
        idempotency_key: str | None = None,
    ) -> Backfill:
        """Start the due times from first to last, both inclusive, which need a zone; one after the other
        unless `parallel`. dry_run: only count them."""
        body = {
            "from": first.isoformat(),
            "to": last.isoformat(),
            "parallel": parallel,
            "dry_run": dry_run,
        }
        headers = {"Idempotency-Key": key_of_request(idempotency_key)}
        return await self._post(f"{_path(name)}/backfill", _read_backfill, body, headers)

    async def cancel_backfills(self, name: str) -> int:
        """Cancel the backfills of a schedule that wait; return how many of their firings did. What has
        started goes on."""
        return (await self._post(f"{_path(name)}/backfill/cancel", _read_cancelled)).count

    async def pause(self, name: str, *, until: datetime | None = None, reason: str | None = None) -> Schedule:
        """Skip the due times from now on, until a time to come (with a zone) or until `resume`."""
        body = {"until": None if until is None else until.isoformat(), "reason": reason}
        return await self._post(f"{_path(name)}/pause", _read_schedule, body)

    async def resume(self, name: str) -> Schedule:
        """End a pause."""
        return await self._post(f"{_path(name)}/resume", _read_schedule)

    async def firings(self, name: str, *, outcome: str | None = None) -> AsyncGenerator[Firing, None]:
        """Yield what became of a schedule's due times, newest first."""
        async for row in self._rows(f"{_path(name)}/firings", {"outcome": outcome}, Firing):
            yield row


def _read_schedule(document: Mapping[str, Any]) -> Schedule:
    return read_answer(Schedule, document)


def _read_firing(document: Mapping[str, Any]) -> Firing:
    return read_answer(Firing, document)


def _read_backfill(document: Mapping[str, Any]) -> Backfill:
    return read_answer(Backfill, document)


def _read_cancelled(document: Mapping[str, Any]) -> _Cancelled:
    return read_answer(_Cancelled, document)


def _read_preview(document: Mapping[str, Any]) -> Preview:
    return read_answer(Preview, document)


def _path(name: str) -> str:
    return f"/schedules/{quote(name, safe='')}"
