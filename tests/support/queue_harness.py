"""A queue with its index and its clock: jobs are claimed, started and ended by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from foundation.ids import new_id
from gpus.errors import LeasingUnavailable
from gpus.leasing.connect import connect
from gpus.leasing.contract import Leases
from gpus.leasing.keys import prefix
from gpus.leasing.store import RedisLeases
from gpus.leasing.values import Wakes
from gpus.models import ModelConfig, Placement, Pool, Server
from gpus.protocol import Lease, ReleaseMode
from jobs import transitions
from jobs.index_rebuild.rebuild import mirror_fleet
from jobs.models import Attempt, Job, Tenant
from jobs.ports import Ports
from jobs.transitions import Start
from tests.support.factories import create_jobs

LEASE_SECONDS = 15.0


class VirtualClock:
    """A clock that starts at the machine's time and is moved by the test; also used for Redis."""

    def __init__(self) -> None:
        self._now, self._monotonic = datetime.now(UTC), 1000.0

    def now(self) -> datetime:
        return self._now

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        self._now += timedelta(seconds=seconds)
        self._monotonic += seconds

    def set_back(self, seconds: float) -> None:
        self._now -= timedelta(seconds=seconds)

    def now_ms(self) -> int:
        return int(self._now.timestamp() * 1000)


class NoRedis:
    """A lease layer without Redis: every method raises."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def unavailable(*_: Any, **__: Any) -> Any:
            raise LeasingUnavailable("Redis does not answer")

        return unavailable


@dataclass
class QueueHarness:
    """Test ports that record their calls, and shortcuts that put a job into a state."""

    fleet: str
    clock: VirtualClock
    leases: Leases
    client: Any
    wakes: list[Wakes] = field(default_factory=list)
    callbacks: list[str] = field(default_factory=list)
    announced: list[str] = field(default_factory=list)
    redis_is_gone: bool = False

    def __post_init__(self) -> None:
        self.ports = Ports(
            clock=self.clock,
            leases=self._leases_of,
            send_wakes=self._send,
            wake_callbacks=self.callbacks.extend,
            announce=self.announced.extend,
            after=lambda seconds, work: None,
        )
        self.tenant = Tenant.objects.create(name=f"tenant-{new_id()}")

    def _leases_of(self, fleet: str) -> Leases:
        """Only the test's own fleet has a Redis; `main` always exists, too."""
        return self.leases if fleet == self.fleet and not self.redis_is_gone else cast(Leases, NoRedis())

    def _send(self, wakes: Sequence[Wakes]) -> int:
        self.wakes.extend(wakes)
        return sum(wake.count for wake in wakes)

    def server(
        self, name: str = "gpu-1", *, slots: int = 1, url: str = "http://127.0.0.1:9/run", **model: Any
    ) -> Server:
        """Register a server with one model, `m`, in pool `m`; written to Redis if available."""
        pool, _ = Pool.objects.get_or_create(name="m", defaults={"fleet": self.fleet})
        config, _ = ModelConfig.objects.get_or_create(name="m", defaults={"pool": pool, **model})
        server = Server.objects.create(name=name, pool=pool, slots=slots)
        Placement.objects.create(server=server, model=config, endpoint=url)
        if not self.redis_is_gone:
            mirror_fleet(self.fleet, self.leases, self.ports)
        return server

    def job(self, *, push: bool = True, **fields: Any) -> Job:
        now = self.clock.now()
        values = {
            "tenant": self.tenant,
            "model": "m",
            "pool": "m",
            "fleet": self.fleet,
            "payload": {},
            "place_us": int(now.timestamp() * 1_000_000),
            "created_at": now,
        }
        job = Job(**(values | fields))
        create_jobs([job], now)
        if push:
            self.leases.push("m", [job.ticket])
        return job

    def claim(self, *, written: bool = True, worker: str = "w1") -> Lease:
        """Claim the next job. written: also commit its start."""
        lease = self.leases.claim("m", worker=worker, attempt_id=new_id())
        assert lease is not None
        if written:
            self.start(lease)
        return lease

    def start(self, lease: Lease) -> None:
        start = Start(lease.job_id, lease.attempt_id, lease.slot, lease.model, "w1", self.clock.now())
        assert transitions.start_attempt(start) is transitions.StartOutcome.STARTED

    def accept(self, lease: Lease, remote_id: str = "r1") -> None:
        assert transitions.note_remote_id(
            lease.job_id, lease.attempt_id, lease.epoch, remote_id, self.clock.now()
        )

    def release(self, lease: Lease, mode: ReleaseMode = ReleaseMode.ENDED) -> None:
        self.leases.release(lease.ref, mode, worker="w1")

    def keys(self) -> str:
        return prefix(self.fleet)

    def flush(self) -> None:
        """Delete this fleet's data in Redis; other fleets share the server."""
        self.client.delete(*self.client.keys(f"{self.keys()}*"))

    def slot(self, server: str = "gpu-1", index: int = 0) -> str:
        return self.slots(server)[index]

    def slots(self, server: str = "gpu-1") -> list[str]:
        """Return the state of each slot."""
        return [view.state for view in self.leases.slots(server)]


@pytest.fixture
def queue(db: None, valkey: EmbeddedValkey, fleet: str) -> Iterator[QueueHarness]:
    """A queue with an open index; expired leases are examined every five minutes."""
    client, clock = connect(valkey.url), VirtualClock()
    leases = RedisLeases(client, fleet, lease_seconds=LEASE_SECONDS, sweep_seconds=100.0, now_ms=clock.now_ms)
    made = QueueHarness(fleet, clock, leases, client)
    open_index(leases)
    yield made
    client.close()


def open_index(leases: Leases, owner: str = "test") -> None:
    assert leases.begin_rebuild(owner)
    assert leases.wipe(owner)
    leases.open_generation(owner)


def attempt_of(job: Job) -> Attempt:
    return Attempt.objects.filter(job=job).latest("number")
