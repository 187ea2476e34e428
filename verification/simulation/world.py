"""The simulated world of one seed: the fleet, the processes, the messages between them."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

from django.conf import settings
from django.db import connection

from foundation import ids
from foundation.secrets import encrypt
from foundation.ttl_cache import TtlCache
from gpu_host.node import runs
from gpus.errors import LeasingUnavailable
from gpus.leasing.clock import AgreedClocks, ClockWatch, SharedClock
from gpus.leasing.contract import Leases
from gpus.leasing.values import Wakes
from gpus.protocol import Clock
from gpus.registry import queries
from gpus.registry.index_sync import LeasesOf
from gpus.registry.layouts import Layouts
from gpus.registry.registry import register_server
from jobs.callbacks.message import new_secret
from jobs.domain.errors import Refused
from jobs.execution import slot_loop, worker_heartbeats
from jobs.execution.pushed_results import accept_push, admit_push
from jobs.models import Tenant
from jobs.ports import LimitCaches, Ports, tenant_changes
from jobs.reports.database_clock import read_last_database_time
from verification.simulation import callbacks
from verification.simulation.active_faults import ActiveFaults
from verification.simulation.advancers import Advancers
from verification.simulation.artifact_store import SimulatedStore
from verification.simulation.callbacks import CallbacksRole, CallbackWakes
from verification.simulation.database import (
    DatabaseLink,
    Forgotten,
    copy_database,
    fresh_database,
    has_attempt,
    restore_database,
)
from verification.simulation.gpu import GpuServer, RunRecord, origin
from verification.simulation.gpu_link import GpuLink
from verification.simulation.receivers import Receivers
from verification.simulation.redis_link import RedisServer
from verification.simulation.roles import HEARTBEAT_SECONDS, SweepsRole, WebRole, WorkerRole, single_wakes
from verification.simulation.scheduler import START, Process, Scheduler, VirtualClock
from verification.simulation.versions import Versions
from workflows.execution.retried import retryable
from workflows.schedules.models import reopen

WORKERS, TENANTS = 3, ("ada", "bob", "cyd")
FLEET, SECOND_FLEET = "main", "edge"
BEAT_SECONDS = 4.0
"""Longer than in production: repairs come later, and a history costs less."""
QUEUED_SECONDS = 60.0
"""How long a wake waits for a worker; in production queues are bounded by their length."""
WARM_UP_SECONDS = 3.0
"""Until the first index is whole."""
RUN_LIMIT_SECONDS = 60.0
RETRY_SECONDS = 30.0
SHORT_MODEL = "tiny"
SHORT_SLICES = 3
"""Fewer than in production, so that a short queue is enough to see a thread return its slot."""
_FIELDS: Mapping[str, Any] = {"max_run_seconds": RUN_LIMIT_SECONDS, "max_poll_time": RUN_LIMIT_SECONDS}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "zimg": _FIELDS,
    "once": {**_FIELDS, "at_most_once": True},
    SHORT_MODEL: _FIELDS,
    "ltx2": {
        **_FIELDS, "model_type": "async", "poll_interval": 1.0,
        "poll_endpoint_template": "/status/{id}", "id_field": "job_id",
    },
}  # fmt: skip
"""zimg, once and tiny are sync and share a pool, ltx2 is async. tiny is for jobs of less than a second: the
next job is prefetched only for a model known for them."""
POOL_OF: Mapping[str, str] = {"zimg": "image", "once": "image", SHORT_MODEL: "image", "ltx2": "ltx2"}
SLOTS: Mapping[str, int] = {"zimg-1": 2, "zimg-2": 2, "ltx2-1": 2, "ltx2-2": 1}
"""By server."""
SECOND_MODEL, SECOND_SERVER, SECOND_SLOTS = "far", "far-1", 2
"""The second fleet, in a world of two: a sync model in a pool of its own."""


class World:
    """All processes, servers and stores of one seed.

    client: of a Valkey for this world, which is wiped. two_fleets: whether there is a second fleet.
    layouts_change: whether processes of another key layout may start. skewed: whether a worker's clock may be
    off by half a minute from the start."""

    def __init__(
        self,
        seed: int,
        client: Any,
        *,
        two_fleets: bool = False,
        layouts_change: bool = False,
        skewed: bool = True,
    ) -> None:
        self.seed, self.two_fleets, self.skewed = seed, two_fleets, skewed
        self.fleets = (FLEET, SECOND_FLEET) if two_fleets else (FLEET,)
        self.pool_of = {**POOL_OF, SECOND_MODEL: SECOND_MODEL} if two_fleets else POOL_OF
        self.models, self.pools = tuple(sorted(self.pool_of)), tuple(sorted(set(self.pool_of.values())))
        self.scheduler = Scheduler(seed)
        self.chance = random.Random(f"{seed} world")
        self.active_faults = ActiveFaults(random.Random(f"{seed} weather"))
        self._reset()
        self.redis, self.store = (
            RedisServer(client, self.scheduler, self.active_faults),
            SimulatedStore(self.scheduler, self.active_faults),
        )
        self.versions = Versions(self.redis, differ=layouts_change)
        self.database = DatabaseLink(self.scheduler, self.active_faults)
        self.outside = Process("outside")
        self.servers = {server.name: server for server in self._fleet()}
        self.workers: list[WorkerRole] = []
        self.sweepers: list[SweepsRole] = []
        self.advancers = Advancers(
            self.scheduler, self.active_faults, self.chance, self.outside, self._new_advancer
        )
        self.beat_is_up, self.beat_seconds = True, BEAT_SECONDS
        self.lasting = 0
        """Faults that continue after the repair: the end is judged after them."""
        self.is_a_clock_wrong = False
        self.removed: set[str] = set()
        """Servers that were ever unregistered."""
        self.known: dict[str, Process] = {}
        """Every process that ever started, by name."""
        self.disturbed_until = 0.0
        """When the last disturbing fault ended; infinite while one lasts."""
        self.database_away = 0
        """Number of active database faults."""
        self.database_back_at = 0.0
        """When the last of them ended."""
        self.forgotten = Forgotten()
        self._is_forgetting, self._repeating = False, 0  # operators who repeat lost operations
        self.on_forgotten: Callable[[], None] = lambda: None
        self.send_jobs: Callable[[int, str, int, float], None] = lambda tenant, model, count, seconds: None
        """Submits that many jobs of a tenant; each runs for that many seconds."""
        self.request_callbacks: Callable[[int], None] = lambda tenant: None
        """Gives all jobs that the tenant has not submitted yet a callback."""
        self._operations: list[tuple[float, Callable[[Ports], object]]] = []
        self._names = 0
        self.tenants = list(
            Tenant.objects.filter(name__in=TENANTS).order_by("pk").values_list("pk", flat=True)
        )
        self._callback_chance = random.Random(f"{seed} callbacks")
        self.receivers = Receivers(self.scheduler, self._callback_chance, self.tenants)
        self._wake_callbacks = CallbackWakes(
            self.scheduler, self.active_faults, self._callback_chance, lambda: self.callbacks
        ).send
        self.database.open()
        for _ in range(WORKERS):
            self.start_worker()
        self.start_sweeper()
        self.start_web()
        self.start_callbacks()
        self.scheduler.spawn(self.outside, self._beat)

    def close(self) -> None:
        self.scheduler.end()
        self.database.close()

    def fleet_of(self, server: str) -> str:
        """Return the fleet of a server."""
        return SECOND_FLEET if server == SECOND_SERVER else FLEET

    def servers_of(self, fleet: str) -> list[str]:
        """Return the names of a fleet's servers."""
        return [name for name in self.servers if self.fleet_of(name) == fleet]

    # -- processes -------------------------------------------------------------------------------------

    def process(self, kind: str) -> Process:
        """Create a process with a unique name; one in five workers gets a wrong clock. kind: `worker`, `web`,
        …"""
        self._names += 1
        skew = self.chance.uniform(-30.0, 30.0) if kind == "worker" and self.chance.random() < 0.2 else 0.0
        if not self.skewed:
            skew = 0.0
        process = Process(f"{kind}-{self._names}", skew)
        self.known[process.name] = process
        return process

    def ports(self, process: Process) -> Ports:
        """Return ports as in production, including the correction of wrong clocks."""
        clock = SharedClock(
            VirtualClock(self.scheduler, process),
            self.redis.time,
            self.database.time,
            read_last_database_time,
            tolerance_seconds=settings.DISPATCHER.clock_tolerance_seconds,
        )
        clock._lock = nullcontext()  # type: ignore[assignment]  # a fiber in it would stop the one thread
        clock.keep_comparing(partial(self._after, process))
        return self._ports(process, clock, clock, *self.versions.of_new_process(clock))

    def true_ports(self) -> Ports:
        """Return the ports of the judge: its clock is right, and no fault affects it."""
        judge = Process("judge")
        clock = VirtualClock(self.scheduler, judge)
        return self._ports(judge, clock, AgreedClocks(), *self.versions.of_the_judge())

    def _ports(
        self, process: Process, clock: Clock, clocks: ClockWatch, layouts: Layouts, leases: LeasesOf
    ) -> Ports:
        return Ports(
            clock=clock,
            clock_watch=clocks,
            leases=leases,
            layouts=layouts,
            index_gate=cache(self.redis.gate),
            send_wakes=self._send_wakes,
            wake_callbacks=self._wake_callbacks,
            wake_followers=self._hint,
            retryable=retryable,
            reopened=reopen,
            announce=self._announce,
            transport=GpuLink(self.scheduler, self.active_faults, self.servers),
            parallel_probes=1,
            process_store=self.store,  # type: ignore[arg-type]
            after=partial(self._after, process),
            registry=queries.RegistryCache(1e9),  # cleared by changes, not by real time
            limit_caches=LimitCaches(  # expires only by virtual time
                limits=TtlCache(1e9, max_entries=1000, changes=tenant_changes()),
                used_seconds=TtlCache(0.0, max_entries=1000),
            ),
        )

    def processes(self) -> list[Process]:
        """Return workers first; also dead ones that were not replaced yet."""
        return [
            *(role.process for role in self.workers),
            *(role.process for role in self.sweepers),
            self.web.process,
            *(role.process for role in self.advancers.roles),
        ]

    def _after(self, process: Process, seconds: float, work: Callable[[], None]) -> None:
        def later() -> None:
            self.scheduler.sleep(seconds)
            work()

        self.scheduler.spawn(process, later)

    def start_worker(self) -> None:
        process = self.process("worker")
        self.workers = [role for role in self.workers if role.process.alive]
        self.workers.append(WorkerRole(*self._new_role(process)))

    def start_sweeper(self) -> None:
        """Start a sweeper; dead ones are forgotten."""
        process = self.process("sweeps")
        self.sweepers = [role for role in self.sweepers if role.process.alive]
        self.sweepers.append(SweepsRole(*self._new_role(process)))

    def start_web(self) -> None:
        """Start the web process in place of the last one."""
        process = self.process("web")
        self.web = WebRole(*self._new_role(process))

    def _new_advancer(self) -> tuple[Process, Ports]:
        process = self.process("advancer")
        return process, self.ports(process)

    def _new_role(self, process: Process) -> tuple[Scheduler, Process, Ports, bool]:
        return self.scheduler, process, self.ports(process), self.versions.differ

    def start_callbacks(self, skew_seconds: float = 0.0) -> None:
        """Start the callbacks process. skew_seconds: of its host's clock.

        Its steps draw from a random generator of their own, so that deliveries change no other process'
        history."""
        name = f"callbacks-{sum(known.startswith('callbacks') for known in self.known) + 1}"
        process = Process(name, skew_seconds, chance=self._callback_chance)
        self.known[process.name] = process
        self.callbacks = CallbacksRole(self.scheduler, process, self.ports(process), self.receivers)

    def heal(self) -> None:
        """End all faults: restart dead processes, resume stopped ones."""
        self.active_faults.clear()
        self.receivers.heal()
        self.beat_is_up = True
        for server in self.servers.values():
            server.fails = False  # a circuit that keeps opening would outlast any drain
            if not server.up:
                server.start()
        for process in self.processes():
            process.dies_after = process.stops_after = 0
            self.scheduler.resume(process)
        if not self.web.process.alive:
            self.start_web()
        self.callbacks.process.dies_after = 0
        if not self.callbacks.process.alive:
            self.start_callbacks()
        if not any(role.process.alive for role in self.sweepers):
            self.start_sweeper()
        while sum(role.process.alive and role.takes for role in self.workers) < WORKERS:
            self.start_worker()
        self.advancers.heal()

    def is_calm(self) -> bool:
        """Return True if no fault disturbs the sweeps."""
        return (
            self.beat_is_up
            and self.beat_seconds <= BEAT_SECONDS
            and all(self.versions.is_whole(fleet) for fleet in self.fleets)
            and any(
                role.process.is_healthy
                and role.ports.layouts.is_layout_in_use()
                and not self.active_faults.blocks_sweeps(role.process.name)
                for role in self.sweepers
            )
        )

    def operate(self, ask: Callable[[Ports], object], *, retry_seconds: float = math.inf) -> None:
        """Carry out an operator's call, again until it succeeds or `retry_seconds` are over."""
        until = self.scheduler.now + retry_seconds
        while self.scheduler.now < until:
            if self._repeating:  # repeated earlier operations must not undo it
                self.scheduler.sleep(0.5)
            elif self._operate_once(ask):
                return

    def _operate_once(self, ask: Callable[[Ports], object]) -> bool:
        asked_at = self.scheduler.now
        try:
            self.web.call(ask)
        except Exception as error:
            self.scheduler.note("operator", f"failed: {error}")
            self.scheduler.sleep(1.0)
            return False
        if self.forgotten.since(asked_at):
            return False
        self._operations.append((self.scheduler.now, ask))
        return True

    def _repeat_operations(self, asks: Sequence[Callable[[Ports], object]]) -> None:
        """Repeat lost operations, in order."""
        for ask in asks:
            until = self.scheduler.now + RETRY_SECONDS
            while self.scheduler.now < until and not self._operate_once(ask):
                pass
        self._repeating -= 1

    def forget_commits(self, seconds: float) -> None:
        """Let the database lose its commits of the next `seconds`.

        Clients and operators who got an answer in between repeat their requests. One at a time: a standby
        can't have more than the promoted one."""
        if self._is_forgetting:
            return
        self._is_forgetting = True
        copy, since = copy_database(), self.scheduler.now
        self.scheduler.sleep(seconds)
        self._is_forgetting = False
        self.forgotten.attempts |= restore_database(copy)
        self.database.sever(self.known)
        _forget_registry()
        self.forgotten.spans.append((since, self.scheduler.now))
        self._repeating += 1
        asks = [ask for at, ask in self._operations if at >= since]
        self.scheduler.spawn(self.outside, partial(self._repeat_operations, asks))
        while self.active_faults.is_database_down(self.outside.name):
            self.scheduler.sleep(0.5)
        self.on_forgotten()

    # -- messages --------------------------------------------------------------------------------------

    def _send_wakes(self, wakes: Sequence[Wakes]) -> int:
        self.scheduler.point("broker")
        if self.active_faults.broker_down:
            return 0
        messages = single_wakes(wakes)
        for pool, host in messages:
            if self.active_faults.happens(self.active_faults.wake_lost):
                continue
            for _ in range(2 if self.active_faults.happens(self.active_faults.wake_doubled) else 1):
                self.scheduler.spawn(self.outside, partial(self._deliver, pool, host))
        return len(messages)

    def _deliver(self, pool: str, host: str | None) -> None:
        until = self.scheduler.now + QUEUED_SECONDS
        self.scheduler.sleep(self.chance.random() * 0.02)
        while self.scheduler.now < until:
            takers = [role for role in self.workers if role.process.alive and role.takes_wakes]
            if takers and not self.active_faults.broker_down:
                self.chance.choice(takers).work(pool, host)
                return
            self.scheduler.sleep(0.5)

    def _announce(self, job_ids: Sequence[str]) -> None:
        if not self.active_faults.happens(self.active_faults.wake_lost):
            for role in self.workers:
                if role.process.alive:
                    role.worker.nudge(job_ids)

    def _hint(self, followers: Sequence[str]) -> None:
        self.advancers.hint(followers)

    def _beat(self) -> None:
        while True:
            self.scheduler.sleep(self.beat_seconds)
            if self.beat_is_up and not self.active_faults.broker_down:
                for role in self._ticked():
                    role.tick()

    def _ticked(self) -> Sequence[SweepsRole]:
        """In production one sweeper takes a tick; here all of the same layout do, so that they meet."""
        roles = [role for role in self.sweepers if role.process.alive and not role.process.stopped]
        layouts = sorted({role.ports.layouts.layout for role in roles})
        if len(layouts) < 2:
            return roles
        takes = self.chance.choice(layouts)
        return [role for role in roles if role.ports.layouts.layout == takes]

    # -- set-up ----------------------------------------------------------------------------------------

    def _reset(self) -> None:
        """Reset state that processes keep in modules."""
        connection.execute_wrappers.clear()
        # first: the one that makes it must draw nothing from what follows
        if self.two_fleets:
            fresh_database(_register_two_fleets, "two fleets")
        else:
            fresh_database(_register, "one fleet")
        chance = random.Random(f"{self.seed} ids")
        random.seed(f"{self.seed} jitter")
        run_ids = random.Random(f"{self.seed} runs")
        runs.make_id = lambda: f"{run_ids.getrandbits(48):012x}"
        ids.clock = lambda: START.timestamp() + self.scheduler.now
        ids.chance_bits = chance.getrandbits  # type: ignore[assignment]
        ids._last_milliseconds = -1
        _forget_registry()
        slot_loop.SHORT_SLICES = SHORT_SLICES
        worker_heartbeats.HEARTBEAT_SECONDS = HEARTBEAT_SECONDS
        callbacks.use_short_delays()

    def _fleet(self) -> list[GpuServer]:
        fleet = []
        slots_of = {**SLOTS, SECOND_SERVER: SECOND_SLOTS} if self.two_fleets else SLOTS
        for name, slots in slots_of.items():
            is_async = name.startswith("ltx2")
            fleet.append(
                GpuServer(
                    name,
                    self.scheduler,
                    random.Random(f"{self.seed} {name}"),
                    slots=slots,
                    is_async=is_async,
                    anonymous=name == "zimg-2" and self.chance.random() < 0.5,
                    ignores_cancel=name.endswith("-2") and self.chance.random() < 0.3,
                    fetch=self.store.get_signed,
                    push=self._push if name == "ltx2-1" and self.chance.random() < 0.5 else None,
                )
            )
        for server in fleet:
            server.only_here_known = self._only_server_knows
            server.index_lost_between = self.redis.lost_index_between
        return fleet

    def _only_server_knows(self, ran: RunRecord) -> bool:
        """Return True if the start has no row (not written yet, or lost again), and the worker died before it
        could announce the lease to the rebuilt index."""
        sender = self.known.get(ran.sender)
        is_gone = sender is not None and not sender.alive
        return is_gone and self.redis.index_lost_at > ran.began and not has_attempt(ran.attempt_id)

    def _push(self, job_id: str, attempt_id: str, body: Mapping[str, Any]) -> None:
        """The GPU server calls the web process, a limited number of times."""

        def take(ports: Ports) -> None:
            if admit_push(job_id, attempt_id, ports) is not None:
                accept_push(job_id, attempt_id, body, len(json.dumps(body)), ports=ports)

        for _ in range(3):
            try:
                self.web.call(take, 5.0)
                return
            except Refused:
                return
            except Exception as error:
                self.scheduler.note("push", f"failed: {error}")
                self.scheduler.sleep(1.0)


def make_template() -> None:
    """Create the tables and fleets of every world, once for all processes forked from this one."""
    fresh_database(_register, "one fleet")
    fresh_database(_register_two_fleets, "two fleets")


def _forget_registry() -> None:
    """Clear cached rows."""
    queries.rows_changed.send(None)


def _register() -> None:
    """Register the same fleet in every seed; there is no index yet that must be informed."""
    for number, name in enumerate(TENANTS, 1):  # the same ids in every process
        Tenant.objects.create(pk=number, name=name, webhook_secret_encrypted=encrypt(new_secret()))
    for name in SLOTS:
        register(name, by="cli:simulate", leases=_no_redis)


def _register_two_fleets() -> None:
    _register()
    register(SECOND_SERVER, by="cli:simulate", leases=_no_redis)


def models_of(server: str) -> tuple[str, ...]:
    """Return the models of a server."""
    if server == SECOND_SERVER:
        return (SECOND_MODEL,)
    return ("ltx2",) if server.startswith("ltx2") else ("zimg", "once", SHORT_MODEL)


def register(server: str, *, by: str, leases: LeasesOf) -> tuple[Wakes, ...]:
    """Put the server's models on it, as at the start; return the wakes to send."""
    wakes: list[Wakes] = []
    slots = SLOTS.get(server, SECOND_SLOTS)
    for model in models_of(server):
        is_second = model == SECOND_MODEL
        wakes += register_server(
            model=model,
            server=server,
            endpoint=f"{origin(server)}/{model}",
            slots=slots,
            by=by,
            leases=leases,
            pool=SECOND_MODEL if is_second else POOL_OF[model],
            fleet=SECOND_FLEET if is_second else None,
            model_fields=_FIELDS if is_second else MODELS[model],
        ).wakes
    return tuple(wakes)


def _no_redis(fleet: str) -> Leases:
    raise LeasingUnavailable("Redis is not there yet")
