"""Checks that `explain` names the quota, with true figures, for jobs that wait for it, and for no others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foundation.database import statements
from jobs.domain.errors import QuotaExhausted
from jobs.explain.decide import WAITING
from jobs.models import Job
from jobs.operations.explain_job import Explanation, estimate_job, explain_job
from verification.simulation.world import World

ROUNDED = 0.1
ASKED_EVERY = 3
"""Looks at the books: an explanation costs as much as a job."""
_ELSEWHERE = {"index_away", "index_rebuilding", "starting"}
"""Told in place of what the line knows."""

_waiting = statements.Read(
    lambda: (
        Job.objects.filter(tenant=statements.value(Job, "tenant"), state__in=WAITING)
        .order_by("id")
        .values_list("id", flat=True)
    )
)
_of_id = statements.Read(
    lambda: Job.objects.filter(id=statements.value(Job, "id")).defer("payload", "result")
)


@dataclass(frozen=True, slots=True)
class Books:
    """limits, used: GPU-seconds by tenant, of those that have a quota. held: by pool, whom Redis was told to
    hold back for it."""

    limits: Mapping[int, float]
    used: Mapping[int, float]
    held: Mapping[str, set[str]]

    def is_used_up(self, tenant: int) -> bool:
        return tenant in self.limits and self.used[tenant] >= self.limits[tenant]


class QuotaChecks:
    """Called between steps: every third time it explains a job of each tenant that is held back, and of one
    more tenant in rotation. broken: collects the broken laws."""

    def __init__(self, world: World, broken: list[str]) -> None:
        self._world, self._broken, self._looks = world, broken, 0
        self._ports = world.true_ports()

    def check(self, books: Books) -> None:
        self._looks += 1
        if self._looks % ASKED_EVERY:
            return
        next_one = self._world.tenants[self._asked % len(self._world.tenants)]
        for tenant in {next_one, *(int(name) for names in books.held.values() for name in names)}:
            if ids := _waiting(tenant=tenant):
                self._explain(_of_id.first(id=ids[self._asked % len(ids)]), books)
        self._estimate(next_one, books)

    @property
    def _asked(self) -> int:
        """How often so far."""
        return self._looks // ASKED_EVERY

    def _explain(self, job: Job, books: Books) -> None:
        told = explain_job(job, self._ports)
        codes = [reason.code for reason in told.reasons]
        if _ELSEWHERE.intersection(codes):
            return
        waits = str(job.tenant_id) in books.held[job.pool]
        if waits != ("quota" in codes):
            said = "waits for its tenant's quota" if waits else "does not wait for a quota"
            self._broken.append(f"told: job {job.id} {said}, and is told {codes}")
        self._check_figures(f"job {job.id}", job.tenant_id, told, books)

    def _estimate(self, tenant: int, books: Books) -> None:
        model = self._world.models[self._asked % len(self._world.models)]
        told = estimate_job(model, tenant, 5, self._ports)
        refused = any(one.evidence.get("refused_with") == QuotaExhausted.code for one in told.reasons)
        if refused != books.is_used_up(tenant):
            how = "would be" if refused else "would not be"
            self._broken.append(
                f"told: tenant {tenant} used {books.used.get(tenant, 0.0):.2f} of"
                f" {books.limits.get(tenant)}, and is told that its next job {how} refused for that"
            )
        self._check_figures(f"the next job of tenant {tenant}", tenant, told, books)

    def _check_figures(self, who: str, tenant: int, told: Explanation, books: Books) -> None:
        for evidence in (reason.evidence for reason in told.reasons if reason.code == "quota"):
            limit, used = evidence.get("limit_gpu_seconds"), evidence.get("used_gpu_seconds", 0.0)
            real = books.used.get(tenant, 0.0)
            if limit != books.limits.get(tenant) or abs(used - real) > ROUNDED:
                self._broken.append(
                    f"told: {who} is told that {used} of {limit} GPU-seconds are used, and it is"
                    f" {real:.2f} of {books.limits.get(tenant)}"
                )
