"""Tenants whose day has few GPU-seconds, and the books by which it is judged whether that was kept.

The books are our own: what the attempts' rows add up to, what Redis was told and what it gave, as it carried
it out. They are looked at between steps, so that no history depends on it.
"""

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
from verification.simulation.quota_checks import Books, QuotaChecks
from verification.simulation.scheduler import START
from verification.simulation.size import Size
from verification.simulation.world import World

LOOK_SECONDS = 4.0
GRACE_SECONDS = 15.0
"""For the sweep, where nothing keeps it from its work: a tick or two, and ten seconds in which a process that
stood still may have told what was true before."""
HELD_SECONDS = 20.0
"""From when all is mended until operators lift the quotas."""
SHARE = 0.5
"""Of histories in which a tenant has one from the start."""

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
    """broken: laws. held: looks at which a tenant was held back whose jobs waited."""

    def __init__(self, world: World, size: Size) -> None:
        self.broken: list[str] = []
        self.held = 0
        self._world = world
        self.told: dict[str, set[str]] = {pool: set() for pool in world.pools}
        """By pool, the tenants that Redis was told to hold back."""
        self._given: set[str] = set()
        self._wrong_since: dict[tuple[int, bool], float] = {}
        self._why = QuotaChecks(world, self.broken)
        chance = random.Random(f"{world.seed} quotas")
        if chance.random() < SHARE:
            seconds = chance.uniform(0.1, 0.7) * size.jobs
            Tenant.objects.filter(pk=chance.choice(world.tenants)).update(daily_gpu_seconds=seconds)
        world.redis.witness = self._carried_out

    def lift(self) -> None:
        """By an operator, after a while in which nothing but the quotas holds anybody back. Again where a cut
        that was under way had its last word later: it makes a day long, not endless."""
        tenants = self._world.tenants
        while True:
            self._world.scheduler.sleep(HELD_SECONDS)
            for tenant in tenants:
                self._world.operate(partial(rule_tenant, tenant, {"daily_gpu_seconds": None}))
            tenants = [tenant for tenant, _ in _limits()]

    def look(self) -> None:
        """What must be so, and in calm times is wrong for too long, breaks a law."""
        limits: dict[int, float] = dict(_limits())
        if not limits and not any(self.told.values()):
            self._wrong_since.clear()
            return
        used = self._used(limits)
        self._why.check(Books(limits, used, self.told))
        is_calm = self._world.is_calm()
        for tenant in self._world.tenants:
            is_used_up = tenant in limits and used[tenant] >= limits[tenant]
            held = sum(str(tenant) in names for names in self.told.values())
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
        """Of this UTC day: of what ended in it all, of what runs as much as ran in it."""
        now = START + timedelta(seconds=self._world.scheduler.now)
        day, used = day_of(now), dict.fromkeys(tenants, 0.0)
        for tenant in used:
            for began, ended, seconds in _attempts(tenant=tenant):
                if ended is None:
                    used[tenant] += max(0.0, (now - max(began, day)).total_seconds())
                elif ended >= day:
                    used[tenant] += seconds or 0.0
        return used

    def _carried_out(self, script: str, args: Mapping[str, Any], answer: Any) -> None:
        """By Redis, whether or not its reply arrives."""
        if script == "set_paused_tenants" and args["reason"] == ParkedFor.QUOTA.value:
            self.told[args["pool"]] = set(args["tenants"])
        if script not in ("claim", "release", "reserve") or not isinstance(answer, list):
            return
        lease = read_lease(as_text(answer))
        if lease is None or lease.adopted or lease.attempt_id in self._given:
            return
        self._given.add(lease.attempt_id)
        if lease.tenant in self.told[lease.pool]:
            self.broken.append(
                f"quota: job {lease.job_id} got {lease.slot} at {self._world.scheduler.now:.2f}, after Redis "
                f"was told that the day of tenant {lease.tenant} is used up"
            )
