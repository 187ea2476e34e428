"""What is saved here works at once: the lease layer is told after the commit."""

from __future__ import annotations

from collections.abc import Callable

from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest

from gpus.errors import LeasingUnavailable
from gpus.models import Pool
from gpus.services.mirror import mirror_registry
from jobs.models import Tenant
from jobs.services import ports

from .operating import LATER


def mirror_after_commit(request: HttpRequest) -> None:
    """Pools, servers, slots, placements: all of them, so that it doesn't matter what was saved."""
    _after_commit(request, _mirror_all)


def weigh_after_commit(request: HttpRequest, tenant: Tenant) -> None:
    _after_commit(request, lambda: _weigh(tenant))


def _mirror_all() -> None:
    real = ports.production_ports()
    for fleet in _fleets():
        real.send_wakes(mirror_registry(real.leases(fleet), fleet=fleet))


def _weigh(tenant: Tenant) -> None:
    for fleet in _fleets():
        ports.production_ports().leases(fleet).set_weights({str(tenant.pk): tenant.weight})


def _fleets() -> list[str]:
    return sorted(set(Pool.objects.order_by().values_list("fleet", flat=True)))


def _after_commit(request: HttpRequest, act: Callable[[], None]) -> None:
    def tell() -> None:
        try:
            act()
        except LeasingUnavailable:
            messages.warning(request, f"Saved. {LATER}")

    transaction.on_commit(tell)
