"""Operator controls: switch servers and machines, set slots, pause and resume, revert a model's
configuration.

Each is one transaction with its audit entry; then the lease layer (the index in Redis) is updated, and the
caller sends the returned wakes. A control without effect writes no entry.

A machine is the group of servers with the same `machine` field: pinned workers set it to their host name when
they register, for other servers an operator sets it. There are no rows of machines.
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
    """Result of a control.

    changed: whether it had an effect. wakes: for the caller to send. mirrored: whether the lease layer is up
    to date; if not, a sweep updates it once Redis is back.
    """

    changed: bool
    wakes: tuple[Wakes, ...]
    mirrored: bool


def switch_server(name: str, desired: DesiredState, *, by: str, leases: LeasesOf) -> Registered | None:
    """Switch a server on, to draining, or off. Returns None if there is no such server.

    draining: running jobs finish, and no job starts. off: running jobs are interrupted within about a second
    and requeued at their place, without a charge.
    """
    return change_server(name, by=by, leases=leases, desired=desired)


def set_slots(name: str, slots: int, *, by: str, leases: LeasesOf) -> Registered | None:
    """Set a server's number of slots, 0 to 1024; running jobs above it finish.

    Returns None if there is no such server. Raises RegistryRefused.
    """
    return change_server(name, by=by, leases=leases, slots=slots)


def change_server(
    name: str, *, by: str, leases: LeasesOf, slots: int | None = None, desired: DesiredState | None = None
) -> Registered | None:
    """`switch_server` and `set_slots` in one transaction; None leaves a value unchanged."""
    if slots is not None:
        check_slots(slots)
    with transaction.atomic():
        row = Server.objects.select_for_update().filter(name=name).first()
        if row is None:
            return None
        before = {"slots": row.slots, "desired": row.desired}
        if slots is not None:
            row.slots = slots
        if desired is not None:
            row.desired = desired.value
        for field, action in (("slots", "set_slots"), ("desired", "switch_server")):
            value = getattr(row, field)
            if value != before[field]:
                record(by, action, f"server:{name}", before=before[field], after=value)
        row.save(update_fields=["slots", "desired", "updated_at"])
    wakes, mirrored = mirror(leases, row.pool, row)
    placement = row.placements.select_related("model").first()
    config = placement.model if placement else ModelConfig(name="", pool=row.pool)
    return Registered(row, config, row.pool, False, wakes, mirrored)


def pause(
    kind: Pause.Kind, name: str = "", *, by: str, reason: str = "", leases: LeasesOf, target: str = ""
) -> Changed:
    """Pause a model, a tenant or the system: running jobs finish, and submitted jobs wait.

    name: of the model; the tenant's id as in the lease layer; empty for the system. target: of the audit
    entry, if it is not ``kind:name``. Raises RegistryRefused (404) for a model that is not registered.
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
    """End a pause; arguments as for `pause`. Without a pause it has no effect."""
    with transaction.atomic():
        ended = Pause.objects.select_for_update().filter(kind=kind, name=name).first()
        if ended is not None:
            ended.delete()
            seconds = round((timezone.now() - ended.since).total_seconds())
            record(by, f"resume_{kind.value}", target or _target(kind, name), paused_seconds=seconds)
    return Changed(ended is not None, *mirror_pause(kind, name, leases, is_over=True))


def revert_model(name: str, number: int, *, by: str, leases: LeasesOf) -> Configured:
    """Set a model's fields to those of version `number`, as a new version.

    Fields that the version lacks get their defaults. Raises RegistryRefused (404 for an unknown model or
    version).
    """
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
    """Result of `switch_machine`.

    servers: names of all servers of the machine. changed: those whose state changed. wakes: for the caller to
    send. mirrored: whether the lease layer has all of them; if not, a sweep updates it once Redis is back.
    """

    servers: tuple[str, ...]
    changed: tuple[str, ...]
    wakes: tuple[Wakes, ...]
    mirrored: bool


def switch_machine(machine: str, desired: DesiredState, *, by: str, leases: LeasesOf) -> SwitchedMachine:
    """`switch_server` for every server of the machine, in one transaction.

    Writes one audit entry for the machine and one per changed server. Raises RegistryRefused (404).
    """
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
    """The error for a machine without servers."""
    return RegistryRefused(
        "unknown_machine", f"No server is part of a machine {machine!r}.", pointer="/machine", status=404
    )
