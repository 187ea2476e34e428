"""Checks of promptness: unless a fault prevents it, free slots are claimed, runs of dead workers judged and
cancels ended soon.

Checked between steps, more often while a violation is suspected. The time limits are those of production,
plus the longer intervals of sweeps here (`BEAT_SECONDS`)."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from foundation.database import statements
from gpus.errors import LeasingUnavailable
from gpus.leasing.values import CircuitState, SlotView
from gpus.models import Pause, Placement, Server
from gpus.protocol import DesiredState, split_slot
from jobs.domain.states import JobState
from jobs.models import Attempt, Job, Tenant
from jobs.sweeps.mirror_registry import REFRESH_SECONDS
from verification.simulation.judge import FINAL
from verification.simulation.operators import is_unreadable
from verification.simulation.world import BEAT_SECONDS, World

_AT_A_GPU = {JobState.RUNNING.value, JobState.CANCELLING.value}
LATER_SECONDS = BEAT_SECONDS - 2.0
CLAIM_SECONDS = 5.0 + LATER_SECONDS
CANCEL_SECONDS = 10.0
FORGOTTEN_END_SECONDS = 100.0
"""For a run whose end the database lost: docs/reference/failures.md promises this."""
LEASE_SECONDS = 15.0
RECOVERY_SECONDS = 10.0
"""After a fault that disturbed all processes: docs/reference/failures.md promises this."""
CHECK_SECONDS, SUSPICION_CHECK_SECONDS = 4.0, 1.0

_Live = tuple[str, str, str, str, str, int]
_Suspicion = tuple[tuple[str, ...], float, str]

_waiting = statements.Read(
    lambda: (
        Job.objects.filter(state=JobState.QUEUED.value, cancel_requested_at=None)
        .defer("payload", "result")
        .order_by("place_us")
    )
)
_live = statements.Read(
    lambda: Attempt.objects.filter(state__in=Attempt.LIVE).values_list(
        "id", "job_id", "worker", "server", "model", "job__tenant"
    )
)
_worker = statements.Read(
    lambda: Attempt.objects.filter(id=statements.value(Attempt, "id")).values_list("worker", flat=True)
)
_asked = statements.Read(
    lambda: (
        Job.objects.exclude(cancel_requested_at=None)
        .exclude(state__in=sorted(FINAL))
        .values_list("id", "state")
    )
)
_last_server = statements.Read(
    lambda: (
        Attempt.objects.filter(job=statements.value(Job, "id", "job"))
        .order_by("-number")
        .values_list("server", flat=True)[:1]
    )
)
_caps = statements.Read(
    lambda: Tenant.objects.exclude(max_running=None).order_by().values_list("pk", "max_running")
)
_servers = statements.Read(
    lambda: Server.objects.filter(desired=DesiredState.ON.value).values_list("name", "headers_encrypted")
)
_placed = statements.Read(lambda: Placement.objects.order_by().values_list("server", "model"))
_pauses = statements.Read(lambda: Pause.objects.order_by().values_list("kind", "name"))


@dataclass(frozen=True, slots=True)
class _Ended:
    """A run that is over but still holds a slot. died_at: when its worker died and so can't release it."""

    worker: str
    died_at: float | None


_Slot = tuple[SlotView, _Ended | None]


def _is_idle(view: SlotView, ended: _Ended | None) -> bool:
    """Return True if no run is active in the slot, or its run is over and its living worker could not release
    it.

    The lease of a dead worker must expire first, a whole lease time after the check that follows a silence.
    """
    if view.resting or view.circuit is not CircuitState.CLOSED:
        return False
    if ended is None:
        return view.state == "free"
    return ended.died_at is None or (view.expires_in_seconds or 0.0) <= 0.0


class Promptness:
    """Checks the promptness of a world. broken: violated laws. quota_holds: by pool, the tenants that Redis
    holds back for their quota."""

    def __init__(self, world: World, quota_holds: dict[str, set[str]]) -> None:
        self.broken: list[str] = []
        self._world, self._held_back = world, quota_holds
        self._ports = world.true_ports()
        self._since: dict[tuple[str, ...], float] = {}

    @property
    def next_check_seconds(self) -> float:
        """Virtual seconds until the next check; shorter while a delay is suspected."""
        return SUSPICION_CHECK_SECONDS if self._since else CHECK_SECONDS

    def check(self) -> None:
        """A suspicion present at every check for too long is a violation."""
        now = self._world.scheduler.now
        if now < self._disturbed_until() + RECOVERY_SECONDS:
            self._since.clear()
            return
        before, self._since = self._since, {}
        for what, seconds, law in self._suspicions():
            since = self._since[what] = before.get(what, now)
            if now - since > seconds and not self.broken:
                self.broken.append(f"{law}, seen since {since:.1f}")

    def _disturbed_until(self) -> float:
        world = self._world
        deaths = (process.died_at for process in world.known.values() if process.died_at is not None)
        is_swept = any(role.process.is_healthy for role in world.sweepers)
        return max(world.disturbed_until, *deaths, 0.0) if is_swept else math.inf

    def _suspicions(self) -> Iterator[_Suspicion]:
        """Yield what must not last, the seconds that it may, and the law."""
        live = _live()
        slots = list(self._slots(live))
        yield from self._dead(live)
        yield from self._kept(slots)
        yield from self._cancels(live)
        if self._world.beat_seconds <= BEAT_SECONDS:
            yield from self._unclaimed(live, slots)

    # -- free slots ------------------------------------------------------------------------------------

    def _unclaimed(self, live: list[_Live], slots: list[_Slot]) -> Iterator[_Suspicion]:
        waiting = _waiting()
        if not waiting or not any(
            role.takes_wakes and role.process.is_healthy for role in self._world.workers
        ):
            return
        readable = {name for name, headers in _servers() if not is_unreadable(headers)}
        placed: dict[str, set[str]] = defaultdict(set)
        for server, model in _placed():
            if server in readable:
                placed[server].add(model)
        running, caps, pauses = Counter(one[-1] for one in live), dict(_caps()), set(_pauses())
        if any(kind == Pause.Kind.SYSTEM for kind, _ in pauses):
            return
        free = [view for view, ended in slots if split_slot(view.slot)[0] in placed and _is_idle(view, ended)]
        for job in waiting:
            if running[job.tenant_id] >= caps.get(job.tenant_id, 1000):
                continue
            if str(job.tenant_id) in self._held_back[job.pool]:
                continue
            if {(Pause.Kind.TENANT, str(job.tenant_id)), (Pause.Kind.MODEL, job.model)} & pauses:
                continue
            for view in free:
                server, _ = split_slot(view.slot)
                if job.model in placed[server] and job.avoid_server != server and self._can_be_claimed(job):
                    yield (
                        ("unclaimed", view.slot, job.pool),
                        CLAIM_SECONDS + self._registry_seconds(),
                        f"unclaimed: slot {view.slot} is idle ({view.state}), job {job.id} of tenant "
                        f"{job.tenant_id} could run there: {running[job.tenant_id]} of its tenant run, "
                        f"{caps.get(job.tenant_id, 'any number')} may",
                    )
                    break

    def _registry_seconds(self) -> float:
        """The database may have lost a pause that the index has, until the sweep repairs that."""
        spans = self._world.forgotten.spans
        is_restored = (
            not spans or self._world.scheduler.now - spans[-1][1] > REFRESH_SECONDS + RECOVERY_SECONDS
        )
        return 0.0 if is_restored else REFRESH_SECONDS

    def _slots(self, live: list[_Live]) -> Iterator[_Slot]:
        world = self._world
        of_live = {one[0] for one in live}
        for fleet in world.fleets:
            if fleet in world.active_faults.silent_fleets or not world.versions.is_whole(fleet):
                continue
            try:
                views = self._ports.leases(fleet).slots_of(world.servers_of(fleet))
            except LeasingUnavailable:
                continue
            for view in views:
                yield view, self._ended(view, of_live)

    def _ended(self, view: SlotView, live: set[str]) -> _Ended | None:
        if view.state not in ("leased", "settling") or view.attempt_id in live:
            return None
        worker: str | None = _worker.first(id=view.attempt_id)
        return None if worker is None else _Ended(worker, self._died_at(worker))

    def _died_at(self, worker: str) -> float | None:
        process = self._world.known.get(worker)
        return None if process is None else process.died_at

    def _can_be_claimed(self, job: Job) -> bool:
        """Return True if it is in the index, and its model is not held back because it failed on several
        servers."""
        leases = self._ports.leases(job.fleet)
        try:
            (found,) = leases.has_tickets(job.pool, [job.ticket])
            circuit = leases.circuits(job.pool, []).models.get(job.model)
        except LeasingUnavailable:
            return False
        is_closed = circuit is None or circuit.state is CircuitState.CLOSED
        return bool(found) and is_closed and not self._world.versions.is_held(job.fleet, job.id)

    # -- runs of dead workers --------------------------------------------------------------------------

    @property
    def _judged_seconds(self) -> float:
        """A silence extends a lease once, and each is noticed at a check (docs/reference/failures.md)."""
        return 2.0 * (LEASE_SECONDS + self._world.beat_seconds) + LATER_SECONDS

    def _kept(self, slots: list[_Slot]) -> Iterator[_Suspicion]:
        for view, ended in slots:
            if ended is not None and ended.died_at is not None:
                yield (
                    ("kept", view.slot, str(view.attempt_id)),
                    self._judged_seconds,
                    f"kept: slot {view.slot} is {view.state} by attempt {view.attempt_id}, which is over, "
                    f"its worker {ended.worker} died at {ended.died_at:.1f}",
                )

    def _dead(self, live: list[_Live]) -> Iterator[_Suspicion]:
        world = self._world
        secrets = {name: headers for name, headers in _servers()}
        forgotten = self._with_forgotten_ends(live)
        for attempt_id, job_id, worker, server, _, _ in live:
            died_at = self._died_at(worker)
            if died_at is None or is_unreadable(secrets.get(server, "")):
                continue
            if world.fleet_of(server) in world.active_faults.silent_fleets:
                continue
            yield (
                ("dead", attempt_id),
                max(self._judged_seconds, FORGOTTEN_END_SECONDS if job_id in forgotten else 0.0),
                f"dead: attempt {attempt_id} of job {job_id} on {server} is live, its worker {worker} "
                f"died at {died_at:.1f}",
            )

    # -- cancels ---------------------------------------------------------------------------------------

    def _cancels(self, live: list[_Live]) -> Iterator[_Suspicion]:
        workers = {one[1]: one[2] for one in live}
        forgotten = self._with_forgotten_ends(live)
        placed = {server for server, _ in _placed()}
        for job_id, state in () if self._world.active_faults.silent_fleets else _asked():
            if state == JobState.RUNNING and not self._is_well(workers.get(job_id, "")):
                continue  # its lease must expire first
            server = _last_server.first(job=job_id) if state in _AT_A_GPU else None
            if state == JobState.CANCELLING and server not in placed:
                continue  # no endpoint to probe: the slot's quarantine lasts up to the model's run limit
            if server is None or self._can_prove(server):
                yield (
                    ("cancel", job_id, state),
                    (FORGOTTEN_END_SECONDS if job_id in forgotten else CANCEL_SECONDS)
                    + 3.0 * max(0.0, self._world.beat_seconds - 2.0),
                    f"cancel: job {job_id} is {state}, its cancel was answered",
                )

    def _with_forgotten_ends(self, live: list[_Live]) -> set[str]:
        """Return running jobs whose run ended before the database last failed over."""
        world = self._world
        if not world.forgotten.spans:
            return set()
        _, last = world.forgotten.spans[-1]
        over = {
            ran.attempt_id
            for server in world.servers.values()
            for ran in server.ran
            if ran.ended is not None and ran.ended <= last
        }
        return {one[1] for one in live if one[0] in over}

    def _is_well(self, worker: str) -> bool:
        process = self._world.known.get(worker)
        return process is not None and process.is_healthy

    def _can_prove(self, name: str) -> bool:
        """Return True if the server reports its runs, and stops a run on request."""
        world, server = self._world, self._world.servers[name]
        active_faults = world.active_faults
        return not (
            name in world.removed  # then no quarantine row gives the slot's reason
            or server.anonymous
            or server.ignores_cancel
            or not server.up
            or name in active_faults.hung
            or name in active_faults.unreachable
            or active_faults.http_reply_lost
            or world.fleet_of(name) in active_faults.silent_fleets
            or any(name == one and is_unreadable(headers) for one, headers in _servers())
        )
