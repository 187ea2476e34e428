"""A fleet with a hung Redis costs the other fleets' sweeps one time-out, not one per call."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, cast

import pytest

from dispatcher_project.supervisor.embedded import EmbeddedValkey
from gpus.errors import LeasingUnavailable
from gpus.leasing.connect import connect
from gpus.leasing.contract import Leases
from gpus.leasing.store import RedisLeases
from gpus.models import ModelConfig, Placement, Pool, Server
from gpus.protocol import PoolSpec, ServerSpec, SystemClock, Ticket
from gpus.registry.queries import rows_changed
from jobs.ports import Ports, after_seconds
from jobs.sweeps.fleet_circuits import with_fleet_circuits
from jobs.sweeps.registry import Sweeps
from jobs.sweeps.runner import Runner
from tests.support.queue_harness import QueueHarness, open_index

LEASE_SECONDS, SWEEP_SECONDS, TIMEOUT_SECONDS = 2.0, 0.5, 2.0
SLOWER = 2.0
"""What a busy machine may add, seconds."""


@contextmanager
def hanging_redis() -> Iterator[str]:
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as silent:
        yield f"redis://127.0.0.1:{silent.getsockname()[1]}/0"


def serve(name: str, model: str, pool: Pool) -> None:
    """Create the rows of a server with one slot and one model; servers without rows are removed from the
    index."""
    config = ModelConfig.objects.create(name=model, pool=pool)
    server = Server.objects.create(name=name, pool=pool, slots=1)
    Placement.objects.create(server=server, model=config, endpoint="http://127.0.0.1:9/run")


class Fleets:
    """A working fleet with a dead worker's lease, and fleets whose Redis can be made to hang."""

    def __init__(self, valkey: EmbeddedValkey, fleet: str, others: int) -> None:
        self.works = self._store(valkey.url, fleet)
        self.stores: dict[str, Leases] = {fleet: self.works, "main": self._store(valkey.url, f"{fleet}-main")}
        for number in range(others):
            self.stores[f"{fleet}-{number}"] = self._store(valkey.url, f"{fleet}-{number}")
        for name, store in self.stores.items():
            open_index(store)
            Pool.objects.create(name=f"pool-{name}", fleet=name)
        serve("gpu", "p", Pool.objects.create(name="p", fleet=fleet))
        rows_changed.send(None)
        self.ports = Ports(
            clock=SystemClock(),
            leases=lambda fleet: self.stores[fleet],
            send_wakes=len,
            wake_callbacks=lambda _: None,
            announce=lambda _: None,
            after=after_seconds,
        )
        self.works.configure_pool(PoolSpec("p"))
        self.works.configure_server(ServerSpec("gpu", "p", 1, ("p",)))
        self.works.push("p", [Ticket("job", "p", "t", 5, 1)])
        self.runner = Runner(self.ports, lambda: quick, in_thread=lambda work: work())
        self.runner.tick()

    @staticmethod
    def _store(url: str, fleet: str) -> RedisLeases:
        return RedisLeases(connect(url), fleet, lease_seconds=LEASE_SECONDS, sweep_seconds=SWEEP_SECONDS)

    def hang(self, url: str) -> None:
        for name, store in self.stores.items():
            if store is not self.works and name != "main":
                self.stores[name] = self._store(url, name)

    def seconds_of_a_tick(self) -> float:
        began = time.monotonic()
        self.runner.tick()
        time.sleep(0.1)
        return time.monotonic() - began

    def seconds_until(self, met: Any, *, most: float) -> float:
        """Tick once per second until the condition holds; return the seconds."""
        began = time.monotonic()
        while not met():
            assert time.monotonic() - began < most, f"not after {most} s"
            self.runner.tick()
            time.sleep(0.1)
        return time.monotonic() - began


quick = {name: entry for name, entry in Sweeps().entries().items() if not entry.slow or name == "generation"}


@pytest.mark.django_db
def test_a_dead_workers_slot_comes_back_while_other_fleets_hang(valkey: EmbeddedValkey, fleet: str) -> None:
    fleets = Fleets(valkey, fleet, 3)
    with ExitStack() as stack:
        fleets.hang(stack.enter_context(hanging_redis()))
        assert fleets.works.claim("p", worker="dead", attempt_id="a") is not None
        fleets.seconds_until(
            lambda: fleets.works.slots("gpu")[0].state != "leased",
            most=LEASE_SECONDS + TIMEOUT_SECONDS + 4 * SWEEP_SECONDS + SLOWER,
        )
        assert fleets.seconds_of_a_tick() < TIMEOUT_SECONDS / 2  # and no sweep waits for them any more


@pytest.mark.django_db
def test_a_fleet_that_answers_again_is_swept_again(valkey: EmbeddedValkey, fleet: str) -> None:
    fleets = Fleets(valkey, fleet, 1)
    name = f"{fleet}-0"
    good = fleets.stores[name]
    with hanging_redis() as url:
        fleets.hang(url)
        while fleets.seconds_of_a_tick() < TIMEOUT_SECONDS / 2:
            pass
        fleets.stores[name] = good
        pool = Pool.objects.get(fleet=name)
        serve("its", "n", pool)
        good.configure_server(ServerSpec("its", pool.name, 1, ("n",)))
        good.push(pool.name, [Ticket("job", "n", "t", 5, 1)])
        assert good.claim(pool.name, worker="dead", attempt_id="a") is not None
        fleets.seconds_until(
            lambda: good.slots("its")[0].state != "leased",
            most=LEASE_SECONDS + 2 * TIMEOUT_SECONDS + 1.0 + 4 * SWEEP_SECONDS + SLOWER,
        )


class Asked:
    """The lease layer hangs once; then the background probe fails, or its timer can't be started."""

    def __init__(self, queue: QueueHarness) -> None:
        self._clock, self._hangs = queue.clock, True

    def expired(self, _: int) -> list[str]:
        if self._hangs:
            self._hangs = False
            self._clock.advance(TIMEOUT_SECONDS)
            raise LeasingUnavailable("no answer")
        return []

    def generation(self) -> str:
        raise RuntimeError("can't start new thread")


@pytest.mark.django_db
@pytest.mark.parametrize("has_timers", [True, False])
def test_a_failing_probe_does_not_keep_a_circuit_open(queue: QueueHarness, has_timers: bool) -> None:
    calls, later = Asked(queue), list[Callable[[], None]]()

    def after(seconds: float, work: Callable[[], None]) -> None:
        if not has_timers:
            raise RuntimeError("can't start new thread")
        later.append(work)

    ports = with_fleet_circuits(replace(queue.ports, leases=lambda _: cast(Leases, calls), after=after))
    with pytest.raises(LeasingUnavailable):
        ports.leases("far").expired(1)
    for work in later:
        work()
    assert ports.leases("far").expired(1) == []
