"""What is saved here works at once: the lease layer is told after the commit."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest

from admin_ui.actions.operations import LATER
from gpus.errors import LeasingUnavailable
from gpus.models import Pool
from gpus.registry.index_sync import mirror_registry
from jobs import ports
from jobs.models import Tenant
from jobs.operations.tenants import sync_rules


def mirror_after_commit(request: HttpRequest) -> None:
    """Pools, servers, slots, placements: all of them, so that it doesn't matter what was saved."""
    _after_commit(request, _mirror_all)


def sync_rules_after_commit(request: HttpRequest, tenant: Tenant) -> None:
    """Its weight, its highest band and its limit."""
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
        raise LeasingUnavailable("not every fleet took it")


def _fleets() -> list[str]:
    return sorted(set(Pool.objects.order_by().values_list("fleet", flat=True)))


def _after_commit(request: HttpRequest, act: Callable[[], None]) -> None:
    def tell() -> None:
        try:
            act()
        except LeasingUnavailable:
            messages.warning(request, f"Saved. {LATER}")

    transaction.on_commit(tell)
