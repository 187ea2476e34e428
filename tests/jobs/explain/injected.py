"""A fleet in which one thing keeps a job waiting, made by the real services on a real line."""

from __future__ import annotations

import random
import uuid
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

from gpus import queries
from gpus.errors import Verdict
from gpus.leasing.store import RedisLeases
from gpus.leasing.values import CircuitRules
from gpus.models import ModelConfig, Pause, Placement, Pool, Server
from gpus.protocol import DesiredState, Lease, PoolSpec, QueueAlgorithm, ReleaseMode, Ticket
from gpus.services.controls import pause, switch_server
from gpus.services.mirror import mirror_registry
from jobs.models import Job, Tenant
from jobs.services.explaining import Explanation, explain_job
from jobs.services.ports import Ports
from tests.builders import AbsentLeases, ManualClock, make_job, make_ports, make_tenant

RULES = CircuitRules(failures=3, rest_seconds=30.0)
WORKER = "w"


class Scene:
    """One model on one to three servers, a tenant whose job is asked about, and others."""

    def __init__(self, client: Any, seed: int) -> None:
        self.chance = random.Random(seed)
        self.name = f"x{uuid.uuid4().hex[:12]}"
        self.clock = ManualClock()
        self.leases = RedisLeases(client, self.name, now_ms=self._now_ms, circuit_rules=RULES)
        self.ports: Ports = make_ports(self.leases, clock=self.clock)
        self.numbers = 0
        queries.forget()
        self.pool = Pool.objects.create(name=self.name, fleet=self.name)
        self.model = ModelConfig.objects.create(name=self.name, pool=self.pool)
        self.other = ModelConfig.objects.create(name=f"{self.name}-b", pool=self.pool)
        self.tenant, self.rival = make_tenant("mine"), make_tenant("rival")
        self.servers = [self._server(number) for number in range(self.chance.randint(1, 3))]
        assert self.leases.begin_rebuild("scene")
        assert self.leases.wipe("scene")
        mirror_registry(self.leases, fleet=self.name)
        self.leases.open_generation("scene")
        self.ask()

    def _server(self, number: int) -> Server:
        server = Server.objects.create(
            name=f"{self.name}-{number}", pool=self.pool, slots=self.chance.randint(1, 3)
        )
        for model in (self.model, self.other):
            Placement.objects.create(server=server, model=model, endpoint="http://127.0.0.1:9/")
        return server

    def _now_ms(self) -> int:
        return int(self.clock.at.timestamp() * 1000)

    @property
    def slots(self) -> int:
        return sum(server.slots for server in self.servers)

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    # -- what happens ------------------------------------------------------------------------------------

    def ask(self) -> Lease | None:
        """A worker asks for work."""
        return self.leases.claim(self.pool.name, worker=WORKER, attempt_id=f"a{self.number()}")

    def job(self, *, of: Tenant | None = None, priority: int | None = None, **values: Any) -> Job:
        self.clock.move(0.01)
        priority = priority or self.chance.randint(4, 6)
        job = make_job(self.model, at=self.clock.now(), tenant=of or self.tenant, priority=priority, **values)
        self.leases.push(self.pool.name, [job.ticket])
        return job

    def tickets(self, count: int, *, of: Tenant, model: str = "", priority: int = 5) -> None:
        """Jobs of which only the line knows."""
        for _ in range(count):
            self.clock.move(0.01)
            ticket = Ticket(
                f"t{self.number()}", model or self.model.name, str(of.pk), priority, self._now_ms() * 1000
            )
            self.leases.push(self.pool.name, [ticket])

    def fill_slots(self) -> list[Lease]:
        """All of them run something; a worker asked lately."""
        self.tickets(self.slots, of=self.chance.choice((self.tenant, self.rival)), model=self.other.name)
        leases = [self.ask() for _ in range(self.slots)]
        assert all(leases)
        return [lease for lease in leases if lease]

    def fill_slots_but_one(self) -> None:
        self.tickets(self.slots - 1, of=self.rival, model=self.other.name)
        for _ in range(self.slots - 1):
            assert self.ask()

    def forget(self) -> None:
        """So that the next scene of the test finds no pause."""
        Pause.objects.all().delete()

    def end(self, lease: Lease, verdict: Verdict = Verdict.WELL, seconds: float = 1.0) -> None:
        self.leases.release(
            lease.ref, ReleaseMode.SETTLE, worker=WORKER, gpu_seconds=seconds, verdict=verdict
        )
        self.leases.settled([lease.ref])

    def some_ahead(self) -> None:
        """Noise: now and then others stand before it."""
        if self.chance.random() < 0.5:
            self.tickets(self.chance.randint(1, 5), of=self.chance.choice((self.tenant, self.rival)))

    def explain(self, job: Job) -> Explanation:
        return explain_job(Job.objects.get(id=job.id), self.ports)


def no_server(scene: Scene) -> Job:
    for server in scene.servers:
        scene.leases.forget_server(server.name)
        server.delete()
    scene.some_ahead()
    return scene.job()


def switched(desired: DesiredState) -> Callable[[Scene], Job]:
    def inject(scene: Scene) -> Job:
        for server in scene.servers:
            switch_server(server.name, desired, by="t", leases=scene.ports.leases)
        scene.some_ahead()
        return scene.job()

    return inject


def paused(kind: Pause.Kind) -> Callable[[Scene], Job]:
    def inject(scene: Scene) -> Job:
        if scene.chance.random() < 0.5:
            scene.fill_slots()
        name = {"model": scene.model.name, "tenant": str(scene.tenant.pk), "system": ""}[kind.value]
        pause(kind, name, by="t", leases=scene.ports.leases)
        scene.some_ahead()
        return scene.job()

    return inject


def resting(scene: Scene) -> Job:
    for server in scene.servers:
        scene.leases.rest_server(server.name, scene.chance.uniform(1, 60))
    return scene.job()


def quarantined(scene: Scene) -> Job:
    for lease in scene.fill_slots():
        scene.leases.release(lease.ref, ReleaseMode.SUSPECT, worker=WORKER, gpu_seconds=1.0)
    return scene.job()


def server_circuit(scene: Scene) -> Job:
    for _ in range(60):
        scene.tickets(1, of=scene.rival)
        lease = scene.ask()
        if lease is None:
            break
        scene.end(lease, Verdict.SERVER)
    return scene.job()


def model_circuit(scene: Scene) -> Job:
    for _ in range(40):
        scene.tickets(1, of=scene.rival)
        lease = scene.ask()
        if lease is None:
            break
        scene.end(lease, Verdict.MODEL)
        for server in scene.servers:  # so that another one is asked too
            if server.name == lease.server and len(scene.servers) > 1:
                scene.leases.rest_server(server.name, 0.05)
        scene.clock.move(0.02)
    scene.clock.move(0.1)
    if scene.chance.random() < 0.5:
        scene.tickets(1, of=scene.rival, model=scene.other.name)
        scene.ask()
    return scene.job()


def later_start(scene: Scene) -> Job:
    if scene.chance.random() < 0.5:
        scene.fill_slots()
    job = scene.job()
    scene.leases.remove(scene.pool.name, job.ticket)
    due = scene.clock.now() + timedelta(seconds=scene.chance.uniform(1, 500))
    Job.objects.filter(id=job.id).update(state="retrying", due_at=due, attempts_made=1)
    return job


def run_at(scene: Scene) -> Job:
    at = scene.clock.now() + timedelta(seconds=scene.chance.uniform(1, 500))
    job = scene.job()
    scene.leases.remove(scene.pool.name, job.ticket)
    Job.objects.filter(id=job.id).update(state="scheduled", run_at=at)
    return job


def all_busy(scene: Scene) -> Job:
    scene.fill_slots()
    return scene.job()


def behind(scene: Scene) -> Job:
    scene.fill_slots()
    scene.tickets(scene.chance.randint(2, 30), of=scene.chance.choice((scene.tenant, scene.rival)))
    return scene.job(priority=5)


def lower_share(scene: Scene) -> Job:
    """Its tenant ran something long while the rival waited."""
    scene.tickets(1, of=scene.tenant, model=scene.other.name)
    long = scene.ask()
    assert long is not None
    scene.fill_slots_but_one()
    scene.tickets(scene.chance.randint(3, 9), of=scene.rival)
    scene.end(long, seconds=200.0)
    assert scene.ask()  # the rival's
    return scene.job(priority=5)


def no_worker(scene: Scene) -> Job:
    job = scene.job()
    scene.clock.move(scene.chance.uniform(11, 1000))
    return job


def parked(letter: str) -> Callable[[Scene], Job]:
    def inject(scene: Scene) -> Job:
        if scene.chance.random() < 0.5:
            scene.fill_slots()
        client, prefix = scene.leases._scripts._client, scene.leases._scripts._prefix
        client.hset(f"{prefix}parked:{scene.pool.name}", str(scene.tenant.pk), letter)
        return scene.job()

    return inject


def rebuilding(scene: Scene) -> Job:
    job = scene.job()
    assert scene.leases.begin_rebuild("scene")
    if scene.chance.random() < 0.5:
        scene.leases.wipe("scene")
    return job


def away(scene: Scene) -> Job:
    job = scene.job()
    scene.ports = replace(scene.ports, leases=lambda fleet: AbsentLeases())
    return job


def fifo_behind(scene: Scene) -> Job:
    scene.leases.configure_pool(PoolSpec(scene.pool.name, QueueAlgorithm.FIFO))
    return behind(scene)


CAUSES: dict[str, tuple[str, Callable[[Scene], Job]]] = {
    "no_server": ("no_server", no_server),
    "off": ("servers_off", switched(DesiredState.OFF)),
    "draining": ("draining", switched(DesiredState.DRAINING)),
    "system_paused": ("system_paused", paused(Pause.Kind.SYSTEM)),
    "model_paused": ("model_paused", paused(Pause.Kind.MODEL)),
    "tenant_paused": ("tenant_paused", paused(Pause.Kind.TENANT)),
    "resting": ("resting", resting),
    "quarantined": ("quarantined", quarantined),
    "server_circuit": ("circuit_open", server_circuit),
    "model_circuit": ("circuit_open", model_circuit),
    "later_start": ("later_start", later_start),
    "run_at": ("later_start", run_at),
    "all_busy": ("all_busy", all_busy),
    "behind": ("behind", behind),
    "fifo_behind": ("behind", fifo_behind),
    "lower_share": ("lower_share", lower_share),
    "no_worker": ("no_worker", no_worker),
    "tenant_cap": ("tenant_cap", parked("m")),
    "quota": ("quota", parked("q")),
    "index_rebuilding": ("index_rebuilding", rebuilding),
    "index_away": ("index_away", away),
}
"""By name: the code that must come first, and what brings it about."""
