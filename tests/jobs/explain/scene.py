"""A fleet in which a job waits, built by the real services on a real queue."""

from __future__ import annotations

import random
import uuid
from typing import Any

from gpus.errors import Verdict
from gpus.leasing.store import RedisLeases
from gpus.leasing.values import CircuitRules
from gpus.models import ModelConfig, Pause, Placement, Pool, Server
from gpus.protocol import (
    Lease,
    ReleaseMode,
    Ticket,
)
from gpus.registry.index_sync import mirror_registry
from gpus.registry.queries import rows_changed
from jobs.models import Job, Rollup, Tenant
from jobs.operations.explain_job import Explanation, estimate_job, explain_job
from jobs.ports import Ports
from jobs.reports.rollups import HOUR
from tests.support.factories import make_job, make_tenant
from tests.support.fakes import ManualClock, make_ports

RULES = CircuitRules(failures=3, rest_seconds=30.0)
WORKER = "w"


class Scene:
    """One model on one to three servers, the tenant of the explained job, and other tenants."""

    def __init__(self, client: Any, seed: int) -> None:
        self.chance = random.Random(seed)
        self.name = f"x{uuid.uuid4().hex[:12]}"
        self.clock = ManualClock()
        self.leases = RedisLeases(client, self.name, now_ms=self._now_ms, circuit_rules=RULES)
        self.ports: Ports = make_ports(self.leases, clock=self.clock)
        self.numbers = 0
        rows_changed.send(None)
        self.pool = Pool.objects.create(name=self.name, fleet=self.name)
        self.model = ModelConfig.objects.create(name=self.name, pool=self.pool)
        self.other = ModelConfig.objects.create(name=f"{self.name}-b", pool=self.pool)
        self.tenant, self.rival = make_tenant(f"{self.name}-mine"), make_tenant(f"{self.name}-rival")
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

    # -- events ------------------------------------------------------------------------------------

    def ask(self) -> Lease | None:
        """A worker claims."""
        return self.leases.claim(self.pool.name, worker=WORKER, attempt_id=f"a{self.number()}")

    def job(self, *, of: Tenant | None = None, priority: int | None = None, **values: Any) -> Job:
        self.clock.move(0.01)
        priority = priority or self.chance.randint(4, 6)
        job = make_job(self.model, at=self.clock.now(), tenant=of or self.tenant, priority=priority, **values)
        self.leases.push(self.pool.name, [job.ticket])
        return job

    def tickets(self, count: int, *, of: Tenant, model: str = "", priority: int = 5) -> None:
        """Tickets in Redis without rows."""
        for _ in range(count):
            self.clock.move(0.01)
            ticket = Ticket(
                f"t{self.number()}", model or self.model.name, str(of.pk), priority, self._now_ms() * 1000
            )
            self.leases.push(self.pool.name, [ticket])

    def fill_slots(self) -> list[Lease]:
        """All slots are busy; a worker claimed recently."""
        self.tickets(self.slots, of=self.chance.choice((self.tenant, self.rival)), model=self.other.name)
        leases = [self.ask() for _ in range(self.slots)]
        assert all(leases)
        return [lease for lease in leases if lease]

    def fill_slots_but_one(self) -> None:
        self.tickets(self.slots - 1, of=self.rival, model=self.other.name)
        for _ in range(self.slots - 1):
            assert self.ask()

    def forget(self) -> None:
        """End the pauses, for the next scene of the test."""
        Pause.objects.all().delete()

    def end(self, lease: Lease, verdict: Verdict = Verdict.WELL, seconds: float = 1.0) -> None:
        self.leases.release(lease.ref, ReleaseMode.ENDED, worker=WORKER, gpu_seconds=seconds, verdict=verdict)
        self.leases.confirm_ends([lease.ref])

    def hand_on(self, lease: Lease) -> None:
        """The end of the run frees the slot for the next job."""
        following = f"a{self.number()}"
        assert self.leases.release(
            lease.ref, ReleaseMode.ENDED, worker=WORKER, gpu_seconds=1.0, next_attempt_id=following
        )
        self.leases.confirm_ends([lease.ref])

    def some_ahead(self) -> None:
        """Noise: sometimes other jobs are ahead."""
        if self.chance.random() < 0.5:
            self.tickets(self.chance.randint(1, 5), of=self.chance.choice((self.tenant, self.rival)))

    def limit(self, **limits: Any) -> None:
        """Sets the tenant's submit limits."""
        for name, value in limits.items():
            setattr(self.tenant, name, value)
        self.tenant.save()

    def use_up_the_day(self) -> None:
        limit = self.chance.uniform(1, 1000)
        self.limit(daily_gpu_seconds=limit)
        Rollup.objects.create(
            span_seconds=HOUR, at=self.clock.now(), model=self.model.name, tenant=self.tenant, completed=1,
            gpu_seconds=limit * self.chance.uniform(1, 3),
        )  # fmt: skip

    def explain(self, job: Job) -> Explanation:
        return explain_job(Job.objects.get(id=job.id), self.ports)

    def estimate(self) -> Explanation:
        return estimate_job(self.model.name, self.tenant.pk, 5, self.ports)
