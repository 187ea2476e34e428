"""/queue/stats: length and estimated duration of the queue, per model. /admin/workers: live processes and the
servers they use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from foundation.http_api.openapi import described
from gpus.errors import LeasingUnavailable
from gpus.leasing.contract import Leases
from gpus.models import ModelConfig
from gpus.registry.index_sync import read_paused
from jobs.api import answers
from jobs.api.base import JobView, OperatorView, principal_of
from jobs.api.parameters import allow_only
from jobs.domain.access import Principal
from jobs.limits.submit_limits import limits_of
from jobs.ports import Ports
from jobs.reports.fleet import WorkerRow, workers
from jobs.reports.jobs import Waiting, waiting_by_model_and_tenant
from jobs.reports.queue_report import depths_by_pool, working
from jobs.submission.request import Allowed


class Stats(JobView):
    @described("get_stats", "The queue, per model", answers={200: answers.Stats})
    def get(self, request: Request) -> Response:
        """Tenants see their own jobs and the models they may submit to; operators see all. Slots are those of
        the model's pool."""
        principal = principal_of(request)
        waiting: dict[str, list[Waiting]] = {}
        for line in waiting_by_model_and_tenant(principal, self.ports.waiting_of_all):
            waiting.setdefault(line.model, []).append(line)
        configs = dict(ModelConfig.objects.order_by("name").values_list("name", "pool_id"))
        names = [name for name in configs if name in waiting or _may_submit(principal, name, self.ports)]
        names += sorted(set(waiting) - set(configs))
        depths, _ = depths_by_pool(self.ports.leases)
        slots = {pool: depth.slots for pool, depth in depths.items()}
        paused = read_paused()
        return Response(
            {
                "models": [
                    _model(
                        name,
                        configs.get(name),
                        waiting.get(name, []),
                        slots,
                        self.ports,
                        is_paused=paused.system or name in paused.models,
                    )
                    for name in names
                ]
            }
        )


def _model(
    name: str,
    pool: str | None,
    lines: list[Waiting],
    slots: Mapping[str, Mapping[str, int]],
    ports: Ports,
    *,
    is_paused: bool,
) -> dict[str, Any]:
    oldest = min((line.oldest_queued_at for line in lines if line.oldest_queued_at), default=None)
    counts = slots.get(pool) if pool is not None else None
    queued_seconds = None
    if pool is not None and counts is not None:
        queued_seconds = _queued_gpu_seconds(lines, ports.leases(ports.registry.fleet_of(pool)))
    taking = working(counts or {})
    drain = None
    if queued_seconds is not None and taking and ports.registry.has_capacity(name):
        drain = queued_seconds / taking
    return {
        "model": name,
        "pool": pool,
        "paused": is_paused,
        "scheduled": sum(line.scheduled for line in lines),
        "queued": sum(line.queued for line in lines),
        "oldest_queued_seconds": (ports.clock.now() - oldest).total_seconds() if oldest else None,
        "queued_gpu_seconds": queued_seconds,
        "running": sum(line.running for line in lines),
        "retrying": sum(line.retrying for line in lines),
        "cancelling": sum(line.cancelling for line in lines),
        "slots": dict(counts) if counts is not None else None,
        "drain_seconds": drain,
    }


def _may_submit(principal: Principal, model: str, ports: Ports) -> bool:
    if principal.is_operator or principal.tenant_id is None:
        return True
    return Allowed(limits_of(principal.tenant_id, ports).allowed_models, principal.models).covers(model)


def _queued_gpu_seconds(lines: list[Waiting], leases: Leases) -> float | None:
    """Return the queued jobs' GPU-seconds: count times the mean duration of the tenant's jobs, or, with
    several tenants, of the model's (one call to Redis per model)."""
    queued = [line for line in lines if line.queued]
    if not queued:
        return 0.0
    tenant = str(queued[0].tenant_id) if len(queued) == 1 else ""
    try:
        mean = leases.estimate_seconds(queued[0].model, tenant)
    except LeasingUnavailable:
        return None
    return sum(line.queued for line in queued) * mean


class Workers(OperatorView):
    needs = {"GET": "gpus.view_server"}

    @described(
        "list_workers",
        "Processes of the dispatcher, with their last heartbeats and the servers they use",
        answers={200: answers.Workers},
        refusals=(400, 403),
        tag="admin",
        description="GPU workers, workers for sweeps and callbacks, and web processes, including "
        "those that fell "
        "silent within the last day. Processes that were stopped are not listed, nor are beat and "
        "processes of "
        "versions before 0.2, which send no heartbeat.",
    )
    def get(self, request: Request) -> Response:
        allow_only(request, ())
        return Response({"results": [worker_json(row) for row in workers()]})


def worker_json(row: WorkerRow) -> answers.Worker:
    return {
        "name": row.name,
        "kind": row.kind,
        "live": row.is_live,
        "last_beat_at": row.beat_at,
        "last_beat_seconds": round(row.beat_seconds, 1),
        "started_at": row.started_at,
        "layout": row.layout,
        "queues": list(row.queues),
        "running": row.running,
        "servers": list(row.servers),
    }
