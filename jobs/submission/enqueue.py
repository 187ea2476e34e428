"""After the commit: tickets into the line, wakes to the workers. Best effort; the reconciler repairs.

A submit is answered within 3.5 s whatever Redis and the broker do: no push begins later than `_SLOW_SECONDS`
(one takes three at most), and no wake leaves after that (sending them takes three at most). The fill sends
what was not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

import structlog

from gpus.leasing.values import Pushed, PushResult, Wakes
from gpus.protocol import PushOutcome
from gpus.registry import queries as registry
from jobs.domain.errors import Refused
from jobs.domain.states import JobState
from jobs.limits import rate_limits
from jobs.models import Job
from jobs.ports import Ports
from jobs.submission.enqueue_retries import push_later
from jobs.submission.outcomes import Item, Outcome, Submitted, WaitReason

log = structlog.get_logger()

_SLOW_SECONDS = rate_limits.SLOW_SECONDS
_NOTHING = Pushed((), ())


def placed(items: Sequence[Item], ports: Ports) -> tuple[Item, ...]:
    """Pushes the tickets of all queued jobs; also of replayed ones, whose first push may have failed."""
    waiting: dict[tuple[str, str], dict[str, Job]] = {}
    for item in items:
        if isinstance(item, Submitted) and item.job.state == JobState.QUEUED:
            waiting.setdefault((item.job.fleet, item.job.pool), {})[item.job.id] = item.job
    began = ports.clock.monotonic()
    results: dict[str, PushResult] = {}
    wakes: list[Wakes] = []
    failing: set[str] = set()
    for (fleet, pool), jobs in waiting.items():
        if ports.clock.monotonic() - began > _SLOW_SECONDS:
            log.warning("tickets_not_pushed", pool=pool, jobs=len(jobs), error="Redis is slow")
            pushed = _NOTHING
        else:
            pushed = _push(fleet, pool, list(jobs.values()), ports)
        if not pushed.results:
            push_later(fleet, pool, [job.ticket for job in jobs.values()], ports)
        results |= zip(jobs, pushed.results, strict=False)
        wakes += pushed.wakes
        failing |= pushed.failing
    if wakes and ports.clock.monotonic() - began <= _SLOW_SECONDS:
        ports.send_wakes(wakes)
    return tuple(_with_place(item, results, failing) for item in items)


def _push(fleet: str, pool: str, jobs: Sequence[Job], ports: Ports) -> Pushed:
    tickets = [job.ticket for job in jobs]
    try:
        return (
            rate_limits.ask_redis(
                "tickets_not_pushed", lambda: ports.leases(fleet).push(pool, tickets), ports
            )
            or _NOTHING
        )
    except Exception as error:  # the jobs are committed: no defect of ours may make the answer say otherwise
        log.error("tickets_not_pushed", pool=pool, jobs=len(jobs), exc_info=error)
        return _NOTHING


def _with_place(item: Item, results: Mapping[str, PushResult], failing: Set[str]) -> Item:
    if isinstance(item, Refused):
        return item
    if item.job.state == JobState.SCHEDULED:
        return replace(item, wait_reason=WaitReason.LATER_START)
    if item.outcome is not Outcome.QUEUED:
        return item
    result = results.get(item.job.id)
    if result is not None and result.outcome in (PushOutcome.LEASED, PushOutcome.HELD):
        return replace(item, outcome=Outcome.LEASED, position=None)
    position = result.position if result else None
    if item.job.model in failing or not registry.has_capacity(item.job.model):
        return replace(item, position=position, wait_reason=WaitReason.NO_CAPACITY)
    if result is None:
        return item
    return replace(item, position=position, starts=result.starts, wait_reason=WaitReason.BUSY)
