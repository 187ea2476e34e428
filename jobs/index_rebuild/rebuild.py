"""Makes a fleet's index anew from the database, in steps that return.

The order: wipe what is left; the registry; a few seconds, in which living keepers announce the leases they
hold, also those whose start is not committed yet; the live attempts of the database; the quarantined
slots, and those of runs that only their server knows; the tenants' shares and the waiting jobs; then the
index is whole.
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
from gpus.registry.index_sync import mirror_registry, shut_slots
from jobs.domain.states import JobState
from jobs.execution.orphaned_runs import quarantine_unproven
from jobs.index_rebuild import fleet_time
from jobs.index_rebuild.line import START, recent_shares, waiting_tickets
from jobs.index_rebuild.unknown_runs import askable, quarantine_unknown_runs
from jobs.limits.gpu_seconds import exhausted, park_exhausted
from jobs.models import Attempt, Job, Tenant
from jobs.ports import Ports

log = structlog.get_logger(__name__)

Row = TypeVar("Row")

PAGE = 500
SIGN_SECONDS = 1.0
ASK_SECONDS = 5.0
"""For servers to say what they run: where many have just gone down, the others do not wait for them all."""
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
    BUSY_ELSEWHERE = "somebody else rebuilds"
    WIPING = "wiping"
    LISTENING = "keepers announce their leases"
    OPEN = "open"


@dataclass(slots=True)
class Rebuild:
    """One fleet's rebuild by this process; `step` again until it says OPEN. A process that dies in it is
    replaced by another after 6 s without a sign of life."""

    fleet: str
    leases: Leases
    ports: Ports
    owner: str
    name: str = ""
    """That Redis knows it by."""
    listening_since: float | None = None
    seen_at: float = 0.0
    none_held: bool = False
    latest_start_us: int | None = None

    @classmethod
    def of(cls, fleet: str, leases: Leases, ports: Ports) -> Rebuild:
        return cls(fleet, leases, ports, owner=f"rebuild-{new_id()}")

    def step(self) -> Progress:
        """Raises LeasingUnavailable; the next step goes on where this one was."""
        if not self._sign_and_check():
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

    def _sign_and_check(self) -> bool:
        """Also a sign of life: who gives none for six seconds is replaced. Where Redis lost everything once
        more, what it was told and what keepers announced is lost as well."""
        self.seen_at = self.ports.clock.monotonic()
        if self.latest_start_us is None:
            self.latest_start_us = max(
                _latest_start_us(), fleet_time.least_time_us(self.fleet, self.ports.clock.now())
            )
        name = self.leases.begin_rebuild(self.owner, latest_start_us=self.latest_start_us)
        if name != self.name:
            self.name, self.listening_since = name, None
        return bool(name)

    def _with_signs(self, rows: Iterable[Row]) -> Iterator[Row]:
        """The rows, with signs of life between them: a large fleet takes longer than the silence."""
        for row in rows:
            if self.ports.clock.monotonic() - self.seen_at > SIGN_SECONDS:
                self._sign_and_check()
            yield row

    def _fill_and_open(self) -> None:
        restored = [
            lease
            for attempt in self._with_signs(_live_attempts(self.fleet))
            if (lease := restore(attempt.job, attempt, self.leases, self.ports)) is not None
        ]
        self._give_back_ended(restored)
        quarantined = self._quarantine()
        pushed = 0
        for pool in queries.pools(fleet=self.fleet):
            shares = recent_shares(pool.name, self.ports.clock.now())
            self.leases.restore_shares(pool.name, [(one.priority, one.tenant, one.seconds) for one in shares])
            pushed += self._push(pool.name)
        generation = self.leases.open_generation(self.owner, none_held=self.none_held)
        fleet_time.note(self.fleet, self.leases, self.ports)
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
        """Of attempts whose end was committed after their rows were read. A worker may have settled such an
        end before the lease was restored, and does not come again. A slot not proven free is quarantined
        next."""
        for first in range(0, len(restored), PAGE):
            page = restored[first : first + PAGE]
            live = set(_still_live(ids=[lease.attempt_id for lease in page]))
            for lease in self._with_signs(page):
                if lease.attempt_id not in live:
                    self.leases.release(lease.ref, ReleaseMode.FREE, worker="")

    def _quarantine(self) -> int:
        servers = _servers(fleet=self.fleet)
        for server in self._with_signs(servers):
            for slot in range(server.slots):
                quarantine_unproven(server, slot)
        if _may_be_held(self.fleet):
            self._ask(askable(servers))
        open_rows = _open_rows(fleet=self.fleet)
        suspects = (
            (slot_name(server_name, slot), attempt_id)
            for server_name, slot, attempt_id in self._with_signs(open_rows)
        )
        shut_slots(self.leases, suspects)  # nothing is woken before the index opens
        return len(open_rows)

    def _ask(self, servers: Sequence[Server]) -> None:
        """A few at a time: each may take its time-out, and this process must give signs of life."""
        clock, few = self.ports.clock, self.ports.parallel_probes
        until = clock.monotonic() + ASK_SECONDS
        for first in range(0, len(servers), few):
            if clock.monotonic() >= until:
                log.warning("servers_not_asked", fleet=self.fleet, servers=len(servers) - first)
                break
            quarantine_unknown_runs(servers[first : first + few], self.leases, self.ports)
            self._sign_and_check()

    def _push(self, pool: str) -> int:
        pushed, place = 0, START
        while True:
            tickets, following = waiting_tickets(pool, after=place)
            try:
                if tickets:
                    self.leases.push(pool, tickets)
            except LeasingFull as error:  # those that wait longest stand in line; `reconcile` goes on
                log.warning("line_not_whole", pool=pool, tickets=pushed, error=str(error))
                return pushed
            pushed += len(tickets)
            if following is None:
                return pushed
            place = following
            self._sign_and_check()


def lease_of(job: Job, attempt: Attempt) -> Lease:
    """The lease as the database knows it. Its fence is the moment it began, like a new lease's."""
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


def restore(job: Job, attempt: Attempt, leases: Leases, ports: Ports) -> Lease | None:
    """The lease that the attempt has again. None: a later attempt holds its slot. The fleet's time may be
    another one than that of rows."""
    lease, held = lease_of(job, attempt), (ports.clock.now() - attempt.started_at).total_seconds()
    return lease if leases.restore_lease(lease, held_seconds=max(held, 0.0)) else None


_any_held = statements.Read(
    lambda: Job.objects.filter(fleet=value(Job, "fleet"), state__in=_HELD).order_by().values_list("state")[:1]
)


def _may_be_held(fleet: str) -> bool:
    """Whether a lease may exist that the database does not know as ended: a claim needs a QUEUED job."""
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
    """Of all runs: their fences are from about then. A server that is not registered now may be registered
    again, and remembers its highest fence."""
    return max((int(at.timestamp() * 1_000_000) for at in _latest_starts()), default=0)


def _latest_starts() -> Iterator[datetime]:
    """The latest start on each slot that has a history. One seek in an index for each."""
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
    """Copies a fleet's registry and the rules of tenants from the database into its index: all pools, servers
    and (if asked) the rules of tenants."""
    wakes = _write_tenants(leases) if tenants else ()
    wakes += mirror_registry(leases, fleet=fleet)
    if wakes:
        ports.send_wakes(wakes)


def _write_tenants(leases: Leases) -> tuple[Wakes, ...]:
    """Page by page, each until the rows say what was told: between the reading and the telling somebody
    may have changed one and told it."""
    wakes: list[Wakes] = []
    last = 0
    while True:
        told: list[TenantSpec] = []
        while (page := [tenant.spec for tenant in _tenants_from(after=last)]) != told:
            wakes += leases.set_tenants([spec for spec in page if spec not in set(told)])
            told = page
        if len(page) < TENANTS_PAGE:
            return tuple(wakes)
        last = int(page[-1].name)
