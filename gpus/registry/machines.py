"""All servers of one machine (its GPUs, each with its worker, models and LLM servers) switched in one go.

A machine is what its servers say they are part of: pinned workers write its host name when they register, for
others an operator says it. There are no rows of machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction

from gpus.leasing.values import Wakes
from gpus.models import Server
from gpus.protocol import DesiredState
from gpus.registry.audit import record
from gpus.registry.index_sync import LeasesOf, mirror_machine
from gpus.registry.model_fields import RegistryRefused


@dataclass(frozen=True, slots=True)
class SwitchedMachine:
    """servers: all of its, by name, and which of them changed. wakes: for the caller to send. mirrored: the
    lease layer knows of all of them; if not, it is told the rest once Redis is back."""

    servers: tuple[str, ...]
    changed: tuple[str, ...]
    wakes: tuple[Wakes, ...]
    mirrored: bool


def switch_machine(machine: str, desired: DesiredState, *, by: str, leases: LeasesOf) -> SwitchedMachine:
    """As `controls.switch_server`, for every server of the machine: all of them or none. An entry for the
    machine and one for each server that changed. Raises RegistryRefused (404)."""
    with transaction.atomic():
        rows = list(Server.objects.select_for_update().filter(machine=machine).order_by("name"))
        if not rows:
            raise unknown_machine(machine)
        changed = [row for row in rows if row.desired != desired]
        if changed:
            names = [row.name for row in changed]
            record(by, "switch_machine", f"machine:{machine}", after=desired.value, servers=names)
        for row in changed:
            record(
                by,
                "switch_server",
                f"server:{row.name}",
                before=row.desired,
                after=desired.value,
                machine=machine,
            )
            row.desired = desired.value
            row.save(update_fields=["desired", "updated_at"])
    wakes, mirrored = mirror_machine(machine, leases)
    return SwitchedMachine(
        tuple(row.name for row in rows), tuple(row.name for row in changed), wakes, mirrored
    )


def unknown_machine(machine: str) -> RegistryRefused:
    return RegistryRefused(
        "unknown_machine", f"No server is part of a machine {machine!r}.", pointer="/machine", status=404
    )
