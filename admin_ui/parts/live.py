"""Base of pages whose rows are mirrored to Redis: a change is written there after its commit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.db import transaction
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from admin_ui.actions.operations import LATER
from admin_ui.parts.base_pages import OperatorAdmin
from gpus.errors import LeasingUnavailable
from gpus.models import ConfigVersion, Pool, QuarantinedSlot
from gpus.registry.index_sync import mirror_registry
from jobs import ports
from jobs.models import Tenant
from jobs.operations.tenants import sync_rules


def mirror_after_commit(request: HttpRequest) -> None:
    """Mirror pools, servers, slots and placements to Redis: all of them, whichever row was saved."""
    _after_commit(request, _mirror_all)


def sync_rules_after_commit(request: HttpRequest, tenant: Tenant) -> None:
    """Mirror the tenant's weight, highest band and `max_running` to Redis."""
    _after_commit(request, lambda: _sync_rules(tenant))


def _mirror_all() -> None:
    real = ports.production_ports()
    for fleet in _fleets():
        real.send_wakes(mirror_registry(real.leases(fleet), fleet=fleet))


def _sync_rules(tenant: Tenant) -> None:
    real = ports.production_ports()
    wakes, mirrored = sync_rules(tenant.pk, real.leases)
    real.send_wakes(wakes)
    if not mirrored:
        raise LeasingUnavailable("some fleets could not be updated")


def _fleets() -> list[str]:
    return sorted(set(Pool.objects.order_by().values_list("fleet", flat=True)))


def _after_commit(request: HttpRequest, act: Callable[[], None]) -> None:
    def act_or_warn() -> None:
        try:
            act()
        except LeasingUnavailable:
            messages.warning(request, f"Saved. {LATER}")

    transaction.on_commit(act_or_warn)


class LiveAdmin(OperatorAdmin):
    """Mirrors the registry after each save and delete.

    fixed: fields that can't be changed once the row exists; a changed natural key would make a copy.
    """

    fixed: tuple[str, ...] = ("name",)

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        return (*super().get_readonly_fields(request, obj), *(self.fixed if obj is not None else ()))

    def get_deleted_objects(self, objs: Any, request: HttpRequest) -> Any:
        """Versions and old quarantines are deleted with their model or server, without a permission of their
        own."""
        deleted, counts, missing, protected = super().get_deleted_objects(objs, request)
        cascaded = {model._meta.verbose_name for model in (ConfigVersion, QuarantinedSlot)}
        return deleted, counts, {name for name in missing if name not in cascaded}, protected

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        super().save_related(request, form, formsets, change)
        mirror_after_commit(request)

    def delete_model(self, request: HttpRequest, obj: Model) -> None:
        super().delete_model(request, obj)
        mirror_after_commit(request)

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> None:
        super().delete_queryset(request, queryset)
        mirror_after_commit(request)
