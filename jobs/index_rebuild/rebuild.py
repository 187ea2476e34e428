"""Rebuilds a fleet's index from the database, in steps that return.

The order: wipe the rest of the old index; write the registry; wait a few seconds, in which workers announce
the leases that they hold, also those whose start is not committed yet; restore the leases of live attempts;
quarantine slots, also those of runs that only their server reports; write the tenants' shares and the tickets
of waiting jobs; open the index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

import structlog

from foundation.database import statements
from foundation.database.statements import value
from foundation.ids import new_id
from gpus.errors import LeasingFull
from gpus.leasing.contract import Leases
from gpus.leasing.keeper import announced_seconds
from gpus.leasing.values import Wakes
from gpus.models import Pool, QuarantinedSlot, Server
from gpus.protocol import Lease, ReleaseMode, TenantSpec, slot_name
from gpus.registry import queries
from gpus.registry.index_sync import mirror_registry, quarantine_slots
from jobs.domain.states import JobState
from jobs.execution.orphaned_runs import quarantine_unproven
from jobs.index_rebuild import fleet_time
from jobs.index_rebuild.shares import recent_shares
from jobs.index_rebuild.tickets import FIRST_PLACE, waiting_tickets
from jobs.index_rebuild.unknown_runs import quarantine_unknown_runs, servers_to_ask
from jobs.limits.gpu_seconds import exhausted, park_exhausted
from jobs.models import Attempt, Job, Tenant
from jobs.ports import Ports

log = structlog.get_logger(__name__)

Row = TypeVar("Row")

PAGE = 500
"""Attempts per statement."""
HEARTBEAT_SECONDS = 1.0
ASK_SECONDS = 5.0
"""Longest time for reading the runs of all servers: after an outage of many, the rebuild does not wait for
each."""
_HELD = [JobState.QUEUED.value, JobState.RUNNING.value]


_servers = statements.Read(lambda: Server.objects.filter(pool__fleet=value(Pool, "fleet")).order_by("name"))
_open_rows = statements.Read(
    lambda: (
        QuarantinedSlot.objects.filter(freed_at=None, server__pool__fleet=value(Pool, "fleet"))
        .order_by("pk")
        .values_list("server_id", "slot", "attempt_id")
    )
)


class Progress(StrEnum):
    """The stage of a rebuild after a step."""

    BUSY_ELSEWHERE = "another process rebuilds"
    WIPING = "wiping"
    LISTENING = "workers announce their leases"
    OPEN = "open"


@dataclass(slots=True)
class Rebuild:
    """One fleet's rebuild by this process; call `step` until it returns OPEN.

    After 6 s without a heartbeat of its process, another one takes the rebuild over.
    """

    fleet: str
    leases: Leases
    ports: Ports
    owner: str
    name: str = ""
    """Redis' name of the rebuild; another one after Redis lost its data again."""
    listening_since: float | None = None
    seen_at: float = 0.0
    none_held: bool = False
    latest_start_us: int | None = None

    @classmethod
    def of(cls, fleet: str, leases: Leases, ports: Ports) -> Rebuild:
        return cls(fleet, leases, ports, owner=f"rebuild-{new_id()}")

    def step(self) -> Progress:
        """Do the next part of the rebuild. Raises LeasingUnavailable; then the next step continues here."""
        if not self._heartbeat():
            return Progress.BUSY_ELSEWHERE
        if not self.leases.wipe(self.owner):
            return Progress.WIPING
        monotonic = self.ports.clock.monotonic()
        if self.listening_since is None:
            mirror_fleet(self.fleet, self.leases, self.ports)
            park_exhausted(self.fleet, self.leases, exhausted(self.ports.clock.now()))
            self.listening_since = monotonic
            self.none_held = not _may_be_held(self.fleet)
            if not self.none_held:
                return Progress.LISTENING
        elif monotonic - self.listening_since < announced_seconds(len(self.ports.registry.fleets())):
            return Progress.LISTENING
        self._fill_and_open()
        return Progress.OPEN

    def _heartbeat(self) -> bool:
        """Renew this process's claim on the rebuild. Return False if another process has it. If Redis lost
        its data again, begin again: the registry and the announced leases are lost, too, and leases may have
        begun since the latest start was read."""
        self.seen_at = self.ports.clock.monotonic()
        is_first = self.latest_start_us is None
        name = self._begin()
        if name != self.name:
            self.name, self.listening_since = name, None
            if not is_first:
                self.latest_start_us = None
                return bool(name and self._begin())
        return bool(name)

    def _begin(self) -> str:
        """Begin or continue the rebuild, with a fleet's time behind the latest start; return its name."""
        if self.latest_start_us is None:
            self.latest_start_us = max(
                _latest_start_us(), fleet_time.least_time_us(self.fleet, self.ports.clock.now())
            )
        return self.leases.begin_rebuild(self.owner, latest_start_us=self.latest_start_us)

    def _with_heartbeats(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Yield the rows, with heartbeats between them: a large fleet takes longer than six seconds."""
        for row in rows:
            if self.ports.clock.monotonic() - self.seen_at > HEARTBEAT_SECONDS:
                self._heartbeat()
            yield row

    def _fill_and_open(self) -> None:
        restored = [
            lease
            for attempt in self._with_heartbeats(_live_attempts(self.fleet))
            if (lease := restore_lease(attempt.job, attempt, self.leases, self.ports)) is not None
        ]
        self._give_back_ended(restored)
        quarantined = self._quarantine()
        pushed = 0
        for pool in queries.pools(fleet=self.fleet):
            shares = recent_shares(pool.name, self.ports.clock.now())
            self.leases.restore_shares(pool.name, [(one.priority, one.tenant, one.seconds) for one in shares])
            pushed += self._push(pool.name)
        generation = self.leases.open_generation(self.owner, none_held=self.none_held)
        fleet_time.note_if_ahead(self.fleet, self.leases, self.ports)
        log.info(
            "index_rebuilt",
            fleet=self.fleet,
            generation=generation,
            leases=len(restored),
            quarantined=quarantined,
            tickets=pushed,
        )
        self.ports.send_wakes(self.leases.fill())

    def _give_back_ended(self, restored: Sequence[Lease]) -> None:
        """Release restored leases of attempts whose end was committed after their rows were read: their
        worker may have settled the end before the lease was restored. A slot that is not proven free is
        quarantined next."""
        for first in range(0, len(restored), PAGE):
            page = restored[first : first + PAGE]
            live = set(_still_live(ids=[lease.attempt_id for lease in page]))
            for lease in self._with_heartbeats(page):
                if lease.attempt_id not in live:
                    self.leases.release(lease.ref, ReleaseMode.FREE, worker="")

    def _quarantine(self) -> int:
        servers = _servers(fleet=self.fleet)
        for server in self._with_heartbeats(servers):
            for slot in range(server.slots):
                quarantine_unproven(server, slot)
        if _may_be_held(self.fleet):
            self._ask_servers(servers_to_ask(servers))
        open_rows = _open_rows(fleet=self.fleet)
        suspects = (
            (slot_name(server_name, slot), attempt_id)
            for server_name, slot, attempt_id in self._with_heartbeats(open_rows)
        )
        quarantine_slots(self.leases, suspects)  # sends no wakes: the index is not open yet
        return len(open_rows)

    def _ask_servers(self, servers: Sequence[Server]) -> None:
        """Quarantine slots of runs that only their server reports; a few servers at a time, with heartbeats
        between."""
        clock, few = self.ports.clock, self.ports.parallel_probes
        until = clock.monotonic() + ASK_SECONDS
        for first in range(0, len(servers), few):
            if clock.monotonic() >= until:
                log.warning("servers_not_probed_in_time", fleet=self.fleet, servers=len(servers) - first)
                break
            quarantine_unknown_runs(servers[first : first + few], self.leases, self.ports)
            self._heartbeat()

    def _push(self, pool: str) -> int:
        pushed, place = 0, FIRST_PLACE
        while True:
            tickets, following = waiting_tickets(pool, after=place)
            try:
                if tickets:
                    self.leases.push(pool, tickets)
            except LeasingFull as error:  # the oldest are pushed; the `reconcile` sweep pushes the rest
                log.warning("queue_not_complete", pool=pool, tickets=pushed, error=str(error))
                return pushed
            pushed += len(tickets)
            if following is None:
                return pushed
            place = following
            self._heartbeat()


def lease_of(job: Job, attempt: Attempt) -> Lease:
    """Make the lease of a live attempt from its rows. Its fence is the time of its start, as of a new
    lease."""
    started_ms = int(attempt.started_at.timestamp() * 1000)
    return Lease(
        pool=job.pool,
        slot=slot_name(attempt.server, attempt.slot),
        job_id=job.id,
        attempt_id=attempt.id,
        epoch=attempt.epoch,
        model=attempt.model,
        tenant=str(job.tenant_id),
        priority=job.priority,
        fence=started_ms * 1000,
        leased_at_ms=started_ms,
        estimate_seconds=0.0,
    )


def restore_lease(job: Job, attempt: Attempt, leases: Leases, ports: Ports) -> Lease | None:
    """Restore the lease of a live attempt in the index. Returns None if a later attempt holds its slot.

    The lease's age is passed, not its start: the fleet's time may differ from the clock of the rows.
    """
    lease, held = lease_of(job, attempt), (ports.clock.now() - attempt.started_at).total_seconds()
    return lease if leases.restore_lease(lease, held_seconds=max(held, 0.0)) else None


_any_held = statements.Read(
    lambda: Job.objects.filter(fleet=value(Job, "fleet"), state__in=_HELD).order_by().values_list("state")[:1]
)


def _may_be_held(fleet: str) -> bool:
    """Return True if a lease may exist whose end the database does not have: a claim needs a QUEUED job."""
    return bool(_any_held(fleet=fleet))


_live_after = statements.Read(
    lambda: (
        Attempt.objects.filter(
            state__in=Attempt.LIVE, job__fleet=value(Job, "fleet"), id__gt=value(Attempt, "id", "last")
        )
        .select_related("job")
        .defer("job__payload", "job__result")
        .order_by("id")[:PAGE]
    )
)


def _still_live(ids: Sequence[str]) -> Iterable[str]:
    return Attempt.objects.filter(id__in=ids, state__in=Attempt.LIVE).values_list("id", flat=True)


def _live_attempts(fleet: str) -> Iterator[Attempt]:
    last = ""
    while True:
        page = _live_after(fleet=fleet, last=last)
        yield from page
        if len(page) < PAGE:
            return
        last = page[-1].id


_next_slot = statements.Read(
    lambda: (
        Attempt.objects.filter(server=value(Attempt, "server"), slot__gt=value(Attempt, "slot"))
        .order_by("server", "slot", "-started_at")
        .values_list("slot", "started_at")[:1]
    )
)
_next_server = statements.Read(
    lambda: (
        Attempt.objects.filter(server__gt=value(Attempt, "server"))
        .order_by("server", "slot", "-started_at")
        .values_list("server", flat=True)[:1]
    )
)


def _latest_start_us() -> int:
    """Return the latest start of all attempts, in microseconds since the epoch: about the highest fence. Also
    of servers that are not registered: they may be registered again, and keep their highest fence."""
    return max((int(at.timestamp() * 1_000_000) for at in _latest_starts()), default=0)


def _latest_starts() -> Iterator[datetime]:
    """Yield the latest start on each slot that has attempts: one index seek each (a loose index scan)."""
    server = ""
    while (server := _next_server.first(server=server)) is not None:
        slot = -1
        while (found := _next_slot.first(server=server, slot=slot)) is not None:
            slot, started_at = found
            yield started_at


TENANTS_PAGE = 5000

_tenants_from = statements.Read(
    lambda: Tenant.objects.filter(pk__gt=value(Tenant, "id", "after")).order_by("pk")[:TENANTS_PAGE]
)


def mirror_fleet(fleet: str, leases: Leases, ports: Ports, *, tenants: bool = True) -> None:
    """Write a fleet's pools and servers into its index, and send the wakes. tenants: also the rules of
    tenants."""
    wakes = _write_tenants(leases) if tenants else ()
    wakes += mirror_registry(leases, fleet=fleet)
    if wakes:
        ports.send_wakes(wakes)


def _write_tenants(leases: Leases) -> tuple[Wakes, ...]:
    """Write the rules of all tenants into the index, page by page. Each page is read again until it has not
    changed: meanwhile another process may have changed a tenant, and written it to the index before."""
    wakes: list[Wakes] = []
    last = 0
    while True:
        written: list[TenantSpec] = []
        while (page := [tenant.spec for tenant in _tenants_from(after=last)]) != written:
            wakes += leases.set_tenants([spec for spec in page if spec not in set(written)])
            written = page
        if len(page) < TENANTS_PAGE:
            return tuple(wakes)
        last = int(page[-1].name)
