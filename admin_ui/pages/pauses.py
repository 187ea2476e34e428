"""The page of current pauses, with an action to resume. Pauses begin on the page Queues."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.db.models import QuerySet
from django.http import HttpRequest

from admin_ui.actions.operations import LATER, actor
from admin_ui.parts.base_pages import ReadOnlyAdmin
from admin_ui.parts.typed_decorators import column, operation
from gpus.models import Pause
from gpus.registry.controls import resume
from jobs import ports
from jobs.models import Tenant
from jobs.operations.tenants import resume_tenant


@admin.register(Pause)
class PausePages(ReadOnlyAdmin):
    about = "Current pauses. Select some to resume them; new ones begin on the page Queues."
    list_display = ("kind", "target", "since", "actor", "reason")
    actions = ("resume_chosen",)
    sortable_by = ()
    fields = (("kind", "target"), ("since", "actor"), "reason")
    readonly_fields = ("target",)

    @operation("Resume", permissions=["resume"])
    def resume_chosen(self, request: HttpRequest, queryset: QuerySet[Pause]) -> None:
        real, by = ports.production_ports(), actor(request)
        done = []
        for pause in queryset:
            tenant = _tenant(pause)
            if tenant is not None:
                done.append(resume_tenant(tenant, by=by, ports=real))
            else:
                done.append(resume(Pause.Kind(pause.kind), pause.name, by=by, leases=real.leases))
        real.send_wakes([wake for one in done for wake in one.wakes])
        messages.success(request, f"{len(done)} resumed.")
        if not all(one.mirrored for one in done):
            messages.warning(request, LATER)

    def has_resume_permission(self, request: HttpRequest, object_id: Any = None) -> bool:
        return bool(request.user.has_perm("gpus.delete_pause"))

    @column("target")
    def target(self, pause: Pause) -> str:
        return str(_tenant(pause) or pause.name or "whole system")


def _tenant(pause: Pause) -> Tenant | None:
    """The tenant of a tenant's pause, whose name is the tenant's id."""
    is_tenants = pause.kind == Pause.Kind.TENANT and pause.name.isdecimal()
    return Tenant.objects.filter(pk=pause.name).first() if is_tenants else None
