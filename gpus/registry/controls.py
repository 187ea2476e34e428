"""What operators switch: servers, slots, whole machines, pauses, a model's configuration back to what it was.

Each is one transaction with its audit entry; then the lease layer is told, and the caller sends the wakes.
What is so already changes nothing and leaves no entry.

A machine is what its servers say they are part of: pinned workers write its host name when they register, for
others an operator says it. There are no rows of machines.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction
from django.utils import timezone

from gpus.leasing.values import Wakes
from gpus.models import ConfigVersion, ModelConfig, Pause, Server
from gpus.protocol import DesiredState
from gpus.registry.audit import record
from gpus.registry.index_sync import LeasesOf, mirror, mirror_machine, mirror_pause
from gpus.registry.model_fields import FIELDS, RegistryRefused, defaults
from gpus.registry.registry import Configured, Registered, check_slots, configure_model, unknown_model


@dataclass(frozen=True, slots=True)
class Changed:
    """changed: it was not so before. wakes: for the caller to send. mirrored: the lease layer knows; if not,
    it is told once Redis is back."""

    changed: bool
    wakes: tuple[Wakes, ...]
    mirrored: bool


def switch_server(name: str, desired: DesiredState, *, by: str, leases: LeasesOf) -> Registered | None:
    """on; draining: what runs ends, nothing starts; off: what runs is interrupted within about a second and
    goes back to its place in the line at no cost. None: there is no such server."""
    return change_server(name, by=by, leases=leases, desired=desired)


def set_slots(name: str, slots: int, *, by: str, leases: LeasesOf) -> Registered | None:
    """0 to 1024. Of more than these what runs goes on. None: no such server. Raises RegistryRefused."""
    return change_server(name, by=by, leases=leases, slots=slots)


def change_server(
    name: str, *, by: str, leases: LeasesOf, slots: int | None = None, desired: DesiredState | None = None
) -> Registered | None:
    """Both at once, as far as they are given; see `switch_server` and `set_slots`."""
    if slots is not None:
        check_slots(slots)
    with transaction.atomic():
        machine = Server.objects.select_for_update().filter(name=name).first()
        if machine is None:
            return None
        before = {"slots": machine.slots, "desired": machine.desired}
        if slots is not None:
            machine.slots = slots
        if desired is not None:
            machine.desired = desired.value
        for field, action in (("slots", "set_slots"), ("desired", "switch_server")):
            value = getattr(machine, field)
            if value != before[field]:
                record(by, action, f"server:{name}", before=before[field], after=value)
        machine.save(update_fields=["slots", "desired", "updated_at"])
    wakes, mirrored = mirror(leases, machine.pool, machine)
    placement = machine.placements.select_related("model").first()
    config = placement.model if placement else ModelConfig(name="", pool=machine.pool)
    return Registered(machine, config, machine.pool, False, wakes, mirrored)


def pause(
    kind: Pause.Kind, name: str = "", *, by: str, reason: str = "", leases: LeasesOf, target: str = ""
) -> Changed:
    """Nothing of it is started any more; what runs goes on, what is submitted waits.

    name: the model's; the tenant's id as the lease layer knows it; empty for the system. target: of the audit
    entry, where that is not ``kind:name``. Raises RegistryRefused (404) for a model that is not registered.
    """
    if kind is Pause.Kind.MODEL and not ModelConfig.objects.filter(name=name).exists():
        raise unknown_model(name)
    reason = reason[: Pause._meta.get_field("reason").max_length]
    with transaction.atomic():
        _, is_new = Pause.objects.get_or_create(
            kind=kind, name=name, defaults={"since": timezone.now(), "actor": by, "reason": reason}
        )
        if is_new:
            record(by, f"pause_{kind.value}", target or _target(kind, name), reason=reason)
    return Changed(is_new, *mirror_pause(kind, name, leases, is_over=False))


def resume(kind: Pause.Kind, name: str = "", *, by: str, leases: LeasesOf, target: str = "") -> Changed:
    """The end of a pause, at once; names as in `pause`. Without one nothing changes."""
    with transaction.atomic():
        ended = Pause.objects.select_for_update().filter(kind=kind, name=name).first()
        if ended is not None:
            ended.delete()
            seconds = round((timezone.now() - ended.since).total_seconds())
            record(by, f"resume_{kind.value}", target or _target(kind, name), paused_seconds=seconds)
    return Changed(ended is not None, *mirror_pause(kind, name, leases, is_over=True))


def revert_model(name: str, number: int, *, by: str, leases: LeasesOf) -> Configured:
    """A model's fields as version `number` has them; a new version says so. Fields that version does not know
    get their defaults. Raises RegistryRefused (404 for an unknown model or version)."""
    if not ModelConfig.objects.filter(name=name).exists():
        raise unknown_model(name)
    version = ConfigVersion.objects.filter(model=name, number=number).first()
    if version is None:
        raise RegistryRefused(
            "unknown_version", f"Model {name} has no version {number}.", pointer="/number", status=404
        )
    kept = {field: value for field, value in version.fields.items() if field in FIELDS}
    return configure_model(
        name,
        {**defaults(), **kept},
        by=by,
        leases=leases,
        replace=False,
        action="revert_model",
        detail={"to": number},
    )


def _target(kind: Pause.Kind, name: str) -> str:
    return f"{kind.value}:{name or 'all'}"


@dataclass(frozen=True, slots=True)
class SwitchedMachine:
    """servers: all of its, by name, and which of them changed. wakes: for the caller to send. mirrored: the
    lease layer knows of all of them; if not, it is told the rest once Redis is back."""

    servers: tuple[str, ...]
    changed: tuple[str, ...]
    wakes: tuple[Wakes, ...]
    mirrored: bool


def switch_machine(machine: str, desired: DesiredState, *, by: str, leases: LeasesOf) -> SwitchedMachine:
    """As `switch_server`, for every server of the machine: all of them or none. An entry for the
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
