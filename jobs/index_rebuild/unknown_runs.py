"""Runs that only their server reports: their worker died before the start was committed, and Redis lost the
lease before a sweep saw that it had expired.

No row names them and no worker announces them, so a rebuilt index would grant their slots again. Before it
opens, the rebuild reads the health of their servers; the `lock_sync` sweep reads those that were away, once
they answer. The `quarantine` sweep notices when the runs are over. A server does not report the slot of such
a run: any idle slot is quarantined, since only the number matters. A server that reports only a count of jobs
can't be used: other clients' jobs are among them, for which a rebuild would quarantine all its slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import structlog

from gpus.health.health import probe_all
from gpus.leasing.contract import Leases
from gpus.leasing.values import SlotView
from gpus.models import QuarantinedSlot, Server
from gpus.protocol import split_slot
from gpus.registry import queries
from gpus.runners.base import Health
from jobs import transitions
from jobs.models import Attempt, Job
from jobs.ports import Ports

log = structlog.get_logger(__name__)

REASON = "its server reports a run that is neither in the database nor in Redis"


def servers_to_ask(servers: Sequence[Server]) -> list[Server]:
    """Return those of the servers that answered their last health check, with their placements. Not pinned
    servers: the reports of their workers were lost with Redis."""
    found = [server for server in servers if server.host is None and server.healthy is not False]
    queries.read_placements(found)
    return found


def quarantine_unknown_runs(servers: Sequence[Server], leases: Leases, ports: Ports) -> None:
    """Read the health of these servers, `ports.parallel_probes` at once, and quarantine a slot for each
    unknown run. Call it once the index has the leases of the database and of the workers."""
    asked = [(server, "") for server in servers]
    healths = probe_all(asked, transport=ports.transport, at_once=ports.parallel_probes)
    for server, health in zip(servers, healths, strict=True):
        if health.jobs:
            quarantine_slots(server, health, leases.slots(server.name), leases, ports)


def quarantine_slots(
    server: Server, health: Health, views: Sequence[SlotView], leases: Leases, ports: Ports
) -> list[str]:
    """Quarantine a slot for each run of ours that the server reports and that neither these slots nor a row
    name.

    health: as the server reported it. views: the server's slots in the index.
    Returns the names of the slots.
    """
    reported = {attempt: job for job, attempt in health.jobs or () if attempt}
    unknown = set(reported) - {attempt for view in views for attempt in (view.attempt_id, view.follower_id)}
    if not unknown:
        return []
    open_rows = QuarantinedSlot.objects.filter(server=server, freed_at=None)
    kept = {
        slot: names for slot, *names in open_rows.values_list("slot", "attempt_id", "follower_attempt_id")
    }
    unknown -= {
        *chain.from_iterable(kept.values()),
        *Attempt.objects.filter(id__in=unknown).values_list("id", flat=True),
    }
    models = dict(Job.objects.filter(id__in=[reported[one] for one in unknown]).values_list("id", "model"))
    # runs of other clients
    ours = sorted(one for one in unknown if reported[one] in models)
    # a paused or draining server's slots are off: after a resume they would be free while the run goes on
    idle = [
        view.slot for view in views if view.state in ("free", "off") and split_slot(view.slot)[1] not in kept
    ]
    kept_now = list(zip(idle, ours, strict=False))
    for slot, attempt in kept_now:
        job = reported[attempt]
        log.warning("unknown_run_found", slot=slot, job_id=job, attempt=attempt)
        transitions.quarantine_slot(
            slot,
            attempt_id=attempt,
            job_id=job,
            model=models[job],
            reason=REASON,
            at=ports.clock.now(),
            run_limit_seconds=ports.registry.spec_or_defaults(models[job], server.pool_id).run_limit_seconds,
        )
        leases.quarantine(slot, attempt)
    return [slot for slot, _ in kept_now]
