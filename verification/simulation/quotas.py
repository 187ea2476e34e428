"""Tenants with small daily quotas, and a ledger by which the quotas are checked.

The ledger is the simulation's own: the sum of the attempts' rows, and the requests and answers that Redis
carried out. It is checked between steps, so that no history depends on it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial
from typing import Any

from foundation.database import statements
from gpus.leasing.codec import read_lease
from gpus.leasing.scripts import as_text
from gpus.leasing.values import ParkedFor
from jobs.domain.states import JobState
from jobs.models import Attempt, Job, Tenant
from jobs.reports.rollups import day_of
from verification.simulation.operators import rule_tenant
from verification.simulation.quota_checks import QuotaChecks, QuotaLedger
from verification.simulation.scheduler import START
from verification.simulation.size import Size
from verification.simulation.world import World

CHECK_SECONDS = 4.0
GRACE_SECONDS = 15.0
"""For an undisturbed sweep: a tick or two, and ten seconds in which a process that was stopped may have sent
an older state."""
HELD_SECONDS = 20.0
"""From the repair of all faults until operators lift the quotas."""
SHARE = 0.5
"""Share of histories in which a tenant has a quota from the start."""

_limits = statements.Read(
    lambda: Tenant.objects.exclude(daily_gpu_seconds=None).order_by().values_list("pk", "daily_gpu_seconds")
)
_attempts = statements.Read(
    lambda: (
        Attempt.objects.filter(job__tenant=statements.value(Job, "tenant"))
        .order_by()
        .values_list("started_at", "finished_at", "gpu_seconds")
    )
)

_queued = statements.Read(
    lambda: (
        Job.objects.filter(tenant=statements.value(Job, "tenant"), state=JobState.QUEUED.value)
        .order_by()
        .values_list("state")[:1]
    )
)


class Quotas:
    """Sets quotas and checks that they are kept. broken: violations. held: checks at which a tenant with
    waiting jobs was held back."""

    def __init__(self, world: World, size: Size) -> None:
        self.broken: list[str] = []
        self.held = 0
        self._world = world
        self.holds: dict[str, set[str]] = {pool: set() for pool in world.pools}
        """By pool, the tenants that Redis holds back."""
        self._given: set[str] = set()
        self._wrong_since: dict[tuple[int, bool], float] = {}
        self._why = QuotaChecks(world, self.broken)
        chance = random.Random(f"{world.seed} quotas")
        if chance.random() < SHARE:
            seconds = chance.uniform(0.1, 0.7) * size.jobs
            Tenant.objects.filter(pk=chance.choice(world.tenants)).update(daily_gpu_seconds=seconds)
        world.redis.observer = self._on_script

    def lift(self) -> None:
        """Lift all quotas as an operator, after a while in which only quotas hold tenants back.

        Repeated if a cut that was under way took effect later: it makes a day long, not endless."""
        tenants = self._world.tenants
        while True:
            self._world.scheduler.sleep(HELD_SECONDS)
            for tenant in tenants:
                self._world.operate(partial(rule_tenant, tenant, {"daily_gpu_seconds": None}))
            tenants = [tenant for tenant, _ in _limits()]

    def check(self) -> None:
        """A rule that is broken in calm times for too long is a violation."""
        limits: dict[int, float] = dict(_limits())
        if not limits and not any(self.holds.values()):
            self._wrong_since.clear()
            return
        used = self._used(limits)
        self._why.check(QuotaLedger(limits, used, self.holds))
        is_calm = self._world.is_calm()
        for tenant in self._world.tenants:
            is_used_up = tenant in limits and used[tenant] >= limits[tenant]
            held = sum(str(tenant) in names for names in self.holds.values())
            if held == (len(self._world.pools) if is_used_up else 0) or not is_calm:
                self._wrong_since.pop((tenant, is_used_up), None)
            elif self._lasts((tenant, is_used_up)):
                there = (
                    f"used {used[tenant]:.1f} of {limits[tenant]:.1f} GPU-seconds"
                    if is_used_up
                    else "has some left"
                )
                self.broken.append(
                    f"quota: tenant {tenant} {there}, and is held back in {held} pools of "
                    f"{len(self._world.pools)}"
                )
            self._wrong_since.pop((tenant, not is_used_up), None)
            if held and is_used_up and is_calm:
                self.held += bool(_queued(tenant=tenant))

    def _lasts(self, what: tuple[int, bool]) -> bool:
        now = self._world.scheduler.now
        return now - self._wrong_since.setdefault(what, now) > GRACE_SECONDS

    def _used(self, tenants: Iterable[int]) -> dict[int, float]:
        """Return the GPU-seconds of this UTC day: ended runs, and the elapsed part of active ones."""
        now = START + timedelta(seconds=self._world.scheduler.now)
        day, used = day_of(now), dict.fromkeys(tenants, 0.0)
        for tenant in used:
            for began, ended, seconds in _attempts(tenant=tenant):
                if ended is None:
                    used[tenant] += max(0.0, (now - max(began, day)).total_seconds())
                elif ended >= day:
                    used[tenant] += seconds or 0.0
        return used

    def _on_script(self, script: str, args: Mapping[str, Any], answer: Any) -> None:
        """Called when Redis carried out a script, whether or not its reply arrives."""
        if script == "set_paused_tenants" and args["reason"] == ParkedFor.QUOTA.value:
            self.holds[args["pool"]] = set(args["tenants"])
        if script not in ("claim", "release", "reserve") or not isinstance(answer, list):
            return
        lease = read_lease(as_text(answer))
        if lease is None or lease.adopted or lease.attempt_id in self._given:
            return
        self._given.add(lease.attempt_id)
        if lease.tenant in self.holds[lease.pool]:
            self.broken.append(
                f"quota: job {lease.job_id} got {lease.slot} at {self._world.scheduler.now:.2f}, after Redis "
                f"was informed that the day of tenant {lease.tenant} is used up"
            )
