"""The schedules of a trial: each follows from the tenants alone. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verification.proving.run_mix import WORKFLOW

MARK, DUE = "schedule", "due"
"""Fields of the payload of a schedule's jobs: its name and the due time."""
MINUTE = 60.0
CATCH_UP_SECONDS = 3600.0
GRACE_SECONDS = 30.0
"""A due time that is started up to so late is on time: the default of the setting."""


@dataclass(frozen=True, slots=True)
class PlannedSchedule:
    """A schedule of the load.

    period: seconds between due times, from its `start_at` on, or of full minutes by cron. seconds: duration
    of its jobs. model: None: it starts runs of a workflow.
    """

    name: str
    tenant: str
    period: float
    overlap: str
    catch_up: str
    seconds: float
    model: str | None
    is_cron: bool = False

    def body(self, *, start_at: str, end_at: str | None = None) -> dict[str, Any]:
        """Return the fields to store. start_at, end_at: with a time zone."""
        times: dict[str, Any] = (
            {"cron": "* * * * *", "timezone": "Europe/Berlin"}
            if self.is_cron
            else {"every_seconds": self.period}
        )
        bounds = {"start_at": start_at, **({} if end_at is None else {"end_at": end_at})}
        policy = {"overlap": self.overlap, "catch_up": self.catch_up, "catch_up_seconds": CATCH_UP_SECONDS}
        return {**times, **bounds, **policy, **self._target()}

    def _target(self) -> Mapping[str, Any]:
        if self.model is None:
            return {"workflow": {"name": WORKFLOW, "inputs": {"seconds": self.seconds, "number": 0}}}
        payload = {"number": 0, "seconds": self.seconds, MARK: self.name, DUE: {"$ref": "due_at"}}
        return {"submit": {"model": self.model, "payload": payload}}

    def due_times(self, start_at: float, after: float, end_at: float) -> Iterator[float]:
        """Yield the due times (Unix seconds) after `after` and up to end_at, computed without the
        dispatcher's code."""
        anchor = 0.0 if self.is_cron else start_at
        first = math.ceil((start_at - anchor) / self.period)
        number = max(first, math.floor((after - anchor) / self.period) + 1)
        while (due := anchor + number * self.period) <= end_at:
            yield due
            number += 1


def planned_schedules(
    *, prefix: str, tenants: Sequence[str], shortest: float, shorten: float = 1.0
) -> list[PlannedSchedule]:
    """Return the schedules of a trial: each overlap policy and each catch-up, spread over the tenants.

    shortest: the shortest period that the dispatcher allows. shorten: divides the duration of jobs."""
    image, video = f"{prefix}-image", f"{prefix}-video"
    kinds: Sequence[tuple[str, float, str, str, float, str | None]] = (
        ("allow-all", 4.0, "allow", "all", 0.2, image),
        ("queue-all", 5.0, "queue_all", "all", 0.5, video),
        ("queue-one", 6.0, "queue_one", "last", 1.0, image),
        ("cancel-none", 7.0, "cancel_previous", "none", 2.0, video),
        ("minute", MINUTE, "skip", "last", 0.3, video),
        ("film", 15.0, "skip", "all", 0.2, None),
    )
    return [
        PlannedSchedule(
            f"{prefix}-{name}",
            tenants[number % len(tenants)],
            max(period, shortest),
            overlap,
            catch_up,
            round(seconds / shorten, 3),
            model,
            is_cron=name == "minute",
        )
        for number, (name, period, overlap, catch_up, seconds, model) in enumerate(kinds)
    ]
