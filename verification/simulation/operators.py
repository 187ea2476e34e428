"""Operators who switch, pause and move things at random while faults are active."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

from foundation.database import statements
from gpus.models import Pause, Placement, Server
from gpus.protocol import BANDS, DesiredState
from gpus.registry import controls
from gpus.registry.index_sync import mirror
from gpus.registry.registry import remove_server
from jobs.models import Job, Tenant
from jobs.operations.queue_position import change_priority, run_next
from jobs.operations.tenants import change_rules
from jobs.ports import Ports
from jobs.transitions import WAITING
from verification.simulation.world import FLEET, SHORT_MODEL, World, models_of, register

OPERATOR = "cli:nemesis"
_RETRY_SECONDS = 20.0
_UNREADABLE = "under another key"
_SHORT_SECONDS = 0.6


class Operators:
    """The operators' faults. chance: random generator of the seed."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world, self._chance = world, chance

    def _sleep(self, shortest: float, longest: float) -> None:
        self._world.scheduler.sleep(self._chance.uniform(shortest, longest))

    def _await_index(self) -> None:
        """Wait until the index is whole, or the time is over."""
        until = self._world.scheduler.now + _RETRY_SECONDS
        while not self._world.versions.is_whole(FLEET) and self._world.scheduler.now < until:
            self._world.scheduler.sleep(1.0)

    def _server(self) -> str:
        return self._chance.choice(sorted(self._world.servers))

    def fewer_slots(self) -> None:
        """Lower a server's number of slots, and restore it later."""
        server = self._world.servers[self._server()]
        for slots in (self._chance.randint(0, server.slots), server.slots):
            self._operate(controls.set_slots, server.name, slots)
            self._sleep(2.0, 20.0)

    def server_off(self) -> None:
        """Switch a server off or drain it, and switch it on later."""
        name = self._server()
        for desired in (self._chance.choice([DesiredState.OFF, DesiredState.DRAINING]), DesiredState.ON):
            self._operate(controls.switch_server, name, desired)
            self._sleep(2.0, 20.0)

    def server_removed(self) -> None:
        """Unregister a server, also with active runs; later it is registered again."""
        name = self._server()
        self._world.operate(lambda ports: _remove(name, ports), retry_seconds=30.0)
        self._world.removed.add(name)
        self._sleep(20.0, 80.0)
        self._register(name)

    def placement_removed(self) -> None:
        """Remove one model from a server."""
        name = self._server()
        model = self._chance.choice(models_of(name))
        self._world.operate(lambda ports: _take_off(name, model, ports))
        self._sleep(20.0, 80.0)
        self._register(name)

    def secret_unreadable(self) -> None:
        """Store a server's headers under another key."""
        name = self._server()
        for headers in (_UNREADABLE, ""):
            self._world.operate(partial(_store_headers, name, headers))
            self._sleep(15.0, 40.0)

    def tenants_capped(self) -> None:
        """Limit the running jobs of all tenants, while one of them sends many short ones."""
        self._await_index()
        cap = self._chance.choice([2, 3])
        for tenant in self._world.tenants:
            self._world.operate(partial(rule_tenant, tenant, {"max_running": cap}))
        self._world.send_jobs(self._chance.choice(self._world.tenants), SHORT_MODEL, 6 * cap, _SHORT_SECONDS)
        self._sleep(15.0, 40.0)
        for tenant in self._world.tenants:
            self._world.operate(partial(rule_tenant, tenant, {"max_running": None}))

    def model_paused(self) -> None:
        """Pause a random model for a while."""
        self._hold(Pause.Kind.MODEL, self._chance.choice(self._world.models))

    def tenant_paused(self) -> None:
        """Pause a random tenant for a while."""
        self._hold(Pause.Kind.TENANT, str(self._chance.choice(self._world.tenants)))

    def system_paused(self) -> None:
        """Pause the whole system for a while."""
        self._hold(Pause.Kind.SYSTEM, "")

    def tenant_ruled(self) -> None:
        """Change a tenant's weight, highest band and limit of running jobs; later remove the limits."""
        tenant = self._chance.choice(self._world.tenants)
        limit = {"max_running": self._chance.choice([1, 2])}
        for rules in (
            {"weight": self._chance.choice([0.5, 4.0]), "highest_band": self._chance.choice(BANDS), **limit},
            {"highest_band": self._chance.choice(BANDS), "max_running": None},
        ):
            self._world.operate(partial(rule_tenant, tenant, rules))
            self._sleep(2.0, 20.0)

    def quota_cut(self) -> None:
        """Lower a tenant's daily quota, and raise it again."""
        tenant = self._chance.choice(self._world.tenants)
        for seconds, longest in (
            (self._chance.uniform(0.5, 8.0), 40.0),
            (self._chance.choice([None, 60.0]), 5.0),
        ):
            self._world.operate(partial(rule_tenant, tenant, {"daily_gpu_seconds": seconds}))
            self._sleep(0.25 * longest, longest)

    def moved_in_line(self) -> None:
        """Move a few waiting jobs while tickets are pushed and claimed."""
        for _ in range(5):
            place, priority = self._chance.randrange(10), self._chance.choice([None, 1, 3, 5, 9])
            try:
                self._world.web.call(partial(_move, place, priority))
            except Exception as error:
                self._world.scheduler.note("operator", f"failed: {error}")
            self._sleep(0.1, 2.0)

    def _register(self, server: str) -> None:
        self._world.operate(
            lambda ports: ports.send_wakes(register(server, by=OPERATOR, leases=ports.leases))
        )

    def _hold(self, kind: Pause.Kind, name: str) -> None:
        for switch in (controls.pause, controls.resume):
            self._operate(switch, kind, name)
            self._sleep(2.0, 20.0)

    def _operate(self, service: Callable[..., Any], *what: object) -> None:
        def ask(ports: Ports) -> None:
            done = service(*what, by=OPERATOR, leases=ports.leases)
            if done is not None:  # None: the server is gone by now
                ports.send_wakes(done.wakes)

        self._world.operate(ask)


_name_of = statements.Read(
    lambda: Tenant.objects.filter(pk=statements.value(Tenant, "id")).values_list("name", flat=True)
)


def rule_tenant(tenant: int, rules: dict[str, Any], ports: Ports) -> None:
    """Change a tenant's limits."""
    ports.send_wakes(change_rules(_name_of.first(id=tenant), rules, by=OPERATOR, ports=ports).wakes)


def is_unreadable(headers: str) -> bool:
    """Return True if a server's stored headers can't be decrypted."""
    return headers == _UNREADABLE


def _remove(name: str, ports: Ports) -> None:
    """Unregister a server. Raises RegistryRefused while one of its slots is in quarantine."""
    remove_server(name, by=OPERATOR, leases=ports.leases)


def _take_off(server: str, model: str, ports: Ports) -> None:
    placement = Placement.objects.filter(server=server, model=model).first()
    if placement is not None:
        row = placement.server
        placement.delete()
        wakes, _ = mirror(ports.leases, row.pool, row)
        ports.send_wakes(wakes)


def _store_headers(server: str, headers: str, _ports: Ports) -> None:
    row = Server.objects.filter(name=server).first()
    if row is not None:
        row.headers_encrypted = headers
        row.save()


def _move(place: int, priority: int | None, ports: Ports) -> None:
    """Move one of the first ten waiting jobs. priority None: it runs next."""
    line = Job.objects.filter(state__in=WAITING).order_by("place_us", "id").values_list("id", flat=True)
    if first := list(line[:10]):
        job_id = first[place % len(first)]
        if priority is None:
            run_next(job_id, by=OPERATOR, ports=ports)
        else:
            change_priority(job_id, priority, by=OPERATOR, ports=ports)
