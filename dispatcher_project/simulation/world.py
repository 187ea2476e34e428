"""Everything of one seed: the fleet, the processes, the messages between them."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from django.db import connection

from dispatcher_project.simulation.database import DatabaseLink, fresh_database
from dispatcher_project.simulation.gpu import GpuServer, origin
from dispatcher_project.simulation.gpu_link import GpuLink
from dispatcher_project.simulation.redis_link import RedisServer
from dispatcher_project.simulation.roles import WAKE_EXPIRES_SECONDS, SweepsRole, WebRole, WorkerRole, spread
from dispatcher_project.simulation.scheduler import START, Process, Scheduler, VirtualClock
from dispatcher_project.simulation.weather import Weather
from gpus import queries
from gpus.errors import LeasingUnavailable
from gpus.leasing.contract import Leases
from gpus.leasing.values import Wakes
from gpus.node import runs
from gpus.services.registry import register_server
from jobs import ids
from jobs.models import Tenant
from jobs.services import late_tickets, limits, quotas, slow_redis
from jobs.services.attempts import accept_push
from jobs.services.ports import Ports
from jobs.services.push_tokens import push_token
from jobs.sweeps import generation, orphans
from jobs.sweeps import quotas as quotas_sweep

WORKERS, TENANTS, FLEET = 3, ("ada", "bob", "cyd"), "main"
BEAT_SECONDS = 4.0
"""Less often than in life: what repairs comes later, and a history costs less."""
WARM_UP_SECONDS = 3.0
"""Until the first index is whole."""
RUN_LIMIT_SECONDS = 60.0
_FIELDS: Mapping[str, Any] = {"max_run_seconds": RUN_LIMIT_SECONDS, "max_poll_time": RUN_LIMIT_SECONDS}
MODELS: Mapping[str, Mapping[str, Any]] = {
    "zimg": _FIELDS,
    "once": {**_FIELDS, "at_most_once": True},
    "ltx2": {
        **_FIELDS, "model_type": "async", "poll_interval": 1.0,
        "poll_endpoint_template": "/status/{id}", "id_field": "job_id",
    },
}  # fmt: skip
"""zimg and once are sync and share a pool, ltx2 is async."""
POOLS = ("image", "ltx2")
SLOTS: Mapping[str, int] = {"zimg-1": 2, "zimg-2": 2, "ltx2-1": 2, "ltx2-2": 1}
"""By server."""


class World:
    """client: a Valkey of its own, which is wiped."""

    def __init__(self, seed: int, client: Any) -> None:
        self.seed = seed
        self.scheduler = Scheduler(seed)
        self.chance = random.Random(f"{seed} world")
        self.weather = Weather(random.Random(f"{seed} weather"))
        self._reset()
        self.redis = RedisServer(client, self.scheduler, self.weather)
        self.database = DatabaseLink(self.scheduler, self.weather)
        self.outside = Process("outside")
        self.servers = {server.name: server for server in self._fleet()}
        self.workers: list[WorkerRole] = []
        self.sweepers: list[SweepsRole] = []
        self.beat_is_up = True
        self._names = 0
        self.tenants = list(
            Tenant.objects.filter(name__in=TENANTS).order_by("pk").values_list("pk", flat=True)
        )
        self.database.open()
        for _ in range(WORKERS):
            self.start_worker()
        self.start_sweeper()
        self.start_web()
        self.scheduler.spawn(self.outside, self._beat)

    def close(self) -> None:
        self.scheduler.end()
        self.database.close()

    # -- processes -------------------------------------------------------------------------------------

    def process(self, kind: str) -> Process:
        self._names += 1
        skew = self.chance.uniform(-30.0, 30.0) if kind == "worker" and self.chance.random() < 0.2 else 0.0
        return Process(f"{kind}-{self._names}", skew)

    def ports(self, process: Process) -> Ports:
        fleets: dict[str, Any] = {}
        return Ports(
            clock=VirtualClock(self.scheduler, process),
            leases=lambda fleet: fleets.get(fleet) or fleets.setdefault(fleet, self.redis.leases(fleet)),
            send_wakes=self._send_wakes,
            wake_callbacks=lambda ids: None,
            announce=self._announce,
            transport=GpuLink(self.scheduler, self.weather, self.servers),
            parallel_probes=1,
            after=partial(self._after, process),
        )

    def processes(self) -> list[Process]:
        """Workers first; also dead ones, until somebody follows them."""
        return [
            *(role.process for role in self.workers),
            *(role.process for role in self.sweepers),
            self.web.process,
        ]

    def _after(self, process: Process, seconds: float, work: Callable[[], None]) -> None:
        def later() -> None:
            self.scheduler.sleep(seconds)
            work()

        self.scheduler.spawn(process, later)

    def start_worker(self) -> None:
        process = self.process("worker")
        self.workers = [role for role in self.workers if role.process.alive]
        self.workers.append(WorkerRole(self.scheduler, process, self.ports(process)))

    def start_sweeper(self) -> None:
        process = self.process("sweeps")
        self.sweepers = [role for role in self.sweepers if role.process.alive]
        self.sweepers.append(SweepsRole(self.scheduler, process, self.ports(process)))

    def start_web(self) -> None:
        process = self.process("web")
        self.web = WebRole(self.scheduler, process, self.ports(process))

    def heal(self) -> None:
        """Everything that is wrong ends: who is dead comes back, who is stopped goes on."""
        self.weather.clear_up()
        self.beat_is_up = True
        for server in self.servers.values():
            server.fails = False  # a circuit that opens again and again would outlast any drain
            if not server.up:
                server.start()
        for process in self.processes():
            process.doomed_after = process.stops_after = 0
            self.scheduler.go_on(process)
        if not self.web.process.alive:
            self.start_web()
        if not any(role.process.alive for role in self.sweepers):
            self.start_sweeper()
        while sum(role.process.alive and role.takes for role in self.workers) < WORKERS:
            self.start_worker()

    def is_calm(self) -> bool:
        """Whether nothing keeps the sweeps from what they are for."""
        return (
            self.beat_is_up
            and self.redis.is_whole(FLEET)
            and any(
                role.process.is_well and not self.weather.keeps_from_sweeping(role.process.name)
                for role in self.sweepers
            )
        )

    def operate(self, ask: Callable[[Ports], None]) -> None:
        """By an operator, until it is done: the last word must stand."""
        while True:
            try:
                self.web.ask(ask)
                return
            except Exception as error:
                self.scheduler.note("operator", f"failed: {error}")
                self.scheduler.sleep(1.0)

    # -- messages --------------------------------------------------------------------------------------

    def _send_wakes(self, wakes: Sequence[Wakes]) -> int:
        self.scheduler.point("broker")
        if self.weather.broker_down:
            return 0
        messages = spread(wakes)
        for pool, host in messages:
            if self.weather.happens(self.weather.wake_lost):
                continue
            for _ in range(2 if self.weather.happens(self.weather.wake_doubled) else 1):
                self.scheduler.spawn(self.outside, partial(self._deliver, pool, host))
        return len(messages)

    def _deliver(self, pool: str, host: str | None) -> None:
        until = self.scheduler.now + WAKE_EXPIRES_SECONDS
        self.scheduler.sleep(self.chance.random() * 0.02)
        while self.scheduler.now < until:
            takers = [role for role in self.workers if role.process.alive and role.takes]
            if takers and not self.weather.broker_down:
                self.chance.choice(takers).work(pool, host)
                return
            self.scheduler.sleep(0.5)

    def _announce(self, job_ids: Sequence[str]) -> None:
        if not self.weather.happens(self.weather.wake_lost):
            for role in self.workers:
                if role.process.alive:
                    role.worker.nudge(job_ids)

    def _beat(self) -> None:
        while True:
            self.scheduler.sleep(BEAT_SECONDS)
            if self.beat_is_up and not self.weather.broker_down:
                for role in self.sweepers:
                    if role.process.alive and not role.process.stopped:
                        role.tick()

    # -- set-up ----------------------------------------------------------------------------------------

    def _reset(self) -> None:
        """What processes keep in modules."""
        connection.execute_wrappers.clear()
        fresh_database(_register)  # first: the one that makes it must draw nothing from what follows
        chance = random.Random(f"{self.seed} ids")
        random.seed(f"{self.seed} jitter")
        run_ids = random.Random(f"{self.seed} runs")
        runs.make_id = lambda: f"{run_ids.getrandbits(48):012x}"
        ids.clock = lambda: START.timestamp() + self.scheduler.now
        ids.chance_bits = chance.getrandbits  # type: ignore[assignment]
        ids._last_milliseconds = -1
        slow_redis.forget()
        limits.forget()
        quotas.forget()
        quotas_sweep.forget()
        late_tickets._late.clear()
        generation._under_way.clear()
        orphans._leaseless_since.clear()
        queries.forget()
        queries.REMEMBER_SECONDS = limits.REMEMBER_SECONDS = 1e9  # by no clock but ours
        quotas.REMEMBER_SECONDS = 0.0

    def _fleet(self) -> list[GpuServer]:
        fleet = []
        for name, slots in SLOTS.items():
            is_async = name.startswith("ltx2")
            fleet.append(
                GpuServer(
                    name,
                    self.scheduler,
                    random.Random(f"{self.seed} {name}"),
                    slots=slots,
                    is_async=is_async,
                    plain=name == "zimg-2" and self.chance.random() < 0.5,
                    deaf=name.endswith("-2") and self.chance.random() < 0.3,
                    push=self._push if name == "ltx2-1" and self.chance.random() < 0.5 else None,
                )
            )
        return fleet

    def _push(self, job_id: str, attempt_id: str, body: Mapping[str, Any]) -> None:
        """The GPU server calls the web process; it does not try for ever."""
        for _ in range(3):
            try:
                self.web.ask(
                    lambda ports: accept_push(job_id, push_token(attempt_id), body, ports=ports), 5.0
                )
                return
            except Exception as error:
                self.scheduler.note("push", f"failed: {error}")
                self.scheduler.sleep(1.0)


def make_template() -> None:
    """The tables and the fleet of every world, once for all processes that are forked from this one."""
    fresh_database(_register)


def _register() -> None:
    """The same fleet in every seed; before any index there is nobody to tell."""
    for name in TENANTS:
        Tenant.objects.create(name=name)
    for name, slots in SLOTS.items():
        for model in ("ltx2",) if name.startswith("ltx2") else ("zimg", "once"):
            register_server(
                model=model,
                server=name,
                endpoint=f"{origin(name)}/{model}",
                slots=slots,
                by="cli:simulate",
                leases=_no_redis,
                pool=POOLS[model == "ltx2"],
                model_fields=MODELS[model],
            )


def _no_redis(fleet: str) -> Leases:
    raise LeasingUnavailable("Redis is not there yet")
