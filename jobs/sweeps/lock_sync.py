"""Differences between the health reports of servers and the leases and rows here.

A lease that its server does not confirm is only noted, never deleted: its worker polls the run and decides.
Three differences that no other part repairs are repaired here: accepted runs of an earlier boot that no
worker polls, slots that only Redis holds back (`StaleHolds`), and runs that only the server reports
(`index_rebuild.unknown_runs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from foundation.database import statements
from gpus.health.health import is_restart, record_health
from gpus.health.pinned_servers import probe_with_heartbeats
from gpus.leasing.contract import Leases
from gpus.leasing.values import SlotView
from gpus.models import QuarantinedSlot, Server
from gpus.protocol import slot_name, split_slot
from gpus.registry import queries
from gpus.runners.base import Health
from jobs.domain.states import LIVE_ATTEMPT_STATES, AttemptState
from jobs.execution import follow_ups
from jobs.execution.orphaned_runs import last_attempt_on, quarantine_unproven
from jobs.index_rebuild.unknown_runs import quarantine_slots
from jobs.models import Attempt
from jobs.operations.end_lost_attempt import Loss, lose_attempt
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_groups, sweep_rows

log = structlog.get_logger(__name__)

ROW_GRACE_SECONDS = 20.0
"""Longer than any commit: the row of a quarantine may not be committed yet."""
CHUNK = 64
YOUNG_SECONDS = 10.0
"""Minimum age of a lease whose absence from the server's job list is noted."""
_servers = statements.Read(lambda: Server.objects.select_related("pool").order_by("name"))


def _quarantine_or_free(server: Server, slot: str, leases: Leases, ports: Ports) -> bool:
    """Write the missing quarantine row if the slot's last attempt left no proof, else free the slot."""
    index = split_slot(slot)[1]
    last = last_attempt_on(server.name, index)
    if last is not None and last.state in LIVE_ATTEMPT_STATES:
        return False  # the sweep `orphans` ends the attempt and writes the row
    if not quarantine_unproven(server, index):
        log.warning("stale_slot_hold_freed", slot=slot)
        ports.send_wakes(leases.free_slot(slot))
    return True


class StaleHolds:
    """Slots that are in quarantine in Redis but have no open `QuarantinedSlot` row: a process died between
    the two writes.

    Keeps when each hold without a row was first seen (monotonic seconds).
    """

    def __init__(self) -> None:
        self._seen_since: dict[tuple[str, str | None], float] = {}

    def resolve(self, server: Server, views: Sequence[SlotView], leases: Leases, ports: Ports) -> SweepCount:
        """Resolve the holds of one server that are older than `ROW_GRACE_SECONDS`.

        repaired: slots that were freed, because their last attempt is proven over, or that got a row.
        """
        held_back = {(view.slot, view.attempt_id) for view in views if view.state == "quarantined"}
        for key in [
            key for key in self._seen_since if split_slot(key[0])[0] == server.name and key not in held_back
        ]:
            del self._seen_since[key]
        if not held_back:
            return SweepCount()
        with_row = set(
            QuarantinedSlot.objects.filter(server=server, freed_at=None).values_list("slot", flat=True)
        )
        monotonic = ports.clock.monotonic()
        stale = []
        for key in held_back:
            if split_slot(key[0])[1] in with_row:
                self._seen_since.pop(key, None)
            elif monotonic - self._seen_since.setdefault(key, monotonic) >= ROW_GRACE_SECONDS:
                stale.append(key[0])
        count = sweep_rows("held_back", stale, lambda slot: _quarantine_or_free(server, slot, leases, ports))
        return SweepCount(0, count.repaired, count.failed, count.notes)


@dataclass(frozen=True, slots=True)
class _Answer:
    """A server's answer to a health probe. had_run: a plain server (without health endpoint) had a live
    attempt just before the probe."""

    server: Server
    health: Health
    asked_at: datetime
    had_run: bool

    def __str__(self) -> str:
        return str(self.server.name)


def _compare(answer: _Answer, holds: StaleHolds, ports: Ports) -> SweepCount:
    server, health = answer.server, answer.health
    seen_at = server.checked_at
    restarted, is_busy = is_restart(server, health), _is_busy(answer)
    if not restarted and not is_busy:
        record_health(server, health, answer.asked_at)
    leases = ports.leases(server.pool.fleet)
    views = leases.slots(server.name)
    count = SweepCount(1) + holds.resolve(server, views, leases, ports)
    if restarted and seen_at is not None:
        count += _lose_unpolled(server, seen_at, views, leases, ports)
        record_health(server, health, answer.asked_at)  # last: the restart is detectable only until then
    if is_busy:
        return count
    count += SweepCount(repaired=_keep_for_unknown_runs(server, health, views, leases, ports))
    return count + SweepCount(notes=_drift(server, health, views))


def _keep_for_unknown_runs(
    server: Server, health: Health, views: Sequence[SlotView], leases: Leases, ports: Ports
) -> int:
    """Quarantine slots for runs that only the server reports; return how many.

    Probes the server a second time: a run in both answers that held no slot in between has not just ended.
    Pinned servers are skipped: their worker's lease keeper reports such runs.
    """
    if server.host is not None or not health.ok or not _unknown(health, views):
        return 0
    (again,) = probe_with_heartbeats(
        [(server, "")], leases=ports.leases, now=ports.clock.now(), transport=ports.transport, at_once=1
    )
    both = replace(health, jobs=(health.jobs or frozenset()) & (again.jobs or frozenset()))
    return len(quarantine_slots(server, both, views, leases, ports))


def _unknown(health: Health, views: Sequence[SlotView]) -> set[str]:
    """Return the ids of attempts that the server runs and that hold none of these slots."""
    known = {attempt for view in views for attempt in (view.attempt_id, view.follower_id)}
    return {attempt for _, attempt in health.jobs or ()} - known


def _plain_with_runs(servers: Sequence[Server]) -> set[str]:
    """Return the names of servers without a health endpoint that have a live attempt."""
    plain = [server.name for server in servers if server.tells_health is False]
    if not plain:
        return set()
    live = Attempt.objects.filter(server__in=plain, state__in=Attempt.LIVE)
    return set(live.values_list("server", flat=True))


def _is_busy(answer: _Answer) -> bool:
    """Return True if the probe timed out because the server handles one request at a time and is running one:
    its health is unknown then."""
    server = answer.server
    if server.tells_health is not False or not answer.health.timed_out:
        return False
    since = Attempt.objects.filter(
        server=server.name, slot__in=range(server.slots), started_at__gte=answer.asked_at
    )
    return answer.had_run or since.exists()


def _lose_unpolled(
    server: Server, seen_at: datetime, views: Sequence[SlotView], leases: Leases, ports: Ports
) -> SweepCount:
    """End accepted attempts of a restarted server that no worker polls.

    seen_at: when the server last answered under its old boot; attempts that started before died with it.
    """
    polled = {
        view.attempt_id for view in views if view.state == "leased" and (view.expires_in_seconds or 0) > 0
    }
    dead = Attempt.objects.filter(
        server=server.name, state=AttemptState.WAITING.value, started_at__lte=seen_at
    ).exclude(id__in=polled)

    def lose(attempt: Attempt) -> bool:
        slot = slot_name(server.name, attempt.slot)
        loss = Loss(
            job_id=attempt.job_id,
            attempt_id=attempt.id,
            slot=slot,
            model=attempt.model,
            pool=server.pool_id,
            why="The server restarted while it had the job.",
            suspect=False,
            process_died=False,
            evidence="the server restarted",
        )
        ended = lose_attempt(loss, ports)
        if slot in {view.slot for view in views if view.attempt_id == attempt.id}:
            leases.quarantine(slot, attempt.id)  # deletes the lease under any epoch …
            ports.send_wakes(leases.free_slot(slot))  # … and the restart proves the slot free
        follow_ups.after_end(ended, ports)
        return ended.won

    count = sweep_rows("lock_sync", list(dead), lose)
    return SweepCount(0, count.repaired, count.failed, count.notes)


def _drift(server: Server, health: Health, views: Sequence[SlotView]) -> tuple[str, ...]:
    """Return notes on differences that are not repaired: leases without a run, and runs without a lease."""
    if not health.ok:
        return (f"{server.name}: {health.error}",)
    if health.jobs is None:
        return ()
    running = {attempt for _, attempt in health.jobs}
    old = [view for view in views if view.state == "leased" and view.held_seconds > YOUNG_SECONDS]
    unconfirmed = sum(view.attempt_id not in running for view in old)
    notes = []
    if unconfirmed:
        notes.append(f"{server.name}: does not run {unconfirmed} of its {len(old)} leased attempts")
    if unknown := len(_unknown(health, views)):
        notes.append(f"{server.name}: runs {unknown} attempts that hold no slot")
    return tuple(notes)


class LockSyncSweep:
    """Probes all servers with placements, `CHUNK` at a time. Keeps the stale holds between runs."""

    def __init__(self) -> None:
        self._holds = StaleHolds()

    def __call__(self, ports: Ports) -> SweepCount:
        """looked: servers. repaired: attempts ended and slots freed. notes: drift."""
        rows = _servers()
        queries.read_placements(rows)
        servers = [server for server in rows if server.placements.all()]
        count = SweepCount()
        for at in range(0, len(servers), CHUNK):
            chunk = servers[at : at + CHUNK]
            busy = _plain_with_runs(chunk)
            asked_at = ports.clock.now()
            healths = probe_with_heartbeats(
                ((server, "") for server in chunk),
                leases=ports.leases,
                now=asked_at,
                transport=ports.transport,
                at_once=ports.parallel_probes,
            )
            answers = [
                _Answer(server, health, asked_at, server.name in busy)
                for server, health in zip(chunk, healths, strict=True)
            ]
            count += sweep_groups("lock_sync", answers, lambda answer: _compare(answer, self._holds, ports))
        return count
