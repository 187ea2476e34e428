"""Free capacity for jobs that are to be refused unless they can start at once (`if_busy=reject`)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from copy import copy

from gpus.errors import REDIS_AWAY
from jobs.domain.errors import Busy, CapacityUnknown, NoCapacity, Refused, TenantRunningFull
from jobs.limits.submit_limits import ask_redis, seconds_until_one_ends
from jobs.ports import Ports
from jobs.submission.request import SubmitRequest

HEALTH_SECONDS = 10.0
"""`Retry-After` if no healthy server runs the model: health checks may find one by then."""
UNKNOWN_SECONDS = 5.0
"""`Retry-After` while Redis is away."""


class Capacity:
    """The free slots for the jobs of one request: read once, then counted down by each job.

    No reservation: of two requests at the same moment the second may find its slot taken. Its job is stored
    by then, is the first in the queue, and is answered `queued`.
    """

    def __init__(self, requests: Iterable[SubmitRequest], tenant_id: int, ports: Ports) -> None:
        self._ports, self._tenant_id, self._looked_at = ports, tenant_id, ports.clock.now()
        self._free_slots: dict[str, int] = {}
        self._failing: set[str] = set()
        self._most: dict[str, int] = {}
        """By fleet: how many more jobs of the tenant may run (`Tenant.max_running`)."""
        self._waits: dict[tuple[str, object], float] = {}
        pools: dict[str, list[str]] = defaultdict(list)
        for model in sorted({one.body.model for one in requests if self._applies_to(one)}):
            spec = ports.registry.model_spec(model)
            if spec is not None and ports.registry.has_capacity(model):
                pools[spec.pool].append(model)
        for pool, names in pools.items():
            fleet = ports.registry.fleet_of(pool)
            found = ask_redis(
                "slots_not_looked_at",
                lambda pool=pool, names=names, fleet=fleet: (  # type: ignore[misc]
                    ports.leases(fleet).spare_slots(pool, str(tenant_id), names)
                ),
                ports,
            )
            if found is None:
                continue
            self._free_slots |= dict(zip(names, found.by_model, strict=True))
            self._failing |= found.failing
            if found.most is not None:
                self._most[fleet] = found.most

    def fresh(self) -> Capacity:
        """Return a copy with the counts as read, for another try of the transaction."""
        same = copy(self)
        same._free_slots, same._most = dict(self._free_slots), dict(self._most)
        return same

    def refusal(self, request: SubmitRequest) -> Refused | None:
        """Return why the job can't start at once; None if it can, or if the request did not ask for that."""
        if not self._applies_to(request):
            return None
        model = request.body.model
        if model in self._failing or not self._ports.registry.has_capacity(model):
            return NoCapacity(f"No healthy server runs {model!r} now.", retry_after_seconds=HEALTH_SECONDS)
        if model not in self._free_slots:
            return CapacityUnknown(
                f"{REDIS_AWAY}: it is unknown whether a slot is free, and the request would not wait.",
                retry_after_seconds=UNKNOWN_SECONDS,
            )
        if self._most.get(self._fleet_of(model), 1) <= 0:
            return TenantRunningFull(
                "The tenant runs as many jobs as it may.",
                retry_after_seconds=self._wait(tenant_id=self._tenant_id),
            )
        if self._free_slots[model] <= 0:
            wait = self._wait(model=model)
            return Busy(f"No slot is free for {model!r} now.", retry_after_seconds=wait)
        return None

    def _wait(self, **of: object) -> float:
        """Return the expected seconds until a job of this tenant or model ends; read once, since a batch may
        have a thousand refusals."""
        (which,) = of.items()
        if which not in self._waits:
            self._waits[which] = seconds_until_one_ends(self._ports.clock.now(), **of)
        return self._waits[which]

    def take(self, request: SubmitRequest) -> None:
        """Count an accepted request: one slot less for the next, also if this one would have waited."""
        if request.later_start(self._looked_at) is not None:
            return
        model = request.body.model
        for left, name in ((self._free_slots, model), (self._most, self._fleet_of(model))):
            if name in left:
                left[name] -= 1

    def _applies_to(self, request: SubmitRequest) -> bool:
        """Return True if the request is to be refused unless it starts at once; never for a later start."""
        return request.reject_if_busy and request.later_start(self._looked_at) is None

    def _fleet_of(self, model: str) -> str:
        spec = self._ports.registry.model_spec(model)
        return "" if spec is None else self._ports.registry.fleet_of(spec.pool)
