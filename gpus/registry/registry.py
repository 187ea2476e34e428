"""The registry: which servers and models there are. The database first, then the lease layer, live.

If Redis is away the rows stand and `mirrored` is False: the index is brought up to date by
`index_sync.mirror_registry`, which rebuilding and a sweep call. by: who did it; every change has its audit
entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.db import transaction

from foundation.secrets import encrypt
from gpus.errors import LeasingUnavailable
from gpus.leasing.values import Wakes
from gpus.models import ModelConfig, Placement, Pool, Server
from gpus.protocol import MAX_SLOTS, STARTED_HERE
from gpus.registry.audit import models_before, note_change, note_changes, record
from gpus.registry.index_sync import LeasesOf, forget_servers, mirror
from gpus.registry.model_fields import RegistryRefused, defaults, read_fields, write_fields
from gpus.registry.queries import rows_changed


@dataclass(frozen=True, slots=True)
class Registered:
    """created: the server is new. wakes: for the caller to send. mirrored: the lease layer knows."""

    server: Server
    config: ModelConfig
    pool: Pool
    created: bool
    wakes: tuple[Wakes, ...]
    mirrored: bool


@dataclass(frozen=True, slots=True)
class Configured:
    """created: the model is new."""

    config: ModelConfig
    pool: Pool
    created: bool
    mirrored: bool


def register_server(
    *,
    model: str,
    server: str,
    endpoint: str,
    slots: int,
    by: str,
    leases: LeasesOf,
    pool: str | None = None,
    fleet: str | None = None,
    host: str | None = None,
    machine: str | None = None,
    headers: Mapping[str, str] | None = None,
    ca_pem: str | None = None,
    model_fields: Mapping[str, Any] | None = None,
) -> Registered:
    """Puts a model on a server, making either where it is new. Raises RegistryRefused.

    pool: where a new model goes; its own one, named after it, if nothing is said. host, machine, headers,
    ca_pem and model_fields change only what is given; `headers={}` forgets the headers.
    """
    _check_url(endpoint, pinned=host is not None)
    check_slots(slots)
    with transaction.atomic():
        config, home, is_new = _model_in_pool(model, pool=pool, fleet=fleet)
        changed = _save_fields(config, home, model_fields or {}, is_new=is_new, by=by)
        row = Server.objects.select_for_update().filter(name=server).first()
        created = row is None
        if row is None:
            row = Server(name=server, pool=home)
        elif row.pool_id != home.name:
            raise RegistryRefused(
                "server_in_other_pool",
                f"Server {server} belongs to pool {row.pool_id}, model {model} to pool {home.name}; "
                "name the pool when you register a model that is to share a server.",
                pointer="/server",
                status=409,
            )
        placement = Placement.objects.filter(server=row, model=config).first()
        if headers is None and would_move_secrets(row, endpoint):
            raise RegistryRefused(
                "headers_needed",
                f"Server {server} has secret headers, and this endpoint is at another origin: "
                "give the headers that it is to get there, or an empty object.",
                pointer="/headers",
            )
        before = _registered_fields(row, placement)
        row.slots = slots
        if host is not None:
            row.host = host or None
        if machine is not None:
            row.machine = machine
        if headers is not None:
            row.headers_encrypted = encrypt(json.dumps(dict(headers))) if headers else ""
        if ca_pem is not None:
            row.ca_pem = ca_pem
        row.save()
        placement, _ = Placement.objects.update_or_create(
            server=row, model=config, defaults={"endpoint": endpoint}
        )
        if created or changed or _registered_fields(row, placement) != before:
            detail = {"model": model, "endpoint": endpoint, "slots": slots, "model_fields": changed}
            record(by, "register_server", f"server:{server}", **detail)
    wakes, mirrored = mirror(leases, home, row)
    return Registered(row, config, home, created, wakes, mirrored)


def would_move_secrets(server: Server, endpoint: str) -> bool:
    """Whether what was given for one origin would be sent to another one."""
    if not server.headers_encrypted:
        return False
    known = {_origin(one.endpoint) for one in server.placements.all()}
    return _origin(endpoint) not in known


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def configure_model(
    name: str,
    values: Mapping[str, Any],
    *,
    by: str,
    leases: LeasesOf,
    replace: bool,
    pool: str | None = None,
    fleet: str | None = None,
    action: str = "configure_model",
    detail: Mapping[str, Any] | None = None,
) -> Configured:
    """Sets a model's fields; what changes them is its next version. Raises RegistryRefused (404 without
    `replace` for an unknown model).

    replace: what is not named gets its default, and an unknown model is made, in `pool` or its own one.
    action, detail: of the audit entry, for those who set fields for a reason of their own.
    """
    with transaction.atomic():
        if not replace and not ModelConfig.objects.filter(name=name).exists():
            raise unknown_model(name)
        config, home, created = _model_in_pool(name, pool=pool, fleet=fleet)
        fields = {**defaults(), **values} if replace else values
        changed = _save_fields(config, home, fields, is_new=created, by=by)
        if changed:
            record(by, action, f"model:{name}", fields=changed, **(detail or {}))
    _, mirrored = mirror(leases, home)
    return Configured(config, home, created, mirrored)


def reset_model(name: str, *, by: str, leases: LeasesOf) -> Configured:
    """All fields back to their defaults; the model, its pool and its servers stay. Raises RegistryRefused."""
    return configure_model(name, defaults(), by=by, leases=leases, replace=False, action="reset_model")


def remove_server(name: str, *, by: str, leases: LeasesOf) -> bool:
    """Forgets a server; leases that still run there go on until they end. False: there is none. Raises
    RegistryRefused (409) while one of its slots is in quarantine: in a server made anew it would be free."""
    with transaction.atomic():
        machine = Server.objects.select_for_update().filter(name=name).first()
        if machine is None:
            return False
        suspect = machine.quarantined.filter(freed_at=None).order_by("-until").first()
        if suspect is not None:
            raise RegistryRefused(
                "server_in_quarantine",
                f"Slot {suspect.slot} of {name} is in quarantine: its GPU may still be busy. Switch the "
                "server off, and remove it once that is over, at the latest by "
                f"{suspect.until:%Y-%m-%d %H:%M:%S} UTC.",
                pointer="/server",
                status=409,
            )
        fleet = machine.pool.fleet
        freed = machine.quarantined.order_by("-pk").values_list("attempt_id", flat=True)[:MAX_SLOTS]
        # the rows go with their server; made anew it must not be held back for what was proven gone
        proven = {"proven_gone": list(freed)} if freed else {}
        record(by, "remove_server", f"server:{name}", pool=machine.pool_id, slots=machine.slots, **proven)
        machine.delete()
    try:
        forget_servers(leases(fleet), {name}, fleet=fleet)  # the fill counts the wakes, if there are any
    except LeasingUnavailable:
        return True  # rebuilding starts from the rows
    return True


def check_slots(slots: int) -> None:
    """Raises RegistryRefused."""
    if not 0 <= slots <= MAX_SLOTS:
        raise RegistryRefused("invalid_slots", f"A server has 0 to {MAX_SLOTS} slots.", pointer="/slots")


def unknown_model(name: str) -> RegistryRefused:
    return RegistryRefused("unknown_model", f"No model {name!r} is registered.", pointer="/model", status=404)


def _save_fields(
    config: ModelConfig, home: Pool, values: Mapping[str, Any], *, is_new: bool, by: str
) -> tuple[str, ...]:
    """The names of those that changed. Raises RegistryRefused."""
    before = None if is_new else read_fields(config, home)
    siblings = [(row, fields) for row, fields in models_before(home) if row.name != config.name]
    write_fields(config, home, values)
    home.save()
    config.save()
    note_changes(siblings, home, by=by)
    return note_change(config, home, before=before, by=by)


def _registered_fields(row: Server, placement: Placement | None) -> tuple[object, ...]:
    """What a registration may change of a server."""
    endpoint = placement.endpoint if placement else None
    return row.slots, row.host, row.machine, row.headers_encrypted, row.ca_pem, endpoint


def _model_in_pool(name: str, *, pool: str | None, fleet: str | None) -> tuple[ModelConfig, Pool, bool]:
    config = ModelConfig.objects.filter(name=name).first()
    if config is not None and pool is not None and config.pool_id != pool:
        raise RegistryRefused(
            "model_in_other_pool",
            f"Model {name} belongs to pool {config.pool_id}; a model is in one pool.",
            pointer="/pool",
            status=409,
        )
    home_name = config.pool_id if config else (pool or name)
    # the pool is locked first: its fields are in the versions of all its models
    home, _ = Pool.objects.select_for_update().get_or_create(
        name=home_name, defaults={"fleet": fleet or "main"}
    )
    if fleet is not None and home.fleet != fleet:
        raise RegistryRefused(
            "pool_in_other_fleet",
            f"Pool {home.name} belongs to fleet {home.fleet}.",
            pointer="/fleet",
            status=409,
        )
    rows = ModelConfig.objects.select_for_update()
    config, created = rows.get_or_create(name=name, defaults={"pool": home})
    return config, home, created


def _check_url(endpoint: str, *, pinned: bool) -> None:
    """pinned: its worker may hold the model itself, without HTTP."""
    try:
        parts = urlsplit(endpoint)
        valid = (
            parts.scheme in ("http", "https", *([STARTED_HERE] if pinned else []))
            and bool(parts.hostname)
            and parts.port != 0
        )
    except ValueError:
        valid = False
    if not valid or any(character.isspace() or ord(character) < 0x20 for character in endpoint):
        raise RegistryRefused(
            "invalid_endpoint", "The endpoint is an http:// or https:// URL with a host.", pointer="/endpoint"
        )


_LONGEST_WHY = 500


def mark_too_large(server: str, model: str, why: str, *, leases: LeasesOf) -> tuple[Wakes, ...]:
    """Take a model that needs more memory than the server's GPU has from that server: its jobs wait for a
    larger one. It counts for the process that drives the server now; the next one of the server tries again.

    why: the message, with both numbers. Returns the wakes for the caller to send.
    """
    row = Server.objects.select_related("pool").filter(name=server).first()
    if row is None:
        return ()
    Placement.objects.filter(server=row, model=model).update(
        too_large=why[:_LONGEST_WHY] or "too large", too_large_boot=row.boot_id
    )
    rows_changed.send(None)
    wakes, _ = mirror(leases, row.pool, row)
    return wakes
