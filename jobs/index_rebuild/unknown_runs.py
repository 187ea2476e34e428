"""Runs that only their server still knows of: their worker died before their start was committed, and Redis
lost their lease before anybody saw that it ran out.

No row names them and no keeper announces them, so an index that is made anew would give their slots away.
Their servers are asked before it opens, those that are away then by `lock_sync` once they answer; the
`quarantine` sweep finds out when the runs are over. A server does not say which slot such a run has: any idle
one is kept, because what must be right is how many. A server that only counts its jobs can't tell: other
clients' jobs are among them, for which a rebuild would shut all its slots.
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

REASON = "its server runs what nobody else knows of"


def askable(servers: Sequence[Server]) -> list[Server]:
    """Those that answered when they were asked last, with their placements: nobody waits for the others
    again. What a pinned worker said of its own died with Redis."""
    found = [server for server in servers if server.host is None and server.healthy is not False]
    queries.read_placements(found)
    return found


def quarantine_unknown_runs(servers: Sequence[Server], leases: Leases, ports: Ports) -> None:
    """Asks these servers, as many at once as the ports say, and writes a quarantine for each such run. Once
    the index knows the leases of the database and of the keepers."""
    asked = [(server, "") for server in servers]
    healths = probe_all(asked, transport=ports.transport, at_once=ports.parallel_probes)
    for server, health in zip(servers, healths, strict=True):
        if health.jobs:
            keep_slots(server, health, leases.slots(server.name), leases, ports)


def keep_slots(
    server: Server, health: Health, views: Sequence[SlotView], leases: Leases, ports: Ports
) -> list[str]:
    """A quarantine for each run of ours that the server names and that neither these slots nor a row know.
    Returns the slots that are kept."""
    said = {attempt: job for job, attempt in health.jobs or () if attempt}
    unknown = set(said) - {attempt for view in views for attempt in (view.attempt_id, view.follower_id)}
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
    models = dict(Job.objects.filter(id__in=[said[one] for one in unknown]).values_list("id", "model"))
    # what is no job of ours is none of our business
    ours = sorted(one for one in unknown if said[one] in models)
    # slots of a paused or draining server are off; after the resume they would be free while the run goes on
    idle = [
        view.slot for view in views if view.state in ("free", "off") and split_slot(view.slot)[1] not in kept
    ]
    kept_now = list(zip(idle, ours, strict=False))
    for slot, attempt in kept_now:
        job = said[attempt]
        log.warning("stranger_found", slot=slot, job_id=job, attempt=attempt)
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
