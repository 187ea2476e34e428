"""Whether a job that came now would start now: for those who would rather be refused than wait."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from gpus import queries as registry
from jobs.errors import Busy, CapacityUnknown, NoCapacity, Refused
from jobs.services import slow_redis
from jobs.services.paces import seconds_until_one_ends
from jobs.services.ports import Ports

HEALTH_SECONDS = 10.0
"""When a server that is gone may be found back."""
UNKNOWN_SECONDS = 5.0


class Capacity:
    """What is free, looked at once for all jobs of a request and then counted down by them.

    A look, no reservation: of two requests at the same moment the second may find its slot taken. Its job is
    durable by then, stands first in line and says `queued`.
    """

    def __init__(self, models: Iterable[str], tenant_id: int, ports: Ports) -> None:
        self._ports = ports
        self._spare: dict[str, int] = {}
        pools: dict[str, list[str]] = defaultdict(list)
        for model in sorted(set(models)):
            spec = registry.model_spec(model)
            if spec is not None and registry.has_capacity(model):
                pools[spec.pool].append(model)
        for pool, names in pools.items():
            leases = ports.leases(registry.fleet_of(pool))
            found = slow_redis.ask(
                "slots_not_looked_at",
                lambda pool=pool, names=names, leases=leases: leases.spare_slots(pool, str(tenant_id), names),  # type: ignore[misc]
                ports,
            )
            self._spare |= dict(zip(names, found or (), strict=False))

    def refusal(self, model: str) -> Refused | None:
        """None: a slot is free, and counted as this job's."""
        if not registry.has_capacity(model):
            return NoCapacity(f"No healthy server runs {model!r} now.", retry_after_seconds=HEALTH_SECONDS)
        if model not in self._spare:
            return CapacityUnknown(retry_after_seconds=UNKNOWN_SECONDS)
        if self._spare[model] <= 0:
            wait = seconds_until_one_ends(self._ports.clock.now(), model=model)
            return Busy(f"No slot is free for {model!r} now.", retry_after_seconds=wait)
        self._spare[model] -= 1
        return None
