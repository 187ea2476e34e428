"""Whether a job that came now would start now: for those who would rather be refused than wait."""

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
"""When a server that is gone may be found back."""
UNKNOWN_SECONDS = 5.0


class Capacity:
    """What is free, looked at once for all jobs of a request and then counted down by them.

    A look, no reservation: of two requests at the same moment the second may find its slot taken. Its job is
    durable by then, stands first in line and says `queued`.
    """

    def __init__(self, requests: Iterable[SubmitRequest], tenant_id: int, ports: Ports) -> None:
        self._ports, self._tenant_id, self._looked_at = ports, tenant_id, ports.clock.now()
        self._spare: dict[str, int] = {}
        self._failing: set[str] = set()
        self._most: dict[str, int] = {}
        """By fleet: how many more jobs of the tenant may run there, in all its pools."""
        self._waits: dict[tuple[str, object], float] = {}
        pools: dict[str, list[str]] = defaultdict(list)
        for model in sorted({one.body.model for one in requests if self._is_asked(one)}):
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
            self._spare |= dict(zip(names, found.by_model, strict=True))
            self._failing |= found.failing
            if found.most is not None:
                self._most[fleet] = found.most

    def fresh(self) -> Capacity:
        """The same look, and nothing taken: for a transaction that is tried again."""
        same = copy(self)
        same._spare, same._most = dict(self._spare), dict(self._most)
        return same

    def refusal(self, request: SubmitRequest) -> Refused | None:
        """None: a slot is free, or nobody asked."""
        if not self._is_asked(request):
            return None
        model = request.body.model
        if model in self._failing or not self._ports.registry.has_capacity(model):
            return NoCapacity(f"No healthy server runs {model!r} now.", retry_after_seconds=HEALTH_SECONDS)
        if model not in self._spare:
            return CapacityUnknown(
                f"{REDIS_AWAY}: nobody can say whether a slot is free, and the request would not wait.",
                retry_after_seconds=UNKNOWN_SECONDS,
            )
        if self._most.get(self._fleet_of(model), 1) <= 0:
            return TenantRunningFull(
                "The tenant runs as many jobs as it may.",
                retry_after_seconds=self._wait(tenant_id=self._tenant_id),
            )
        if self._spare[model] <= 0:
            wait = self._wait(model=model)
            return Busy(f"No slot is free for {model!r} now.", retry_after_seconds=wait)
        return None

    def _wait(self, **of: object) -> float:
        """Until a job of these ends; read once, as a batch may be refused a thousand times."""
        (which,) = of.items()
        if which not in self._waits:
            self._waits[which] = seconds_until_one_ends(self._ports.clock.now(), **of)
        return self._waits[which]

    def take(self, request: SubmitRequest) -> None:
        """The request was accepted: the next one finds a slot less, whoever of the two asked."""
        if request.later_start(self._looked_at) is not None:
            return
        model = request.body.model
        for left, name in ((self._spare, model), (self._most, self._fleet_of(model))):
            if name in left:
                left[name] -= 1

    def _is_asked(self, request: SubmitRequest) -> bool:
        """What is free now says nothing of a later start."""
        return request.reject_if_busy and request.later_start(self._looked_at) is None

    def _fleet_of(self, model: str) -> str:
        spec = self._ports.registry.model_spec(model)
        return "" if spec is None else self._ports.registry.fleet_of(spec.pool)
