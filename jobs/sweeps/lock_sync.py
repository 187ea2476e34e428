"""What the servers say of themselves, against what we believe of them.

It never deletes a lease: one that its server does not confirm is its poller's to find out, here it is a
note. It repairs what nobody else would see: accepted runs of a boot that is over and that nobody polls, slots
that only Redis holds back (`held_back`), and runs that only their server knows of (`strangers`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from foundation.database import statements
from gpus.health.health import is_restart, record_health
from gpus.health.pinned_servers import ask_all
from gpus.leasing.contract import Leases
from gpus.leasing.values import SlotView
from gpus.models import QuarantinedSlot, Server
from gpus.protocol import slot_name, split_slot
from gpus.registry import queries
from gpus.runners.base import Health
from jobs.domain.states import LIVE_ATTEMPT_STATES, AttemptState
from jobs.execution import follow_ups
from jobs.execution.orphaned_runs import last_attempt_on, quarantine_unproven
from jobs.index_rebuild.unknown_runs import keep_slots
from jobs.models import Attempt
from jobs.operations.end_lost_attempt import Loss, lose_attempt
from jobs.ports import Ports
from jobs.sweeps.base import SweepCount, sweep_groups, sweep_rows

log = structlog.get_logger(__name__)

PATIENCE_SECONDS = 20.0
"""A quarantine's row may be under way to its commit; no commit takes so long."""
CHUNK = 64
YOUNG_SECONDS = 10.0
"""A lease is this old before its absence from the server's list is worth a note."""
_servers = statements.Read(lambda: Server.objects.select_related("pool").order_by("name"))


def _explain_or_free(server: Server, slot: str, leases: Leases, ports: Ports) -> bool:
    index = split_slot(slot)[1]
    last = last_attempt_on(server.name, index)
    if last is not None and last.state in LIVE_ATTEMPT_STATES:
        return False  # `orphans` ends it, with a row
    if not quarantine_unproven(server, index):
        log.warning("slot_held_back_without_reason", slot=slot)
        ports.send_wakes(leases.free_slot(slot))
    return True


class StaleHolds:
    """Slots that Redis holds back while no row says why: a crash between a row and its script, on either
    side.

    Keeps since when each hold without a row was seen (monotonic)."""

    def __init__(self) -> None:
        self._seen_since: dict[tuple[str, str | None], float] = {}

    def free_forgotten(
        self, server: Server, views: Sequence[SlotView], leases: Leases, ports: Ports
    ) -> SweepCount:
        """repaired: slots freed, because the last attempt there is proven over, or that got their row."""
        held_back = {(view.slot, view.attempt_id) for view in views if view.state == "quarantined"}
        for key in [
            key for key in self._seen_since if split_slot(key[0])[0] == server.name and key not in held_back
        ]:
            del self._seen_since[key]
        if not held_back:
            return SweepCount()
        explained = set(
            QuarantinedSlot.objects.filter(server=server, freed_at=None).values_list("slot", flat=True)
        )
        monotonic = ports.clock.monotonic()
        ripe = []
        for key in held_back:
            if split_slot(key[0])[1] in explained:
                self._seen_since.pop(key, None)
            elif monotonic - self._seen_since.setdefault(key, monotonic) >= PATIENCE_SECONDS:
                ripe.append(key[0])
        count = sweep_rows("held_back", ripe, lambda slot: _explain_or_free(server, slot, leases, ports))
        return SweepCount(0, count.repaired, count.failed, count.notes)


@dataclass(frozen=True, slots=True)
class _Answer:
    """had_run: a plain server that ran something just before it was asked."""

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
    count = SweepCount(1) + holds.free_forgotten(server, views, leases, ports)
    if restarted and seen_at is not None:
        count += _lose_unpolled(server, seen_at, views, leases, ports)
        record_health(server, health, answer.asked_at)  # last: a restart is seen once
    if is_busy:
        return count
    count += SweepCount(repaired=_keep_for_unknown_runs(server, health, views, leases, ports))
    return count + SweepCount(notes=_drift(server, health, views))


def _keep_for_unknown_runs(
    server: Server, health: Health, views: Sequence[SlotView], leases: Leases, ports: Ports
) -> int:
    """Asks again: a run that the server names both times, and that held no slot in between, is none that just
    ended. What a pinned worker says is told by its own keeper."""
    if server.host is not None or not health.ok or not _unknown(health, views):
        return 0
    (again,) = ask_all(
        [(server, "")], leases=ports.leases, now=ports.clock.now(), transport=ports.transport, at_once=1
    )
    both = replace(health, jobs=(health.jobs or frozenset()) & (again.jobs or frozenset()))
    return len(keep_slots(server, both, views, leases, ports))


def _unknown(health: Health, views: Sequence[SlotView]) -> set[str]:
    """Attempts that the server runs and that hold none of these slots."""
    known = {attempt for view in views for attempt in (view.attempt_id, view.follower_id)}
    return {attempt for _, attempt in health.jobs or ()} - known


def _plain_with_runs(servers: Sequence[Server]) -> set[str]:
    plain = [server.name for server in servers if server.tells_health is False]
    if not plain:
        return set()
    live = Attempt.objects.filter(server__in=plain, state__in=Attempt.LIVE)
    return set(live.values_list("server", flat=True))


def _is_busy(answer: _Answer) -> bool:
    """Whether the server is silent because it serves one request at a time and has a run: no verdict then."""
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
    """seen_at: when the server last answered under its old boot. What was sent before died with that boot."""
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
            leases.quarantine(slot, attempt.id)  # forgets the lease, whatever its epoch …
            ports.send_wakes(leases.free_slot(slot))  # … and the restart proves the slot free
        follow_ups.after_end(ended, ports)
        return ended.won

    count = sweep_rows("lock_sync", list(dead), lose)
    return SweepCount(0, count.repaired, count.failed, count.notes)


def _drift(server: Server, health: Health, views: Sequence[SlotView]) -> tuple[str, ...]:
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
            healths = ask_all(
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
