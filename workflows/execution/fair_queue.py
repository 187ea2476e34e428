"""The runs that a process is to advance, ordered so that no tenant's runs keep those of others waiting.

Start-time fair queueing: the tenant that used the least time comes next. A tenant that comes anew begins
where the others are, so it neither saves up time nor inherits a debt. Within a tenant, runs take turns.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from threading import Lock


@dataclass(slots=True)
class _Tenant:
    used: float
    waiting: OrderedDict[str, None] = field(default_factory=OrderedDict)
    taken: int = 0


class FairQueue:
    """Runs by tenant; each is in it once, however often it is added, and one thread at a time has it.

    Thread-safe. A tenant is forgotten once it has no run here.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._tenants: dict[int, _Tenant] = {}
        self._taken: dict[str, int] = {}
        self._again: set[str] = set()
        self._now = 0.0

    def __len__(self) -> int:
        """Runs that wait."""
        with self._lock:
            return sum(len(tenant.waiting) for tenant in self._tenants.values())

    def add(self, run_id: str, tenant_id: int) -> None:
        """Add a run; if a thread has it, it is due again afterwards."""
        with self._lock:
            if run_id in self._taken:
                self._again.add(run_id)
            else:
                self._wait(run_id, tenant_id)

    def take(self) -> str | None:
        """Return the run that comes next, until `give_back`; None if none waits."""
        with self._lock:
            waiting = [(one.taken, one.used, key) for key, one in self._tenants.items() if one.waiting]
            if not waiting:
                return None
            _, self._now, tenant_id = min(waiting)
            tenant = self._tenants[tenant_id]
            run_id, _ = tenant.waiting.popitem(last=False)
            tenant.taken += 1
            self._taken[run_id] = tenant_id
            return run_id

    def give_back(self, run_id: str, seconds: float, *, more: bool) -> None:
        """Return a run. seconds: charged to its tenant. more: it is due again."""
        with self._lock:
            tenant_id = self._taken.pop(run_id)
            tenant = self._tenants[tenant_id]
            tenant.taken -= 1
            tenant.used += seconds
            if more or run_id in self._again:
                self._again.discard(run_id)
                self._wait(run_id, tenant_id)
            elif not tenant.waiting and not tenant.taken:
                del self._tenants[tenant_id]

    def clear(self) -> list[str]:
        """Forget the runs that wait, and return them."""
        with self._lock:
            waiting = [*self._again, *(run for tenant in self._tenants.values() for run in tenant.waiting)]
            self._again.clear()
            for tenant in self._tenants.values():
                tenant.waiting.clear()
            self._tenants = {key: tenant for key, tenant in self._tenants.items() if tenant.taken}
            return waiting

    def _wait(self, run_id: str, tenant_id: int) -> None:
        tenant = self._tenants.get(tenant_id)
        if tenant is None:
            tenant = self._tenants[tenant_id] = _Tenant(self._now)
        tenant.waiting.setdefault(run_id)
