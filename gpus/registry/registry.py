"""Registers, configures and removes servers and models: first in the database, then in the lease layer.

If Redis does not answer, the rows remain and `mirrored` is False; a sweep or a rebuild updates the index
later with `index_sync.mirror_registry`. Every change has an audit entry; `by` is its actor.
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
from gpus.registry.audit import read_pool_models, record, record_version, record_versions
from gpus.registry.index_sync import LeasesOf, forget_servers, mirror
from gpus.registry.model_fields import RegistryRefused, defaults, read_fields, write_fields
from gpus.registry.queries import rows_changed
from gpus.registry.upload_url import new_salt


@dataclass(frozen=True, slots=True)
class Registered:
    """Result of registering or changing a server.

    created: whether the server is new. wakes: for the caller to send. mirrored: whether the lease layer is up
    to date. replaced: endpoint of the model there until now, at another origin; "" without one. elsewhere:
    endpoints of the server's other models on other hosts.
    """

    server: Server
    config: ModelConfig
    pool: Pool
    created: bool
    wakes: tuple[Wakes, ...]
    mirrored: bool
    replaced: str = ""
    elsewhere: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Configured:
    """Result of configuring a model.

    created: whether the model is new. mirrored: whether the lease layer is up to date.
    """

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
    """Place a model on a server, and create either if it is new. Raises RegistryRefused.

    endpoint: the model's URL there. slots: of the server, 0 to 1024. by: audit actor. pool: of a new model;
    None: a pool named after the model. host: boot id of a pinned worker's host. fleet: of a new pool.
    machine, headers (secret, stored encrypted), ca_pem, model_fields: None leaves the stored value;
    `headers={}` deletes the headers.
    """
    _check_url(endpoint, pinned=host is not None)
    check_slots(slots)
    with transaction.atomic():
        config, home, is_new = _model_in_pool(model, pool=pool, fleet=fleet)
        changed = _save_fields(config, home, model_fields or {}, is_new=is_new, by=by)
        row = Server.objects.select_for_update().filter(name=server).first()
        created = row is None
        if row is None:
            row = Server(name=server, pool=home, upload_salt=new_salt())
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
                "give the headers to send there, or an empty object.",
                pointer="/headers",
            )
        before = _registered_fields(row, placement)
        replaced = placement.endpoint if placement else ""
        elsewhere = [] if created else [one.endpoint for one in row.placements.all() if one != placement]
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
    origin = _origin(endpoint)
    return Registered(
        row,
        config,
        home,
        created,
        wakes,
        mirrored,
        replaced=replaced if replaced and _origin(replaced) != origin else "",
        elsewhere=tuple(one for one in elsewhere if urlsplit(one).hostname != urlsplit(endpoint).hostname),
    )


def would_move_secrets(server: Server, endpoint: str) -> bool:
    """Whether the server's secret headers would be sent to an origin that they were not given for."""
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
    """Set a model's fields; a change writes its next version. Raises RegistryRefused (404 for an unknown
    model).

    values: by field name. by: audit actor. replace: other fields get their defaults, and an unknown model is
    created in `pool` (None: a pool named after it). fleet: of a new pool. action, detail: of the audit entry.
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
    """Reset all fields of a model to their defaults. Raises RegistryRefused."""
    return configure_model(name, defaults(), by=by, leases=leases, replace=False, action="reset_model")


def remove_server(name: str, *, by: str, leases: LeasesOf) -> bool:
    """Remove a server; its running leases continue until they end. Returns False if there is none.

    Raises RegistryRefused (409) while one of its slots is in quarantine: registered again, the server would
    have that slot free.
    """
    with transaction.atomic():
        row = Server.objects.select_for_update().filter(name=name).first()
        if row is None:
            return False
        suspect = row.quarantined.filter(freed_at=None).order_by("-until").first()
        if suspect is not None:
            raise RegistryRefused(
                "server_in_quarantine",
                f"Slot {suspect.slot} of {name} is in quarantine: its GPU may still be busy. Switch the "
                "server off, and remove it once that is over, at the latest by "
                f"{suspect.until:%Y-%m-%d %H:%M:%S} UTC.",
                pointer="/server",
                status=409,
            )
        fleet = row.pool.fleet
        freed = row.quarantined.order_by("-pk").values_list("attempt_id", flat=True)[:MAX_SLOTS]
        # kept in the audit: the rows are deleted, and a server registered again must not wait for these
        # attempts
        proven = {"proven_gone": list(freed)} if freed else {}
        record(by, "remove_server", f"server:{name}", pool=row.pool_id, slots=row.slots, **proven)
        row.delete()
    try:
        forget_servers(leases(fleet), {name}, fleet=fleet)  # the fill sends wakes, if any
    except LeasingUnavailable:
        return True  # a sweep or a rebuild removes it from the index
    return True


def check_slots(slots: int) -> None:
    """Raise RegistryRefused unless the number of slots is allowed."""
    if not 0 <= slots <= MAX_SLOTS:
        raise RegistryRefused("invalid_slots", f"A server has 0 to {MAX_SLOTS} slots.", pointer="/slots")


def unknown_model(name: str) -> RegistryRefused:
    """The error for a model that is not registered."""
    return RegistryRefused("unknown_model", f"No model {name!r} is registered.", pointer="/model", status=404)


def _save_fields(
    config: ModelConfig, home: Pool, values: Mapping[str, Any], *, is_new: bool, by: str
) -> tuple[str, ...]:
    """Write and save a model's fields. Returns the names of those that changed. Raises RegistryRefused."""
    before = None if is_new else read_fields(config, home)
    siblings = [(row, fields) for row, fields in read_pool_models(home) if row.name != config.name]
    write_fields(config, home, values)
    home.save()
    config.save()
    record_versions(siblings, home, by=by)
    return record_version(config, home, before=before, by=by)


def _registered_fields(row: Server, placement: Placement | None) -> tuple[object, ...]:
    """The server's fields that a registration can change."""
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
    # the pool is locked first, because its fields are in the versions of all its models; no_key: the page of
    # a server holds the server's row, for which a registration waits, when it inserts a row of the model
    home, _ = Pool.objects.select_for_update(no_key=True).get_or_create(
        name=home_name, defaults={"fleet": fleet or "main"}
    )
    if fleet is not None and home.fleet != fleet:
        raise RegistryRefused(
            "pool_in_other_fleet",
            f"Pool {home.name} belongs to fleet {home.fleet}.",
            pointer="/fleet",
            status=409,
        )
    rows = ModelConfig.objects.select_for_update(no_key=True)
    config, created = rows.get_or_create(name=name, defaults={"pool": home})
    return config, home, created


def _check_url(endpoint: str, *, pinned: bool) -> None:
    """Raise RegistryRefused for a bad URL. pinned: the worker may run the model itself, without HTTP."""
    try:
        parts = urlsplit(endpoint)
        valid = (
            parts.scheme in ("http", "https", *([STARTED_HERE] if pinned else []))
            and bool(parts.hostname)
            and parts.port != 0
        )
    except ValueError:
        valid = False
    if valid and "@" in parts.netloc:
        raise RegistryRefused(
            "invalid_endpoint",
            "Give the endpoint without a user and password, and send them as a header, which is stored "
            'encrypted: "headers": {"Authorization": "Basic …"}.',
            pointer="/endpoint",
        )
    if not valid or any(character.isspace() or ord(character) < 0x20 for character in endpoint):
        raise RegistryRefused(
            "invalid_endpoint", "The endpoint is an http:// or https:// URL with a host.", pointer="/endpoint"
        )


_MAX_REASON = 500


def mark_too_large(server: str, model: str, why: str, *, leases: LeasesOf) -> tuple[Wakes, ...]:
    """Mark a model as too large for a server's GPU; its jobs wait for another server.

    The mark holds while the same process drives the server; its next process tries again. why: message with
    both sizes. Returns wakes for the caller to send.
    """
    row = Server.objects.select_related("pool").filter(name=server).first()
    if row is None:
        return ()
    Placement.objects.filter(server=row, model=model).update(
        too_large=why[:_MAX_REASON] or "too large", too_large_boot=row.boot_id
    )
    rows_changed.send(None)
    wakes, _ = mirror(leases, row.pool, row)
    return wakes
