"""After the commit: tickets into the line, wakes to the workers. Best effort; the reconciler repairs."""

from __future__ import annotations

from collections.abc import Sequence

import structlog

from gpus.errors import LeasingUnavailable
from gpus.protocol import PushOutcome, PushResult
from jobs.errors import Refused
from jobs.models import Job
from jobs.services.ports import Ports
from jobs.services.submitted import Item, Outcome, Submitted
from jobs.states import JobState

log = structlog.get_logger()

_SLOW_SECONDS = 0.5
_REST_SECONDS = 2.0
_no_push_until = 0.0
"""Monotonic. A Redis that hangs costs one thread its time-out, not every thread its own."""


def placed(items: Sequence[Item], ports: Ports) -> tuple[Item, ...]:
    """Pushes the tickets of all queued jobs; also of replayed ones, whose first push may have failed."""
    waiting: dict[tuple[str, str], dict[str, Job]] = {}
    for item in items:
        if isinstance(item, Submitted) and item.job.state == JobState.QUEUED:
            waiting.setdefault((item.job.fleet, item.job.pool), {})[item.job.id] = item.job
    results: dict[str, PushResult] = {}
    for (fleet, pool), jobs in waiting.items():
        pushed = _push(fleet, pool, list(jobs.values()), ports)
        results |= zip(jobs, pushed, strict=False)
    return tuple(_with_place(item, results) for item in items)


def _push(fleet: str, pool: str, jobs: Sequence[Job], ports: Ports) -> Sequence[PushResult]:
    global _no_push_until
    started = ports.clock.monotonic()
    if started < _no_push_until:
        return ()
    try:
        pushed = ports.leases(fleet).push(pool, [job.ticket for job in jobs])
    except LeasingUnavailable as error:
        now = ports.clock.monotonic()
        if now - started > _SLOW_SECONDS:
            _no_push_until = now + _REST_SECONDS
        log.warning("tickets_not_pushed", pool=pool, jobs=len(jobs), error=str(error))
        return ()
    ports.send_wakes(pushed.wakes)
    return pushed.results


def _with_place(item: Item, results: dict[str, PushResult]) -> Item:
    if isinstance(item, Refused) or item.job.id not in results:
        return item
    result = results[item.job.id]
    if result.outcome in (PushOutcome.LEASED, PushOutcome.HELD):
        return Submitted(item.job, Outcome.LEASED, None, item.replayed)
    return Submitted(item.job, Outcome.QUEUED, result.position, item.replayed)
