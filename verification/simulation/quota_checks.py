"""Checks that `explain` names the quota, with correct figures, for exactly the jobs that wait for it."""

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
"""Checks per explanation, which costs as much as a job."""
_ELSEWHERE = {"index_away", "index_rebuilding", "starting"}
"""Reasons that are given instead of those known from the queue."""

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
class QuotaLedger:
    """The simulation's own account of quotas. limits, used: GPU-seconds by tenant, of those with a quota.
    held: by pool, the tenants held back for it."""

    limits: Mapping[int, float]
    used: Mapping[int, float]
    held: Mapping[str, set[str]]

    def is_used_up(self, tenant: int) -> bool:
        """Return True if the tenant has a quota and has used it up."""
        return tenant in self.limits and self.used[tenant] >= self.limits[tenant]


class QuotaChecks:
    """Called between steps: every third time it explains a job of each tenant that is held back, and of one
    more tenant in rotation. broken: collects violations."""

    def __init__(self, world: World, broken: list[str]) -> None:
        self._world, self._broken, self._looks = world, broken, 0
        self._ports = world.true_ports()

    def check(self, ledger: QuotaLedger) -> None:
        self._looks += 1
        if self._looks % ASKED_EVERY:
            return
        next_one = self._world.tenants[self._checks % len(self._world.tenants)]
        for tenant in {next_one, *(int(name) for names in ledger.held.values() for name in names)}:
            if ids := _waiting(tenant=tenant):
                self._explain(_of_id.first(id=ids[self._checks % len(ids)]), ledger)
        self._estimate(next_one, ledger)

    @property
    def _checks(self) -> int:
        """How often so far."""
        return self._looks // ASKED_EVERY

    def _explain(self, job: Job, ledger: QuotaLedger) -> None:
        explanation = explain_job(job, self._ports)
        codes = [reason.code for reason in explanation.reasons]
        if _ELSEWHERE.intersection(codes):
            return
        waits = str(job.tenant_id) in ledger.held[job.pool]
        if waits != ("quota" in codes):
            state = "waits for its tenant's quota" if waits else "does not wait for a quota"
            self._broken.append(f"explained: job {job.id} {state}, but the explanation has {codes}")
        self._check_figures(f"job {job.id}", job.tenant_id, explanation, ledger)

    def _estimate(self, tenant: int, ledger: QuotaLedger) -> None:
        model = self._world.models[self._checks % len(self._world.models)]
        explanation = estimate_job(model, tenant, 5, self._ports)
        refused = any(one.evidence.get("refused_with") == QuotaExhausted.code for one in explanation.reasons)
        if refused != ledger.is_used_up(tenant):
            how = "would be" if refused else "would not be"
            self._broken.append(
                f"explained: tenant {tenant} used {ledger.used.get(tenant, 0.0):.2f} of"
                f" {ledger.limits.get(tenant)}, but by the explanation its next job {how} refused for that"
            )
        self._check_figures(f"the next job of tenant {tenant}", tenant, explanation, ledger)

    def _check_figures(
        self, subject: str, tenant: int, explanation: Explanation, ledger: QuotaLedger
    ) -> None:
        for evidence in (reason.evidence for reason in explanation.reasons if reason.code == "quota"):
            limit, used = evidence.get("limit_gpu_seconds"), evidence.get("used_gpu_seconds", 0.0)
            real = ledger.used.get(tenant, 0.0)
            if limit != ledger.limits.get(tenant) or abs(used - real) > ROUNDED:
                self._broken.append(
                    f"explained: {subject} has used {used} of {limit} GPU-seconds by the explanation, but "
                    f"really {real:.2f} of {ledger.limits.get(tenant)}"
                )
