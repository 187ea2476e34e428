"""The measured pages: each list, deep inside it, its filters (common and rare), its search."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from django.db.models import QuerySet
from django.urls import reverse

from jobs.models import Attempt, Callback, Event, Job, JobTag, Tenant

_DAY = {"created_at_from_0": "2026-06-10", "created_at_from_1": "00:00:00",
        "created_at_to_0": "2026-06-10", "created_at_to_1": "06:00:00"}  # fmt: skip


def pages() -> Iterator[tuple[str, str]]:
    """Yield (name, path) of each measured page."""
    tenant = Tenant.objects.get(name="tenant-49")
    job = _middle(Job.objects.order_by("-id"))
    yield from _list("jobs_job", "jobs", {
        "": {},
        "deep inside": {"after": job.id},
        **{f"state {state}": {"state__exact": state}
           for state in ("queued", "running", "retrying", "completed", "failed", "cancelled")},
        "model": {"model": "model-7"},
        "model and state": {"model": "model-7", "state__exact": "failed"},
        "model, deep inside": {"model": "model-7", "after": job.id},
        "pool": {"pool": "model-7"},
        "error": {"error_code": "timeout"},
        "rare error": {"error_code": "poison"},
        "absent error": {"error_code": "gpu_fault"},
        "model and rare error": {"model": "model-7", "error_code": "poison"},
        "tenant": {"tenant__id__exact": tenant.pk},
        "tenant without jobs": {"tenant__id__exact": Tenant.objects.get(name="tenant-3").pk},
        "tenant and state": {"tenant__id__exact": tenant.pk, "state__exact": "failed"},
        "tenant and rare error": {"tenant__id__exact": tenant.pk, "error_code": "poison"},
        "six hours": _DAY,
        "six hours and state": {**_DAY, "state__exact": "failed"},
        "search id": {"q": job.id},
        "search model": {"q": "model-7"},
        "search tenant": {"q": "tenant-49"},
        "search tag": {"q": "night"},
        "search rare tag": {"q": "rare"},
        "search nothing": {"q": "no such thing"},
    })  # fmt: skip
    yield "job: its page", reverse("admin:jobs_job_change", args=[job.id])
    letter = _middle(Job.objects.filter(state="failed", dismissed_at=None).order_by("-finished_at"))
    yield from _list("admin_ui_deadletter", "dead letters", {
        "": {},
        "deep inside": {"after": f"{letter.finished_at.isoformat()},{letter.id}"},
        "model": {"model": "model-7"},
        "error": {"error_code": "timeout"},
        "rare error": {"error_code": "poison"},
        "absent error": {"error_code": "gpu_fault"},
        "tenant": {"tenant__id__exact": tenant.pk},
        "oldest first": {"o": "7"},
        "search model": {"q": "model-7"},
    })  # fmt: skip
    yield from _list("jobs_attempt", "attempts", {
        "": {},
        "deep inside": {"after": _middle(Attempt.objects.order_by("-id")).id},
        **{f"state {state}": {"state__exact": state} for state in ("sent", "completed", "failed", "lost")},
        "server": {"server": "server-7-0"},
        "server and state": {"server": "server-7-0", "state__exact": "failed"},
        "model": {"model": "model-7"},
        "error": {"error_code": "busy"},
        "rare error": {"error_code": "gpu_fault"},
        "absent error": {"error_code": "cuda"},
        "model and rare error": {"model": "model-7", "error_code": "gpu_fault"},
        "search job": {"q": job.id},
        "search nothing": {"q": "no such thing"},
    })  # fmt: skip
    yield from _list("jobs_event", "events", {
        "": {},
        "deep inside": {"after": _middle(Event.objects.order_by("-id")).pk},
        "type": {"type": "started"},
        "rare type": {"type": "adopted"},
        "absent type": {"type": "cancelled"},
        "search job": {"q": job.id},
    })  # fmt: skip
    callback = _middle(Callback.objects.order_by("-id"))
    yield from _list("jobs_callback", "callbacks", {
        "": {},
        "deep inside": {"after": callback.id},
        **{f"state {state}": {"state__exact": state}
           for state in ("pending", "delivered", "gave_up", "gone")},
        "six hours": _DAY,
        "search": {"q": callback.id},
        "search job": {"q": callback.job_id},
    })  # fmt: skip
    yield from _list("jobs_callbacktry", "delivery log", {"": {}, "search": {"q": callback.id}})
    yield from _list(
        "jobs_jobtag", "tags", {"": {}, "search": {"q": "rare"}, "search common": {"q": "night"}}
    )
    yield from _list("jobs_idempotencykey", "idempotency keys", {"": {}, "search": {"q": f"order-{job.id}"}})
    yield from _list("gpus_auditentry", "audit", {
        "": {}, "by": {"by": "user"}, "on": {"on": "server"}, "on none": {"on": "tenant"},
        "search": {"q": "ann"}, "search target": {"q": "server-1-1"}, "search nothing": {"q": "nobody"},
    })  # fmt: skip
    yield from _list("jobs_tenant", "tenants", {"": {}})
    yield from _list("gpus_server", "servers", {"": {}})
    assert JobTag.objects.filter(tag="rare").exists()


def _list(model: str, title: str, queries: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for name, query in queries.items():
        yield f"{title}: {name or 'first page'}", f"{reverse(f'admin:{model}_changelist')}?{urlencode(query)}"


def _middle(rows: QuerySet[Any]) -> Any:
    return rows[rows.count() // 2]
