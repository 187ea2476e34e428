"""How many jobs may wait: for a model, and of a tenant. Waiting is all that is accepted and neither runs nor
is over: in line, between two attempts, or ahead of its time.

The rows are counted by an index, and never further than the limit: nothing is kept beside them, and the count
is right while Redis is away. It is taken inside the transaction that inserts the jobs. On SQLite, which
writes one transaction at a time, the limit is exact; on PostgreSQL requests that commit at the same moment
don't see each other's jobs and may go over it by those. That is all right: the limit keeps the line from
growing without end, it is no licence that is sold by the piece, and a lock per tenant would cost every submit
a turn in a line.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from gpus import queries as registry
from jobs.errors import ModelQueueFull, Refused, TenantQueueFull
from jobs.models import Job
from jobs.services.limits import limits_of
from jobs.services.paces import seconds_until_one_ends
from jobs.transitions import WAITING

_STATES = [state.value for state in WAITING]


class Room:
    """The room of one transaction, counted at the first job that asks for it and then by its own jobs."""

    def __init__(self, tenant_id: int, now: datetime) -> None:
        self._tenant_id, self._now = tenant_id, now
        self._left: dict[str, int] = {}

    def refusal(self, model: str) -> Refused | None:
        """None: there is room, and this job has taken it."""
        spec = registry.model_spec(model)
        of_model = spec.max_queued if spec else None
        of_tenant = limits_of(self._tenant_id).max_queued
        # "not over" is what the index of a tenant's jobs is made for; that of a model's has them all
        mine = {"tenant_id": self._tenant_id, "finished_at": None}
        if of_tenant is not None and self._room("", of_tenant, **mine) <= 0:
            return TenantQueueFull(
                f"{of_tenant} jobs of the tenant wait, and no more may.",
                retry_after_seconds=seconds_until_one_ends(self._now, tenant_id=self._tenant_id),
            )
        if of_model is not None and self._room(model, of_model, model=model) <= 0:
            return ModelQueueFull(
                f"{of_model} jobs wait for {model!r}, and no more may.",
                retry_after_seconds=seconds_until_one_ends(self._now, model=model),
            )
        for name in ("", model):
            if name in self._left:
                self._left[name] -= 1
        return None

    def _room(self, name: str, limit: int, **of: Any) -> int:
        if name not in self._left:
            # only the state is read: so the index alone has all that the count needs
            rows = Job.objects.filter(state__in=_STATES, **of).order_by().values("state")
            self._left[name] = limit - rows[:limit].count()
        return self._left[name]
